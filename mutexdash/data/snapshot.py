"""The snapshot that pages, API and metrics show: immutable, built when a viewer asks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, filterfalse
from math import inf
from operator import attrgetter, is_not
from typing import NamedTuple

from lockclient.model.announcement import failing_recipients
from lockclient.model.holder import OK
from lockclient.model.removal import Removal
from lockclient.overview.columns_and_order import first_of
from lockclient.overview.listed_locks import HEALTHY, Listed, lister
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Row
from mutexdash.data.history import History
from mutexdash.data.list_parameters import WAITERS, Page, Query
from mutexdash.data.waits import Waits

RESTORE_SHOWN_S = 86400.0
"""Time for which pages show, after a restore of the store, that it was restored."""
GONE_SHOWN_S = 6.0
"""Seconds for which the row of a lock that ended is still shown."""
_MAX_GONE = 50
"""At most this many ended locks are shown, the newest."""
_CLOCK_NOISE_S = 1.0
"""Difference of the wall clock and the monotonic clock that counts as none, in seconds."""
_MOVED_SHARE = 1 / 20
"""Up to this share of changed rows, each is put in its place; beyond it all rows are sorted."""

_urgency_of, _until_of = attrgetter("urgency"), attrgetter("until")


class Rows:
    """The rows of all locks. A row is rebuilt only when its lock has changed.

    One thread at a time updates them.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows: dict[str, Row] = {}
        self._queued: set[str] = set()
        self._judged_at = 0.0
        self._shown: dict[str, Listed] = {}
        self._locks: list[Listed] = []
        self.until = inf
        """A time up to which no row changes, if nothing is written."""

    def update(self, waits: Waits, wall: float) -> list[Listed]:
        """Return the rows at a wall-clock time, the most urgent first."""
        listed = lister(self._table, wall, waits.heads, waits.deadlocks)
        queued = {*self._table.waiters(), *waits.heads, *waits.by_lock}
        judged_at, rows, known = self._table.judged_at(wall), self._table.rows(), self._rows
        if judged_at < self._judged_at - _CLOCK_NOISE_S:  # the clock was put back
            known = {}
        # The same as {name for name, row in rows.items() if known.get(name) is not row}, without a
        # step of Python for each of tens of thousands of unchanged rows.
        changed = set(compress(rows, map(is_not, map(known.get, rows), rows.values())))
        new = len(changed - self._shown.keys())
        if len(self._shown) + new > len(rows):  # shown and new exceed the locks: some ended
            changed.update(filterfalse(rows.__contains__, self._shown))
        changed |= queued | self._queued
        if judged_at > self.until:
            changed |= {lock.holder.name for lock in self._locks if judged_at > lock.until}
            self.until = min(
                (lock.until for lock in self._locks if judged_at <= lock.until), default=inf
            )
        self._locks = self._replaced(
            changed, [listed(rows[name]) for name in changed & rows.keys()]
        )
        self._rows, self._queued, self._judged_at = rows, queued, judged_at
        return self._locks

    def count_of(self, names: Collection[str]) -> int:
        return sum(1 for name in names if name in self._rows)

    def _replaced(self, names: Collection[str], fresh: Sequence[Listed]) -> list[Listed]:
        """Return a new list, in which the rows of `names` are the fresh ones."""
        shown, locks = self._shown, self._locks.copy()
        old = [lock for name in names if (lock := shown.pop(name, None)) is not None]
        shown.update((lock.holder.name, lock) for lock in fresh)
        self.until = min(self.until, *map(_until_of, fresh)) if fresh else self.until
        if len(names) > len(locks) * _MOVED_SHARE:
            return sorted(shown.values(), key=_urgency_of)
        for lock in old:
            del locks[bisect_left(locks, lock.urgency, key=_urgency_of)]
        for lock in fresh:
            insort(locks, lock, key=_urgency_of)
        return locks


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that the store says, at `revision`.

    Attributes:
        judged_at, until: wall-clock times between which it is right, unless the store changes.
        locks: those that are held, the most urgent first.
        gone: the rows of locks that ended within `GONE_SHOWN_S`.
        counts: the number of locks by filter (`list_parameters.FILTERS`).
        waiters: the number of waiters of each lock that has some.
        removals: the newest of the `recorded` ones.
        versions: for `locks`, `waits` and `removals` a number that grows with each change.
    """

    revision: int
    judged_at: float
    until: float
    locks: Sequence[Listed]
    gone: Sequence[Listed]
    counts: Mapping[str, int]
    waiters: Mapping[str, int]
    waits: Waits
    removals: Sequence[Removal]
    recorded: int
    unlockers: Mapping[str, str]
    failing: Sequence[str]
    restored_at: float
    versions: Mapping[str, int]

    @classmethod
    def of(
        cls,
        table: Table,
        history: History,
        rows: Rows,
        waits: Waits,
        wall: float,
        before: Snapshot | None,
    ) -> Snapshot:
        """Return the snapshot at a wall-clock time; `before` is an earlier one, if any."""
        # The revision is read before the rows. So the rows may have a change of the next revision,
        # and the next request builds the snapshot again. In the other order that change could be
        # missing until another one comes.
        revision, judged_at = table.revision, table.judged_at(wall)
        waiters, unlockers = table.waiters(), table.unlockers()
        # Before the rows: else a lock that ends now would be in both.
        gone = _gone(history, table, wall)
        locks = rows.update(waits, wall)
        # The most urgent come first, so all locks after `unwell` are `ok` and nothing else.
        unwell = bisect_left(locks, HEALTHY, key=_urgency_of)
        counts = Counter(word for lock in locks[:unwell] for word in lock.status.words)
        counts[OK] += len(locks) - unwell
        counts[WAITERS] = rows.count_of(waiters)
        removals, recorded = table.removals(), table.recorded()
        versions = dict.fromkeys(("locks", "waits", "removals"), 0)
        if before is not None:
            changed = {
                "locks": (before.locks, before.gone, before.waiters) != (locks, gone, waiters),
                "waits": before.waits != waits,
                "removals": (before.removals, before.recorded) != (removals, recorded),
            }
            versions = {part: before.versions[part] + is_new for part, is_new in changed.items()}
        return cls(
            revision=revision,
            judged_at=judged_at,
            until=min(rows.until, *map(_until_of, gone)) if gone else rows.until,
            locks=locks,
            gone=gone,
            counts=counts,
            waiters=waiters,
            waits=waits,
            removals=removals,
            recorded=recorded,
            unlockers=unlockers,
            failing=failing_recipients(unlockers.values()),
            restored_at=table.restored.wall if table.restored else 0.0,
            versions=versions,
        )

    def is_right_at(self, judged_at: float) -> bool:
        """Return whether the snapshot is right at a time, if nothing was written since."""
        return self.judged_at - _CLOCK_NOISE_S <= judged_at <= self.until

    @property
    def waiting(self) -> int:
        return sum(self.waiters.values())

    def on_host(self, hostname: str) -> list[Listed]:
        return [lock for lock in self.locks if lock.holder.hostname == hostname]

    def removed(self, query: Query) -> Page:
        """Return a page of the removals, the newest first."""
        return query.page_of([*filter(query.search.finds_removal, self.removals)])

    def select(self, query: Query, *, ended: bool = False) -> Page:
        """Return a page of the locks.

        With `ended`, locks that have just ended (`gone`) are shown in addition, at the place where
        they sort. They do not count, so no lock moves to another page.
        """
        found, gone = _matching(self.locks, query), _matching(self.gone if ended else (), query)
        start, end = (query.page - 1) * query.per_page, query.page * query.per_page
        first = found[: end + 1] if query.sort == "state" else first_of(found, query.sort, end + 1)
        # One row beyond the page: there the next page begins.
        items, next_page = first[start:end], first[end:]
        if gone and (items or not start):
            # Sort the ended locks in. Then cut off those that belong to the page before or after.
            merged = [*items, *next_page, *gone]
            placed = first_of(merged, query.sort, len(merged))
            begin = placed.index(items[0]) if start else 0
            items = placed[begin : placed.index(next_page[0]) if next_page else None]
        return Page(items, len(found), query.page, query.per_page)


def _gone(history: History, table: Table, wall: float) -> list[Listed]:
    gone: dict[str, Listed] = {}
    for ended in history.ended(wall - GONE_SHOWN_S):
        name = ended.holder.name
        if len(gone) < _MAX_GONE and name not in gone and table.row(name) is None:
            row = Listed.of(ended.holder, ended.at, ended=ended)
            gone[name] = row._replace(until=ended.at + GONE_SHOWN_S)
    return list(gone.values())


def _matching(locks: Sequence[Listed], query: Query) -> Sequence[Listed]:
    if query.state == WAITERS:
        locks = [lock for lock in locks if lock.waiters]
    elif query.state:
        locks = [lock for lock in locks if query.state in lock.status.words]
    if not query.text:
        return locks
    search = query.search
    return [lock for lock in locks if search.holds(lock.holder, lock.text, lock.status.words)]


class DatedSnapshot(NamedTuple):
    """A snapshot with the time of a request, and how old it is.

    Attributes:
        judged_at: the wall-clock time up to which heartbeats are known: locks are judged by it.
        updated_at: the time up to which the snapshot is proven to show all writes.
        outdated_since: `updated_at`, if the store is unreachable or silent; None: the snapshot is
            current.
        silent: the store answers requests, but its watch does not deliver recent writes.
        remarks: `ServiceStore.warnings_for_display`.
    """

    snapshot: Snapshot
    wall: float
    judged_at: float
    updated_at: float
    outdated_since: float | None
    silent: bool
    remarks: Sequence[str] = ()

    @property
    def state(self) -> str:
        """The state of the store: `connected`, `unreachable` or `silent`."""
        if self.outdated_since is None:
            return "connected"
        return "silent" if self.silent else "unreachable"

    @property
    def restored_at(self) -> float:
        """When a restore of the store was detected, Unix seconds; 0: not within a day."""
        last = self.snapshot.restored_at
        return last if self.wall < last + RESTORE_SHOWN_S else 0.0

    def shown(self, *parts: str) -> tuple[object, ...]:
        """Return the input of a page's ETag.

        That is the banners that all pages show, and the versions of these parts of the snapshot.
        """
        snapshot = self.snapshot
        banners = self.state, self.restored_at, snapshot.failing, self.remarks
        versions = [snapshot.versions[part] for part in parts]
        return *banners, len(snapshot.unlockers), *versions
