"""The live state: a new snapshot when somebody looks, and how far it may be believed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lockclient.overview.table import Table
from lockclient.service.supervision import Loop
from mutexdash.data.history import History
from mutexdash.data.snapshot import Rows, Snapshot
from mutexdash.data.staleness import Probe
from mutexdash.data.waits import NO_WAITS, WaiterPoller

RESTORE_SHOWN_S = 86400.0
"""Seconds for which a restore of the store is told."""


class DatedSnapshot(NamedTuple):
    """A snapshot, when a viewer looks at it, and how far it may be believed.

    Attributes:
        judged_at: the time at which locks are judged: not later than what is known of them.
        updated_at: the time up to which the snapshot is proven to show all that was written.
        away_since: `updated_at` if that is too long ago; None if all is well.
        silent: the store answers, and its watch does not bring what it says.
        remarks: `ServiceStore.warnings_for_display`.
    """

    snapshot: Snapshot
    wall: float
    judged_at: float
    updated_at: float
    away_since: float | None
    silent: bool
    remarks: Sequence[str] = ()

    @property
    def state(self) -> str:
        """The state of the store: `here` (reachable), `away` (unreachable) or `silent`."""
        return "here" if self.away_since is None else "silent" if self.silent else "away"

    @property
    def restored_at(self) -> float:
        """When a restore of the store was detected, Unix seconds; 0: not within a day."""
        last = self.snapshot.restored_at
        return last if self.wall < last + RESTORE_SHOWN_S else 0.0

    def shown(self, *parts: str) -> tuple[object, ...]:
        """Return all that every page shows, and the versions of these parts of the snapshot."""
        snapshot = self.snapshot
        banners = self.state, self.restored_at, snapshot.failing, self.remarks
        versions = [snapshot.versions[part] for part in parts]
        return *banners, len(snapshot.unlockers), *versions


class Live:
    """The newest snapshot, made when somebody looks and something has changed.

    Args:
        table: where from; it stays the caller's to start and stop.
        history: what ended lately; it listens to the table.
        probe: knows how old the table's data are; without one, only whether a stream stands is
            known.
        waiting: knows who waits; without one, nobody does.
        clock: the wall clock, for tests.
        rest: for how many times its own building time a snapshot is used at least, so that many
            viewers of many busy locks can't keep the process building all the time.
    """

    def __init__(
        self,
        table: Table,
        history: History | None = None,
        *,
        probe: Probe | None = None,
        waiting: WaiterPoller | None = None,
        clock: Callable[[], float] = time.time,
        rest: float = 2.0,
    ) -> None:
        self.table = table
        self.history = history or History(clock=clock)
        self._probe = probe
        self._waiting = waiting
        self._clock = clock
        self._rest = rest
        self._lock = threading.Lock()
        self._rows = Rows(table)
        self._snapshot: Snapshot | None = None
        self._inputs: object = None
        self._good_until = 0.0
        self._connected_at = clock()
        self._settled = False
        noting = Loop("note of when etcd was there", 1.0, self._note)
        self._loops = [loop for loop in (noting, probe, waiting) if loop is not None]

    def start(self) -> None:
        """Begin to note when the store was there last, even while nobody looks."""
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """End what `start()` began."""
        for loop in self._loops:
            loop.stop()

    def is_live(self) -> str | None:
        """Return what has ended or hangs, a sentence, so that only a new start helps; else None."""
        if why := self.table.down():
            return why
        return next((why for loop in self._loops if (why := loop.trouble())), None)

    def now(self) -> float:
        """Return the time, Unix seconds."""
        return self._clock()

    def updated_at(self) -> float:
        """Return until when what is shown is all that was written (Unix seconds)."""
        if self._probe is not None:
            return self._clock() - self._probe.age()
        if self.table.connected():
            self._connected_at = self._clock()
        return self._connected_at

    def away_since(self) -> float | None:
        """Return when the store was last there (Unix seconds); None if it is there now."""
        updated_at = self.updated_at()
        here = self.table.connected() and not (self._probe and self._probe.age() > self._probe.old)
        return None if here and not self.silent() else updated_at

    def silent(self) -> bool:
        """Tell whether the store answers, and what it says does not come by the watch."""
        return self._probe is not None and self._probe.silent()

    def dated_snapshot(self) -> DatedSnapshot | None:
        """Return what there is to see now; None before everything was read once."""
        if not self.table.ready():
            return None
        wall = self._clock()
        judged_at = self.table.judged_at(wall)
        with self._lock:
            snapshot = self._newest(wall, judged_at)
        remarks = self._probe.remarks() if self._probe is not None else ()
        believed = self.updated_at(), self.away_since(), self.silent()
        return DatedSnapshot(snapshot, wall, judged_at, *believed, remarks)

    def _newest(self, wall: float, judged_at: float) -> Snapshot:
        before, started = self._snapshot, time.monotonic()
        if before is not None and started < self._good_until:
            return before
        waits = self._waiting.waits() if self._waiting is not None else NO_WAITS
        # Read before the snapshot is made, which may be newer than they say.
        # (A store that was restored may come to have a revision that it had before.)
        inputs = self.table.revision, self.table.loads, self.history.version, waits
        if before is not None and inputs == self._inputs and before.is_right_at(judged_at):
            return before
        self._snapshot = Snapshot.of(self.table, self.history, self._rows, waits, wall, before)
        self._inputs = inputs
        ended = time.monotonic()
        self._good_until = ended + self._rest * (ended - started)
        return self._snapshot

    def _note(self) -> None:
        self.updated_at()
        # The first snapshot takes longest: nobody should wait for it.
        if not self._settled and self.dated_snapshot() is not None:
            self._settled = True
            # What there is by now stays, nearly. Looked through for garbage again and again, tens
            # of thousands of locks would have viewers wait; looked through seldom, old snapshots
            # that hang on rendered templates, which are cycles, would pile up.
            gc.collect()
            gc.freeze()
