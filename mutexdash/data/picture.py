"""The picture that pages and API show: all locks at a time, immutable, made from the table.

A `Snapshot` is what the store holds at a revision. What it means depends on the clock as well: a
lock goes past its alert without anything being written. A `Picture` is a snapshot at a time, good
until the next stamp passes. All that it shows is summed up in its ETag, times that the page counts
on by itself aside: the same in every process, so that a viewer may ask any of several dashboards.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from math import inf
from operator import attrgetter

from lockclient.model.announcement import failing_recipients
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.rows import Row
from lockclient.overview.table import Table
from lockclient.overview.verdict import VERDICTS, Standing
from mutexdash.data.order import select, urgency_of
from mutexdash.data.query import Page, Query
from mutexdash.data.rows import Ended, Held
from mutexdash.data.waiters import NO_WAITS, Waits

GONE_SHOWN_S = 6.0
"""Seconds for which a row that went is still shown."""
_MAX_GONE = 50
"""How many of them at most: where hundreds come and go in a second, nobody reads them."""

_mark_of = attrgetter("mark")
_standing_of = attrgetter("standing")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that the store says, at `revision`, which is that of the last change shown.

    `rows` is for the picture that is made of it, and is emptied when the next one has been made.
    `removals` are the newest of the `recorded` ones.
    """

    rows: dict[str, Row]
    waiters: Mapping[str, int]
    unlockers: Mapping[str, str]
    removals: Sequence[Removal]
    recorded: int
    revision: int
    restored_at: float = 0.0
    heads: Mapping[str, Ticket] = field(default_factory=dict)
    knotted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: Table, waits: Waits = NO_WAITS) -> Snapshot:
        """Copy the table; `waits` is what is known of its queues."""
        # The revision comes first: should a change get in between, the copy is newer than it
        # says, and is made again when somebody asks next. The other way round it would stay old.
        revision = table.revision
        return cls(
            table.rows(),
            table.waiters(),
            table.unlockers(),
            table.removals(),
            table.recorded(),
            revision,
            table.restored_at,
            waits.heads,
            waits.knotted,
        )

    @cached_property
    def failing(self) -> list[str]:
        """The names of recipients of notifications that fail."""
        return failing_recipients(self.unlockers.values())

    def digest(self) -> bytes:
        """Name all that is shown beside the locks themselves."""
        removals = [
            (removal.holder.name, removal.holder.uuid, removal.removed_at)
            for removal in self.removals
        ]
        shown = (sorted(self.waiters.items()), sorted(self.unlockers), removals, self.recorded)
        return repr(shown).encode(errors="replace")

    def removed(self, query: Query) -> Page:
        """Return a page of the removals, the newest first."""
        search = query.search
        found = [removal for removal in self.removals if search.finds_removal(removal)]
        start = (query.page - 1) * query.per_page
        return Page(found[start : start + query.per_page], len(found), query.page, query.per_page)


class Picture:
    """A snapshot at a time, every lock with its state.

    Made from the picture before it, so that a change costs as much as it changes, nearly, and not
    as much as there is: tens of thousands of locks, of which one was pushed.

    Args:
        snapshot: what there is.
        wall: of when the locks' states are, Unix seconds.
        ended: what ended lately, the newest first; shown for `GONE_SHOWN_S` seconds.
        before: an earlier picture, of which every row is taken over that is still the same.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        wall: float,
        ended: Iterable[Ended] = (),
        before: Picture | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._since, self._until = -inf, inf
        self._known: dict[str, Held] = {}
        self._order: list[Held] = []
        self._total = 0
        self._counts: Counter[Standing] = Counter()
        if before is None or len(changed := self._changed(before, wall)) > len(snapshot.rows) / 20:
            self._rebuild(wall)
        else:
            self._update(before, changed, wall)
        self._waited = len(snapshot.waiters.keys() & self._known.keys())
        self._gone = self._recently_ended(ended, wall)
        if before is not None:  # see `_update`
            before.snapshot.rows.clear()
            before._known = {}
        self.counts: Mapping[str, int] = {
            word: sum(count for stands, count in self._counts.items() if word in stands.words)
            for word in VERDICTS
        }
        self._tag = self._compute_etag()

    def _rebuild(self, wall: float) -> None:
        for name, row in self.snapshot.rows.items():
            held = self._known[name] = self._held(name, row, wall)
            self._narrow_validity(held)
        self._order = sorted(self._known.values(), key=urgency_of)
        self._counts = Counter(map(_standing_of, self._order))
        # A sum, because the order in which the table holds the rows says nothing.
        self._total = sum(map(_mark_of, self._order))

    def _held(self, name: str, row: Row, wall: float) -> Held:
        waiters, head = self.snapshot.waiters.get(name, 0), self.snapshot.heads.get(name)
        knotted = name in self.snapshot.knotted
        return Held.of(row.holder, waiters, wall, head=head, deadlock=knotted)

    def _changed(self, before: Picture, wall: float) -> set[str]:
        """Return the names of the locks that are not what they were in the picture before."""
        old, new = before.snapshot, self.snapshot
        # A row never changes: the same one says the same.
        changed = {name for name, row in new.rows.items() if old.rows.get(name) is not row}
        changed |= old.rows.keys() - new.rows.keys()
        for was, now in ((old.waiters, new.waiters), (old.heads, new.heads)):
            if was is not now and was != now:
                lines = was.keys() | now.keys()
                changed |= {name for name in lines if was.get(name) != now.get(name)}
        changed |= (old.knotted ^ new.knotted) & new.rows.keys()
        if not before.good(wall):
            held = before._known.items()
            changed |= {name for name, row in held if not row.since < wall <= row.until}
        return changed

    def _update(self, before: Picture, changed: set[str], wall: float) -> None:
        # What only the next picture needs goes on to it: where viewers come at all times, many
        # pictures are still in use, and each would have large tables of its own.
        self._known, before._known = before._known, {}
        self._order = list(before._order)
        self._total, self._counts = before._total, before._counts.copy()
        if before.good(wall):
            # May be too narrow by now, because of rows that have changed: then a look that would
            # not have been necessary finds the right ones.
            self._since, self._until = before._since, before._until
        for name in changed:
            if (old := self._known.pop(name, None)) is not None:
                del self._order[bisect_left(self._order, urgency_of(old), key=urgency_of)]
                self._total -= old.mark
                self._counts[old.standing] -= 1
            if (row := self.snapshot.rows.get(name)) is not None:
                held = self._known[name] = self._held(name, row, wall)
                insort(self._order, held, key=urgency_of)
                self._total += held.mark
                self._counts[held.standing] += 1
                self._narrow_validity(held)
        if not before.good(wall):
            for held in self._order:
                self._narrow_validity(held)

    def _narrow_validity(self, held: Held) -> None:
        """See to it that the picture is not good for longer than one of its rows."""
        if held.until < self._until:
            self._until = held.until
        if held.since > self._since:
            self._since = held.since

    def _recently_ended(self, ended: Iterable[Ended], wall: float) -> list[Held]:
        gone: dict[str, Held] = {}
        for holding in ended:
            name = holding.holder.name
            # Not where somebody else has it by now: the row shows that, which matters more.
            if name in gone or name in self._known or holding.at + GONE_SHOWN_S < wall:
                continue
            gone[name] = Held.of(holding.holder, 0, holding.at, holding)
            self._until = min(self._until, holding.at + GONE_SHOWN_S)
            if len(gone) == _MAX_GONE:
                break
        return list(gone.values())

    def _compute_etag(self) -> str:
        total = self._total + sum(map(_mark_of, self._gone))
        content = b"%d %d %b" % (len(self._order), total, self.snapshot.digest())
        return blake2b(content, digest_size=12).hexdigest()

    def good(self, wall: float) -> bool:
        """Tell whether all states are still the same at `wall`, if nothing was written."""
        return self._since < wall <= self._until

    @property
    def tag(self) -> str:
        """Name what is shown."""
        return self._tag

    @property
    def held(self) -> int:
        """How many locks are held, broken ones included."""
        return len(self._order)

    @property
    def waited(self) -> int:
        """How many locks somebody waits for."""
        return self._waited

    @property
    def waiting(self) -> int:
        """How many clients wait for a lock."""
        return sum(self.snapshot.waiters.values())

    @property
    def in_order(self) -> Sequence[Held]:
        """All locks that are held, the most urgent first."""
        return self._order

    def on_host(self, hostname: str) -> list[Held]:
        """Return the locks that a host holds, the most urgent first."""
        return [held for held in self._order if held.holder.hostname == hostname]

    def select(self, query: Query, *, ended: bool = False) -> Page:
        """Return the page of locks that was asked for, with `ended` also those that just went."""
        return select(self._order, query, self._gone if ended else ())
