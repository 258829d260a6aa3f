"""Freshness: detects a watch that silently stops, and so a table that is out of date.

A watch stream that brings nothing although its keepalive is answered looks like a store in which
nothing happens (etcd-io/etcd #15402, #17529, a frozen member), and answers to progress requests
were seen to overtake events. So the watch must bring a write that is *known* to have happened: an
unlocker's own announcement, once confirmed, or another's that a reader of the store saw.

    freshness.expect(revision, known_at)    # each time when such a write is known
    freshness.escalate()                    # once a second: repairs the watch
    freshness.stale()                       # true: do not trust the table, do not alert or remove

Each step follows only if the one before did not help: reopen the stream, on another member if there
is one; read everything and watch again; the same again; then `failed()`, and the process should be
restarted. A reading proves nothing about the watch: the table stays stale until the watch brings a
change.
"""

from __future__ import annotations

import math
import threading

from lockclient.model.clocks import monotonic
from lockclient.overview.live_table import Table
from lockclient.stores.service_store import ServiceStore
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

LATE = 2.0
"""Seconds for which a watch may be late. With a known write every 3 s, a table that is older than
5 s is always stale."""
READ_AFTER, READ_AGAIN_AFTER = 10.0, 45.0
"""Seconds from the reopened stream to the first reading, and from one reading to the next; so
Prometheus alerts before the process is restarted."""
READINGS = 2
"""Readings after which `failed()` is true; that is after a minute and a half."""


class Freshness:
    """Compares known writes with the table; several threads may use it."""

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._late_after = LATE + 2 * store.poll  # a poll may miss a write that it overlaps
        self._lock = threading.Lock()
        self._proven_at = monotonic()
        # The oldest revision that the table does not show yet, and when it became known. One is
        # enough: the next known write follows within seconds.
        self._waiting: tuple[int, float] | None = None
        self._confirmed_at = -math.inf
        self._followed = 0
        self._steps = 0
        """Number of steps taken: stream reopened, everything read, read again, failed."""
        self._next_at = 0.0

    def expect(self, revision: int, known_at: float) -> None:
        """Expect the watch to show a revision, known to be written at the monotonic `known_at`."""
        with self._lock:
            self._settle()
            self._confirmed_at = monotonic()
            # A lower revision than the expected one: the store was restored, or the unlocker that
            # wrote the higher one is gone with its announcement. Then the higher one never shows.
            if self._waiting is None or revision < self._waiting[0]:
                self._waiting = revision, known_at
                self._settle()

    def verified_at(self) -> float:
        """Return the monotonic time up to which the watch has shown all known writes."""
        with self._lock:
            self._settle()
            # A polled store reports the time of its snapshot itself.
            return max(self._proven_at, self._table.known_at)

    def stale(self) -> bool:
        with self._lock:
            self._settle()
            return self._has_read or self._late() > self._late_after

    def failed(self) -> bool:
        with self._lock:
            self._settle()
            return self._steps > 1 + READINGS

    def escalate(self) -> None:
        with self._lock:
            self._settle()
            late, now = self._late(), monotonic()
            # A reading in progress is a later step already. While no write is confirmed, the store
            # may be the one that is late.
            confirmed = now - self._confirmed_at < READ_AFTER
            if (
                late <= self._late_after
                or now < self._next_at
                or self._table.loading()
                or not confirmed
            ):
                return
            self._steps += 1
            if self._steps > 1 + READINGS:
                return
            reading = self._has_read
            self._next_at = now + (READ_AGAIN_AFTER if reading else READ_AFTER)
        log.warning(
            "For %.0f s the watch has not shown what the store has confirmed: reopening it%s.",
            late,
            ", and everything is read again" if reading else "",
        )
        self._store.reopen_watch()
        if reading:
            self._table.resync()

    @property
    def _has_read(self) -> bool:
        return self._steps > 1

    def _late(self) -> float:
        return 0.0 if self._waiting is None else monotonic() - self._waiting[1]

    def _settle(self) -> None:
        followed = self._table.followed
        if followed != self._followed:
            if self._has_read:
                log.warning("The watch shows changes again.")
            self._followed, self._steps = followed, 0
        if self._waiting is not None and self._table.revision >= self._waiting[0]:
            if not self._has_read:
                self._proven_at = self._waiting[1]
            self._waiting = None
