"""From the table to what pages and API show: one immutable picture of all locks at a time.

A `Snapshot` is what the store holds at a revision. What it means depends on the clock as well: a
lock goes past its alert without anything being written. `Snapshot.phase()` counts how many stamps
have passed; a `Picture` is a snapshot in one phase. Revision, phase and whether the store is there
say together all that a list shows, times that the page counts on by itself aside: its ETag.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from lockclient.record import STATES, Holder, Removal
from lockclient.table import Row, Table
from mutexdash.query import SORTS, Held, Page, Query


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that the store says, at `revision`, which is that of the last change shown."""

    rows: Mapping[str, Row]
    waiters: Mapping[str, int]
    unlockers: Mapping[str, str]
    removals: Sequence[Removal]
    revision: int

    @classmethod
    def of(cls, table: Table) -> Snapshot:
        """Copy the table."""
        # The revision comes first: should a change get in between, the copy is newer than it
        # says, and is made again when somebody asks next. The other way round it would stay old.
        revision = table.revision
        return cls(table.rows(), table.waiters(), table.unlockers(), table.removals(), revision)

    def shows_the_same(self, other: Snapshot) -> bool:
        """Tell whether nothing but the revision differs, as after an unlocker's sign of life."""
        return (
            self.rows == other.rows  # quick: rows that have not changed are the same objects
            and self.waiters == other.waiters
            and self.unlockers.keys() == other.unlockers.keys()
            and self.removals == other.removals
        )

    @cached_property
    def digest(self) -> str:
        """Tell this content from that of the same revision of another store, rebuilt perhaps."""
        uuids = sorted(row.holder.uuid or "" for row in self.rows.values())
        return blake2b("|".join(uuids).encode(errors="replace"), digest_size=8).hexdigest()

    @cached_property
    def _stamps(self) -> list[float]:
        holders = [row.holder for row in self.rows.values()]
        stamps = [at for each in holders for at in (each.alert_at, each.auto_unlock_at)]
        return sorted(at for at in stamps if at is not None)

    def phase(self, wall: float) -> int:
        """Count the stamps that have passed: while it stays the same, so do all states."""
        return bisect_left(self._stamps, wall)

    @cached_property
    def texts(self) -> dict[str, str]:
        """What a search looks at, by name of the lock."""
        return {name: _searchable(row.holder) for name, row in self.rows.items()}

    def removed(self, query: Query) -> Page:
        """Return a page of the removals, the newest first."""
        found = self.removals
        if query.words:
            found = [each for each in found if _has(query.words, _removal_text(each))]
        return _page(found, query)


class Picture:
    """A snapshot in one phase: every lock has its state."""

    def __init__(self, snapshot: Snapshot, wall: float) -> None:
        self.snapshot = snapshot
        self.phase = snapshot.phase(wall)
        waiters = snapshot.waiters
        self._locks = [
            Held(row.holder, row.holder.state(wall), waiters.get(name, 0))
            for name, row in sorted(snapshot.rows.items())
        ]
        counts = Counter(held.state for held in self._locks)
        self.counts: Mapping[str, int] = {state: counts[state] for state in STATES}
        self._orders: dict[str, Sequence[Held]] = {}

    @property
    def held(self) -> int:
        """How many locks are held, broken ones included."""
        return len(self._locks)

    @property
    def waiting(self) -> int:
        """How many clients wait for a lock."""
        return sum(self.snapshot.waiters.values())

    def select(self, query: Query) -> Page:
        """Return the page of locks that was asked for."""
        found = self._ordered(query.sort)
        if query.state:
            found = [held for held in found if held.state == query.state]
        if query.words:
            texts = self.snapshot.texts
            found = [held for held in found if _has(query.words, texts[held.holder.name])]
        return _page(found, query)

    def _ordered(self, sort: str) -> Sequence[Held]:
        # Kept, so that 200 viewers of one picture sort it once.
        if sort not in self._orders:
            key = SORTS[sort.lstrip("-")]
            known = [held for held in self._locks if key(held) is not None]
            known.sort(key=key, reverse=sort.startswith("-"))
            self._orders[sort] = known + [held for held in self._locks if key(held) is None]
        return self._orders[sort]


class Moment(NamedTuple):
    """A picture, when it is looked at, and since when the store is away (None: it is not)."""

    picture: Picture
    wall: float
    away_since: float | None

    def etag(self) -> str:
        """Name what a list of locks or removals shows at this moment."""
        snapshot = self.picture.snapshot
        away = "away" if self.away_since else "here"
        return f"{snapshot.revision}-{self.picture.phase}-{away}-{snapshot.digest}"


class Live:
    """The newest picture, made when somebody looks and something has changed.

    Args:
        table: where from; it stays the caller's to start and stop.
        clock: the wall clock, for tests.
        rest: how many times as long as it took to make a picture is good at least, so that many
            viewers of many busy locks can't keep the process making pictures all the time.
    """

    def __init__(
        self, table: Table, *, clock: Callable[[], float] = time.time, rest: float = 2.0
    ) -> None:
        self.table = table
        self._clock = clock
        self._rest = rest
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._revision = -1
        self._good_until = 0.0
        self._connected_at = clock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to note when the store was there last, even while nobody looks."""
        threading.Thread(target=self._note, name="mutexdash-note", daemon=True).start()

    def stop(self) -> None:
        """End what `start()` began."""
        self._stopping.set()

    def away_since(self) -> float | None:
        """Return when the store was last there (Unix seconds); None if it is there now."""
        if self.table.connected():
            self._connected_at = self._clock()
            return None
        return self._connected_at

    def moment(self) -> Moment | None:
        """Return what there is to see now; None before everything was read once."""
        if not self.table.ready():
            return None
        with self._lock:
            wall = self._clock()
            picture = self._newest(wall)
        return Moment(picture, wall, self.away_since())

    def _newest(self, wall: float) -> Picture:
        picture, started = self._picture, time.monotonic()
        if picture is not None and started < self._good_until:
            return picture
        snapshot = None if picture is None else picture.snapshot
        if snapshot is None or self.table.revision != self._revision:
            fresh = Snapshot.of(self.table)
            self._revision = fresh.revision
            if snapshot is None or not snapshot.shows_the_same(fresh):
                snapshot = fresh
        if picture is None or (picture.snapshot, picture.phase) != (snapshot, snapshot.phase(wall)):
            picture = self._picture = Picture(snapshot, wall)
            ended = time.monotonic()
            self._good_until = ended + self._rest * (ended - started)
        return picture

    def _note(self) -> None:
        while not self._stopping.wait(1):
            self.away_since()


def _page(found: Sequence[Any], query: Query) -> Page:
    start = (query.page - 1) * query.per_page
    return Page(found[start : start + query.per_page], len(found), query.page, query.per_page)


def _searchable(holder: Holder) -> str:
    return "\n".join((holder.name, holder.hostname or "", holder.reason or "")).casefold()


def _removal_text(removal: Removal) -> str:
    own = "\n".join((removal.removed_by, removal.how, removal.why)).casefold()
    return f"{_searchable(removal.holder)}\n{own}"


def _has(words: Sequence[str], text: str) -> bool:
    return all(word in text for word in words)
