"""The newest snapshot, built for a viewer's request, and the time up to which it is complete."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

from lockclient.overview.live_table import Table
from lockclient.service.supervision import Loop
from mutexdash.data.data_age import Probe
from mutexdash.data.history import History
from mutexdash.data.snapshot import DatedSnapshot, Rows, Snapshot
from mutexdash.data.waits import NO_WAITS, WaiterPoller


class Live:
    """Builds a snapshot when a viewer asks and something has changed.

    Args:
        table: the caller starts and stops it.
        history: listens to the table.
        probe: measures the age of the table's data. None: the data are current while the watch is
            connected.
        waiting: reads the waiters; None: there are none.
        clock: the wall clock, for tests.
        reuse_factor: a snapshot that took t seconds to build is reused for at least
            `reuse_factor * t` seconds. So building takes at most 1 / (1 + `reuse_factor`) of a
            core.
    """

    def __init__(
        self,
        table: Table,
        history: History | None = None,
        *,
        probe: Probe | None = None,
        waiting: WaiterPoller | None = None,
        clock: Callable[[], float] = time.time,
        reuse_factor: float = 2.0,
    ) -> None:
        self.table = table
        self.history = history or History(clock=clock)
        self._probe = probe
        self._waiting = waiting
        self._clock = clock
        self._reuse_factor = reuse_factor
        self._lock = threading.Lock()
        self._rows = Rows(table)
        self._snapshot: Snapshot | None = None
        self._inputs: object = None
        self._good_until = 0.0
        self._connected_at = clock()
        self._settled = False
        noting = Loop("note of when the store was reachable", 1.0, self._note)
        self._loops = [loop for loop in (noting, probe, waiting) if loop is not None]

    def start(self) -> None:
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()

    def is_live(self) -> str | None:
        """Return a sentence about a thread that has ended or hangs, or None."""
        if why := self.table.down():
            return why
        return next((why for loop in self._loops if (why := loop.trouble())), None)

    def now(self) -> float:
        return self._clock()

    def updated_at(self) -> float:
        """Return the time up to which the table is proven to show all writes (Unix seconds)."""
        if self._probe is not None:
            return self._clock() - self._probe.age()
        if self.table.connected():
            self._connected_at = self._clock()
        return self._connected_at

    def outdated_since(self) -> float | None:
        """Return `updated_at()` if the store is unreachable or silent; None: data are current."""
        updated_at = self.updated_at()
        is_old = self._probe is not None and self._probe.age() > self._probe.old
        is_current = self.table.connected() and not is_old and not self.silent()
        return None if is_current else updated_at

    def silent(self) -> bool:
        return self._probe is not None and self._probe.silent()

    def dated_snapshot(self) -> DatedSnapshot | None:
        """Return the current snapshot; None before everything was read once."""
        if not self.table.ready():
            return None
        wall = self._clock()
        judged_at = self.table.judged_at(wall)
        with self._lock:
            snapshot = self._newest(wall, judged_at)
        remarks = self._probe.remarks() if self._probe is not None else ()
        age = self.updated_at(), self.outdated_since(), self.silent()
        return DatedSnapshot(snapshot, wall, judged_at, *age, remarks)

    def _newest(self, wall: float, judged_at: float) -> Snapshot:
        before, started = self._snapshot, time.monotonic()
        if before is not None and started < self._good_until:
            return before
        waits = self._waiting.waits() if self._waiting is not None else NO_WAITS
        # Read before the snapshot is built, which may be newer. (A restored store may reach a
        # revision that it had before: so `loads` counts, too.)
        inputs = self.table.revision, self.table.loads, self.history.version, waits
        if before is not None and inputs == self._inputs and before.is_right_at(judged_at):
            return before
        self._snapshot = Snapshot.of(self.table, self.history, self._rows, waits, wall, before)
        self._inputs = inputs
        ended = time.monotonic()
        self._good_until = ended + self._reuse_factor * (ended - started)
        return self._snapshot

    def _note(self) -> None:
        self.updated_at()
        # The first snapshot takes longest, so no viewer should wait for it.
        if not self._settled and self.dated_snapshot() is not None:
            self._settled = True
            # Nearly all objects that exist now live as long as the process. `gc.freeze()` excludes
            # them from later collections, which would delay requests. Without a collector, old
            # snapshots would pile up: rendered templates refer to them in reference cycles.
            gc.collect()
            gc.freeze()
