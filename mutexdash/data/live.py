"""The live state: a new picture when somebody looks, who waits, and how far it may be believed."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from lockclient.overview.table import Table
from lockclient.service.supervision import Loop
from mutexdash.data.history import History
from mutexdash.data.picture import GONE_SHOWN_S, Picture, Snapshot
from mutexdash.data.staleness import Probe
from mutexdash.data.waiters import NO_WAITS, WaiterPoller, Waits

RESTORE_SHOWN_S = 86400.0
"""Seconds for which a restore of the store is told."""


class Moment(NamedTuple):
    """A picture, when it is looked at, and how far it may be believed.

    `judged_at` is of when the locks' states are: not later than what is known of their silence.
    `updated_at` is until when it shows all that is written, as far as that is proven. `away_since`
    is the same where that is too long ago, and None where all is well; `silent` tells that the
    store is there then, and that the watch does not bring what it says. `waits` is who waits for
    what, a few seconds old at most; `remarks` is what the store says besides.
    """

    picture: Picture
    wall: float
    judged_at: float
    updated_at: float
    away_since: float | None
    silent: bool
    waits: Waits = NO_WAITS
    remarks: Sequence[str] = ()

    @property
    def state(self) -> str:
        """How the store and we are: `here`, `away` or `silent`."""
        return "here" if self.away_since is None else "silent" if self.silent else "away"

    def etag(self) -> str:
        """Name what a list of locks or removals shows at this moment."""
        restored = f"-{self.restored_at:.0f}" if self.restored_at else ""
        circles = [deadlock.names for deadlock in self.waits.deadlocks]
        told = circles, self.remarks, self.picture.snapshot.failing
        digest = blake2b(repr(told).encode(errors="replace"), digest_size=6).hexdigest()
        return f"{self.picture.tag}-{self.state}{restored}{f'-{digest}' if any(told) else ''}"

    @property
    def restored_at(self) -> float:
        """When a restore of the store was detected, Unix seconds; 0: not within a day."""
        last = self.picture.snapshot.restored_at
        return last if self.wall < last + RESTORE_SHOWN_S else 0.0


class Live:
    """The newest picture, made when somebody looks and something has changed.

    Args:
        table: where from; it stays the caller's to start and stop.
        history: what ended lately; it listens to the table.
        probe: knows how old the table's picture is; without one, only whether a stream stands is
            known.
        waiting: knows who waits; without one, nobody does.
        clock: the wall clock, for tests.
        rest: how many times as long as it took to make a picture is good at least, so that many
            viewers of many busy locks can't keep the process making pictures all the time.
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
        self._picture: Picture | None = None
        self._shown: object = None
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

    def moment(self) -> Moment | None:
        """Return what there is to see now; None before everything was read once."""
        if not self.table.ready():
            return None
        with self._lock:
            waits = self._waiting.waits() if self._waiting is not None else NO_WAITS
            wall = self._clock()
            # Before the picture is made, which shows all pushes up to that moment, or more.
            judged_at = self.table.judged_at(wall)
            picture = self._newest(judged_at, waits)
        remarks = self._probe.remarks() if self._probe is not None else ()
        believed = self.updated_at(), self.away_since(), self.silent()
        return Moment(picture, wall, judged_at, *believed, waits, remarks)

    def _newest(self, wall: float, waits: Waits) -> Picture:
        picture, started = self._picture, time.monotonic()
        if picture is not None and started < self._good_until:
            return picture
        # Read before what they count: see `Snapshot.of`.
        # (A store that was restored may come to have a revision that it had before.)
        shown = (
            self.table.revision,
            self.table.loads,
            self.history.version,
            waits.heads,
            waits.knotted,
        )
        if picture is not None and shown == self._shown and picture.good(wall):
            return picture
        ended = self.history.ended(wall - GONE_SHOWN_S)
        self._picture = None  # should the new one fail, nothing is made of half a picture
        picture = self._picture = Picture(Snapshot.of(self.table, waits), wall, ended, picture)
        self._shown = shown
        ended_at = time.monotonic()
        self._good_until = ended_at + self._rest * (ended_at - started)
        return picture

    def _note(self) -> None:
        self.updated_at()
        # The first picture takes longest: nobody should wait for it.
        if not self._settled and self.moment() is not None:
            self._settled = True
            # What there is by now stays, nearly. Looked through for garbage again and again, tens
            # of thousands of locks would have viewers wait; looked through seldom, old pictures
            # that hang on rendered templates, which are cycles, would pile up.
            gc.collect()
            gc.freeze()
