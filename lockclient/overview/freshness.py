"""Whether a table still shows what is written: a watch may fall silent unnoticed.

A silent stream whose keepalive is answered looks just like a store in which nothing happens
(etcd-io/etcd #15402, #17529, a frozen member), and answers to progress requests were seen to
overtake events. So a write that is *known* is to come by the watch: an unlocker's own confirmed
heartbeat, or another's that a reader of the store saw.

    freshness.expect(revision, known_at)    # each time that something is known to be written
    freshness.escalate()                    # once a second: does what there is to do
    freshness.stale()                       # nothing may be believed, alerted on or removed now

Each step is taken only if the one before did not help: reopen the stream, on another member if
there is one; read everything and watch anew; again; then `failed()`, and the process should be
restarted. A reading says nothing of the watch: the table stays stale until the watch has brought
something.
"""

from __future__ import annotations

import math
import threading

from lockclient.model.clocks import monotonic
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import ServiceStore
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

LATE = 2.0
"""Seconds for which a watch may be late. With something to expect every 3 s no table is older than
5 s without being called stale."""
READ_AFTER, READ_AGAIN_AFTER = 10.0, 45.0
"""Seconds from the stream that was opened anew to the first reading, and from one to the next: an
alert by Prometheus is to ring before all is lost."""
READINGS = 2
"""Readings after which `failed()`; a minute and a half has passed then."""


class Freshness:
    """Compares what is known to be written with what a table shows; several threads may use it."""

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._late_after = LATE + 2 * store.poll  # a poll may miss a write of its own time
        self._lock = threading.Lock()
        self._proven_at = monotonic()
        # The oldest revision that is not shown yet, and since when it is known. One is enough: when
        # it is shown, the next comes within seconds.
        self._waiting: tuple[int, float] | None = None
        self._confirmed_at = -math.inf
        self._followed = 0
        self._steps = 0
        """Those taken: the stream reopened, everything read, read again, given up."""
        self._next_at = 0.0

    def expect(self, revision: int, known_at: float) -> None:
        """Take note of a write at this revision, known since then (monotonic)."""
        with self._lock:
            self._settle()
            self._confirmed_at = monotonic()
            # A lower one than the table waits for: the store was restored, or the unlocker that
            # wrote it is gone, its announcement too. Then the higher one never comes.
            if self._waiting is None or revision < self._waiting[0]:
                self._waiting = revision, known_at
                self._settle()

    def verified_at(self) -> float:
        """Return the monotonic time up to which the watch has shown all that is known."""
        with self._lock:
            self._settle()
            # A polled store itself says as of when its snapshot is.
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
            # A reading that is under way is a later step already, however long it takes; and while
            # nothing is confirmed it may be the store that is late.
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
        self._store.renew_watch()
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
