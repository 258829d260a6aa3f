"""Unclaimed locks: free, with clients waiting, and not taken by the head of the queue.

A hand-over takes milliseconds, and a dead waiter's ticket goes with its lease. So a lock is
unclaimed for long only if the head is alive and does not act: its program is blocked, or does not
follow the protocol. Then no other waiter gets the lock, and there is no holder to alert on.

Each sweep scans all queues. A lock that was taken and released between two scans shows in the
table's changes. The dashboard's page of the lock shows the head.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from lockclient.model.clocks import monotonic
from lockclient.model.holder import Holder
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition
from unlocker.metrics.series import series

NORMAL_HANDOVER_S = 15.0
"""Seconds for which a lock with a queue may be free: the 10 s lease of a dead waiter's ticket, and
the time that etcd takes to end the lease."""


@dataclass(eq=False)
class UnclaimedLocks:
    """The free locks with waiters, with the time since; several threads may use it.

    Attributes:
        table: calls `update` with its changes, in its own thread.
    """

    table: Table
    # A scan holds it throughout, so that no change falls between its reading and its noting.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_since: dict[str, float] = field(default_factory=dict)
    _scanned_at: float = 0.0

    def update(self, changes: Iterable[Transition]) -> None:
        """Apply the table's changes: a lock that was taken counts from its next release."""
        with self._lock:
            for change in changes:
                if change.after is not None and change.after.held:
                    self._free_since.pop(change.name, None)

    def scan(self, now: float) -> None:
        """Scan all queues at the monotonic time `now`; the table must be up to date."""
        with self._lock:
            before = self._free_since
            names = [name for name in self.table.waiters() if not self._is_held(name)]
            self._free_since = {name: before.get(name, now) for name in names}
            self._scanned_at = now

    def _is_held(self, name: str) -> bool:
        row = self.table.row(name)
        return row is not None and row.held

    def clear(self) -> None:
        """Forget all: without the store, no client can take a lock and the table is old."""
        with self._lock:
            self._free_since = {}

    def names(self) -> list[str]:
        """Return the locks that have been free for `NORMAL_HANDOVER_S` in the last scan."""
        return [name for _, name in self._overdue()]

    def _overdue(self) -> list[tuple[float, str]]:
        with self._lock:
            until = self._scanned_at - NORMAL_HANDOVER_S
            return [(since, name) for name, since in self._free_since.items() if since <= until]

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauges of the last scan."""
        now = monotonic()
        found = [(Holder(name), now - since) for since, name in sorted(self._overdue())]
        yield from series(
            "free_with_waiters",
            f"Locks that have been free for {NORMAL_HANDOVER_S:g} s or longer although clients "
            "wait for them.",
            "For how long such a lock has been free, the ones that have been for longest.",
            found,
        )
