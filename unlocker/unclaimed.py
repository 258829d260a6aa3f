"""Unclaimed locks: free though clients wait in the queue, and not taken by the queue's head.

A hand-over takes milliseconds, and the ticket of a dead waiter goes with its lease, so this passes
by itself. It does not when the head lives and does not act: a program that is blocked, or does not
follow the protocol. Then all waiters behind it wait in vain, and there is no holder to alert on.

Each sweep looks at all queues, and the table's changes tell of a lock that was taken and released
between two looks. The lock's page in the dashboard shows the head.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.model.clocks import monotonic
from lockclient.model.holder import Holder
from lockclient.overview.rows import Transition
from lockclient.overview.table import Table
from unlocker.metrics.series import series

NORMAL_HANDOVER_S = 15.0
"""Seconds for which a lock may well be free with a queue: the 10 s lease of a dead waiter's ticket,
and what etcd takes to end it."""


@dataclass(eq=False)
class UnclaimedLocks:
    """The free locks with waiters, and since when; several threads may use it.

    Attributes:
        table: calls `update` with its changes, in its own thread.
    """

    table: Table
    # Held through a scan, so that no change falls between what it reads and what it notes.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_since: dict[str, float] = field(default_factory=dict)
    _scanned_at: float = 0.0

    def update(self, changes: Iterable[Transition]) -> None:
        """Take in the table's changes: a lock that was taken counts from its next release."""
        with self._lock:
            for change in changes:
                if change.after is not None and change.after.held:
                    self._free_since.pop(change.name, None)

    def scan(self, now: float) -> None:
        """Look at all queues at the monotonic time `now`; the table must be up to date."""
        with self._lock:
            before = self._free_since
            names = [name for name in self.table.waiters() if not self._is_held(name)]
            self._free_since = {name: before.get(name, now) for name in names}
            self._scanned_at = now

    def _is_held(self, name: str) -> bool:
        row = self.table.row(name)
        return row is not None and row.held

    def clear(self) -> None:
        """Forget all: while the store is unreachable nobody can claim, and the table is old."""
        with self._lock:
            self._free_since = {}

    def names(self) -> list[str]:
        """Return the locks that have been free for `NORMAL_HANDOVER_S` in the last scan."""
        return [name for _, name in self._late()]

    def _late(self) -> list[tuple[float, str]]:
        with self._lock:
            until = self._scanned_at - NORMAL_HANDOVER_S
            return [(since, name) for name, since in self._free_since.items() if since <= until]

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauges of the last scan."""
        late = self._late()
        offset = time.time() - monotonic()
        found = [(Holder(name), since + offset) for since, name in sorted(late)]
        yield GaugeMetricFamily(
            "clustermutex_locks_free_with_waiters",
            f"Locks that have been free for {NORMAL_HANDOVER_S:g} s or longer although clients "
            "wait for them.",
            len(found),
        )
        yield from series(
            "free_with_waiters",
            "Since when such a lock has been free, the ones that have been for longest.",
            found,
        )
