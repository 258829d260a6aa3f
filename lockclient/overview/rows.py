"""What a picture of all locks is made of: a row for each, and a reading of everything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from lockclient.model.clocks import monotonic
from lockclient.model.holder import STAMPS, SUBKEYS, Found, Holder
from lockclient.model.listed_texts import listed
from lockclient.model.removal import Removal, removed_at
from lockclient.stores.service_protocol import Batch, Change

_STAMPING = frozenset({"uuid", "about", *STAMPS})
MAX_UNLOCKERS = 1000
"""Of which no more are kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """One lock as this process knows it.

    Attributes:
        seen_at: monotonic time at which this process saw the last write of the stamps.
        found: the first reading found them: `seen_at` does not tell when they were written.
    """

    holder: Holder
    seen_at: float
    found: bool

    @property
    def held(self) -> bool:
        """Whether there is a `uuid`, readable or not: without it the lock is free to take."""
        return self.holder.fencing_token != 0


class QueueLength(NamedTuple):
    """The number of waiters for a lock, since the change at `revision`."""

    waiting: int
    revision: int

    def after(self, change: Change) -> QueueLength:
        """Return the length after a ticket's write or deletion; a second write counts nothing."""
        more = -1 if change.value is None else change.created == change.revision
        return QueueLength(max(0, self.waiting + more), change.revision)


NOBODY = QueueLength(0, 0)


@dataclass(frozen=True, slots=True)
class Transition:
    """A lock's row changed: None before it was taken and after it went; `live`: by the watch."""

    name: str
    before: Row | None
    after: Row | None
    live: bool


RecordedRemoval = tuple[Change, Removal]
"""The record of a removal, and the change that told of it, its value aside."""


class NewestRemovals:
    """The newest records of removals, at most `most`, in the store's order.

    `by_time`: by when the locks were removed, as a polled store shows no order.
    """

    def __init__(self, most: int = 0, *, by_time: bool = False) -> None:
        self._most = most
        self._by_time = by_time
        self._kept: dict[tuple[str, str], tuple[float, RecordedRemoval]] = {}
        self._least = -math.inf

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._kept

    def add(self, change: Change) -> Removal | None:
        """Take a record in; return what it says, or None if it is older than all that are kept."""
        name, part, value = change.name, change.part, change.value or b""
        order = (removed_at(value) or 0.0) if self._by_time else change.created
        if order < self._least:
            return None
        removal = Removal.listed(name, part, value)
        self._kept[name, part] = order, (change._replace(value=None), removal)
        # All that is too much goes at once, and not before it is a quarter: that costs little for
        # each of them, in whatever order they come.
        if len(self._kept) > self._most * 5 // 4:
            self.only(self._most)
        return removal

    def only(self, most: int) -> NewestRemovals:
        self._most = most
        if len(self._kept) > most:
            kept = self._sorted()[-most:] if most else []
            self._kept = {(told[0].name, told[0].part): (order, told) for order, told in kept}
            self._least = kept[0][0] if kept else math.inf
        return self

    def forget(self, name: str, part: str) -> None:
        self._kept.pop((name, part), None)

    def oldest_first(self) -> list[RecordedRemoval]:
        return [told for _, told in self._sorted()][-self._most :] if self._most else []

    def _sorted(self) -> list[tuple[float, RecordedRemoval]]:
        return sorted(self._kept.values(), key=itemgetter(0))


class Reading:
    """A reading of everything, put together from its pages, of which nothing else is kept.

    Args:
        known: the rows that there were before.
        found: nothing was read before.
        newest: takes in the removals.
        told: the revision up to which all removals were told; later ones are kept, too.
    """

    def __init__(
        self, known: dict[str, Row], *, found: bool, newest: NewestRemovals, told: int
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.lines: dict[str, QueueLength] = {}
        self.unlockers: dict[str, str] = {}
        self.recorded = 0
        self.went_back = False
        """A lock stands at an earlier revision than before."""
        self.revision = self.term = 0
        self.known_at = -math.inf
        self._found = found
        self._known = known
        self.newest = newest
        self._told = math.inf if found else told
        self._pending: list[RecordedRemoval] = []
        self._arrived = 0.0
        self._lock = ""
        self._values: dict[str, Found] = {}  # of the last lock: more may be on the next page

    def add(self, batch: Batch) -> None:
        self.revision, self.term, self.known_at = batch.revision, batch.term, batch.known_at
        self._arrived = monotonic()
        if batch.changes and batch.changes[0].kind != "locks":  # a page is of one kind
            self.end_lock()
        for change in batch.changes:
            kind, name, part, value, revision, _, version = change
            if kind == "locks":
                if name != self._lock:
                    self.end_lock()
                    self._lock = name
                if part in SUBKEYS:
                    self._values[part] = value, version or revision
            elif kind == "queue":
                known = self.lines.get(name, NOBODY)
                self.lines[name] = QueueLength(known.waiting + 1, max(known.revision, revision))
            elif kind == "unlockers":
                if len(self.unlockers) < MAX_UNLOCKERS:
                    self.unlockers[name] = announcement_text(value or b"")
            elif kind == "removed":
                self._add_removal(change)

    def pending(self) -> list[RecordedRemoval]:
        if self._found:
            return self.newest.oldest_first()
        return sorted(self._pending, key=lambda told: told[0].created)

    def _add_removal(self, change: Change) -> None:
        self.recorded += 1
        removal = self.newest.add(change)
        if change.created > self._told:
            said = removal or Removal.listed(change.name, change.part, change.value or b"")
            self._pending.append((change._replace(value=None), said))

    def end_lock(self) -> None:
        """Finish the last lock: its last page has arrived."""
        name, values, self._values = self._lock, self._values, {}
        if not values:
            return
        # When its last page has arrived, or the one after it, and not when that was asked for:
        # nothing on it was written later.
        row = updated(None, name, values, self._arrived, found=self._found)
        if row is not None:
            self.rows[name] = self._kept(row)

    def _kept(self, row: Row) -> Row:
        known = self._known.get(row.holder.name)
        if known is None:
            return row
        if known.holder == row.holder:
            return known
        self.went_back |= went_back(known.holder, row.holder)
        return replace(row, holder=_remembering(row.holder, known.holder))


def updated(
    row: Row | None, name: str, values: Mapping[str, Found], seen_at: float, *, found: bool
) -> Row | None:
    """Return the row after these subkeys of one lock were written; None if nothing is left."""
    if row is None:
        holder = Holder.read(name, values, backtrace=False)
    else:
        # A store that is looked at tells the uuid with each push: it is no other acquisition.
        holder = _remembering(row.holder.updated(values, backtrace=False), row.holder)
    # Without a uuid nothing else is kept but a hostname, and what is wrong.
    if not holder.fencing_token and holder.hostname is None and not holder.problems:
        return None
    holder = listed(holder)
    if row is not None and _STAMPING.isdisjoint(values):
        return replace(row, holder=holder)
    return Row(holder, seen_at, found)


def differences(before: dict[str, Row], after: dict[str, Row]) -> Iterator[Transition]:
    """Yield the transitions between two readings."""
    for name, row in before.items():
        if name not in after:
            yield Transition(name, row, None, live=False)
    for name, row in after.items():
        if (old := before.get(name)) is not row:
            yield Transition(name, old, row, live=False)


def went_back(before: Holder, after: Holder) -> bool:
    """Tell whether a lock stands at an earlier revision than it did: only a restore does that."""
    if before.uuid != after.uuid:
        return 0 < after.fencing_token < before.fencing_token
    revisions = zip(before.stamp_revisions, after.stamp_revisions, strict=True)
    return any(0 < now < once for once, now in revisions)


def announcement_text(value: bytes) -> str:
    return value[:1000].decode(errors="replace")


def _remembering(holder: Holder, former: Holder) -> Holder:
    """Return the holder with what was seen of `former`, if that is the same acquisition."""
    if (former.uuid, former.fencing_token) != (holder.uuid, holder.fencing_token):
        return holder
    seen = former.about_seen or holder.about_seen
    first = holder.first_distance if former.first_distance is None else former.first_distance
    first = None if seen else first
    if (seen, first) == (holder.about_seen, holder.first_distance):
        return holder
    return replace(holder, about_seen=seen, first_distance=first)
