"""Unclaimed locks: free though clients wait in the queue, and not taken by the queue's head.

A hand-over takes milliseconds, and the ticket of a waiter that died goes within its lease, so this
passes by itself. It does not when the head lives and does not act: a program that is blocked, or
does not follow the protocol. Then all behind it wait in vain, and there is no holder to alert on.

A look at all lines with each sweep, counted by our own monotonic clock. It costs about 1 µs for
each lock that has a line, however long, and is made less often where that adds up. What looks would
miss, that a lock was taken and released between two of them, the table's changes tell. Only what is
unclaimed at the moment is remembered. Who is next in line the table does not know, which counts
lines and keeps none: of those that are shown the store is asked, by a task of its own.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.ticket import Ticket
from lockclient.overview.rows import Transition
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import ServiceStore
from unlocker.metrics.series_limit import (
    HEAD_LABELS,
    MAX_LISTED,
    SeriesLimit,
    unlisted_gauge,
)

NORMAL_HANDOVER_S = 15.0
"""Seconds for which a lock may well be free with a line: the 10 s lease of a dead waiter's ticket,
and what etcd takes to end it."""

_MAX_CPU_SHARE = 0.02
"""The part of a processor's time that looks may take."""
HEADS_INTERVAL_S = 5.0
"""Seconds between two times that the store is asked for heads, for which it may be asked, and for
which a lock must have been free to be asked about: sooner than it is shown, so that the head is
known by which a reading of everything is told to have missed nothing."""
_REQUEST_TIMEOUT_S = 1.0


@dataclass(slots=True)
class _FreeLock:
    """A lock that is free and has a line.

    Attributes:
        since: when it was first seen so.
        head: who was next in line when the store was asked.
        unseen: when everything was read anew: what happened before was not all told. If its head is
            another one by now it was served, and is counted from then.
    """

    since: float
    head: Ticket | None = None
    unseen: float | None = None


@dataclass(eq=False)
class UnclaimedLocks:
    """What is unclaimed and since when, as a scrape shows it; several threads may use it.

    Attributes:
        table: whose changes are handed to `update`, in its own thread.
        store: is asked for the heads of lines.
        labels: says which of them may have series.
    """

    table: Table
    store: ServiceStore
    labels: SeriesLimit
    # Held through a look, so that no change falls between what it reads and what it notes.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: dict[str, _FreeLock] = field(default_factory=dict)
    _loads: int = 0
    _scanned_at: float = 0.0
    _due: float = -math.inf

    def update(self, changes: Iterable[Transition]) -> None:
        """Take in what the table brought: once taken, a lock is counted anew from its release."""
        with self._lock:
            if self._found:
                for change in changes:
                    if change.after is not None and change.after.held:
                        self._found.pop(change.name, None)

    def scan(self, now: float) -> None:
        """Look at all lines at the monotonic moment `now`; what the table shows must be new."""
        if now < self._due:
            return
        began = time.thread_time()
        with self._lock:
            loads, names = self._read()
            unseen, self._loads = loads != self._loads, loads
            before, self._found = self._found, {}
            for name in names:
                known = before.get(name)
                if known is None or (unseen and known.head is None):
                    known = _FreeLock(now)
                elif unseen:
                    known.unseen = now
                self._found[name] = known
            self._scanned_at = now
            self._due = now + (time.thread_time() - began) / _MAX_CPU_SHARE

    def _read(self) -> tuple[int, list[str]]:
        """Return the free locks with waiters, and which of the table's readings that is from."""
        while True:
            loads = self.table.loads
            names = [name for name in self.table.waiters() if not self._is_held(name)]
            if loads == self.table.loads:
                return loads, names

    def _is_held(self, name: str) -> bool:
        row = self.table.row(name)
        return row is not None and row.held

    def refresh_heads(self) -> None:
        """Ask the store who is next in the lines that are shown, or may soon be.

        Raises:
            StoreUnavailable, StoreError: as `ServiceStore.wait_queue`; asked again the next time.
        """
        budget = Deadline.after(HEADS_INTERVAL_S)
        for name, lock in self._free_for(HEADS_INTERVAL_S)[:MAX_LISTED]:
            if budget.expired():
                return
            first = self.store.wait_queue(name, 1, Deadline.after(_REQUEST_TIMEOUT_S)).first
            with self._lock:
                self._note_head(lock, first[0] if first else None)

    @staticmethod
    def _note_head(lock: _FreeLock, head: Ticket | None) -> None:
        served = lock.head is None or head is None or head.revision != lock.head.revision
        if lock.unseen is not None and served:
            lock.since = lock.unseen
        lock.head, lock.unseen = head, None

    def _free_for(self, seconds: float) -> list[tuple[str, _FreeLock]]:
        """Return what has been free for so long, the longest first."""
        with self._lock:
            until = self._scanned_at - seconds
            late = [(name, lock) for name, lock in self._found.items() if lock.since <= until]
        return sorted(late, key=lambda named: named[1].since)

    def clear(self) -> None:
        """Know nothing: while the store is away nobody can claim, and the table's news are old."""
        with self._lock:
            self._found = {}
            self._due = -math.inf

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauges of what the last look found."""
        late = self._free_for(NORMAL_HANDOVER_S)
        yield GaugeMetricFamily(
            "clustermutex_locks_free_with_waiters",
            f"Locks that have been free for {NORMAL_HANDOVER_S:g} s or longer although clients "
            "wait for them.",
            len(late),
        )
        since = GaugeMetricFamily(
            "clustermutex_lock_free_with_waiters_timestamp_seconds",
            f"Since when such a lock has been free, the {MAX_LISTED} that have been for longest.",
            labels=["name"],
        )
        info = InfoMetricFamily(
            "clustermutex_lock_head",
            "The first waiter for such a lock, which does not take it.",
            labels=HEAD_LABELS,
        )
        offset = time.time() - monotonic()
        first = ((lock.head or Ticket(name, ""), lock) for name, lock in late[:MAX_LISTED])
        listed = list(self.labels.admitted(first))
        for labels, lock in listed:
            since.add_metric(labels[:1], lock.since + offset)
            if lock.head is not None:
                info.add_metric(labels, {})
        yield from (since, info)
        yield unlisted_gauge(
            "clustermutex_locks_free_with_waiters_unlisted", len(late) - len(listed)
        )
