"""Rows of a table, one for each lock, and the transitions between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lockclient.model.cut_texts import listed
from lockclient.model.holder import STAMPS, Found, Holder

_STAMPING = frozenset({"uuid", "about", *STAMPS})


@dataclass(frozen=True, slots=True)
class Row:
    """One lock as this process knows it.

    Attributes:
        holder: the lock's facts.
        seen_at: monotonic time at which this process saw the last write of the stamps.
        found: the stamps were there at the first reading, so `seen_at` is later than their write.
    """

    holder: Holder
    seen_at: float
    found: bool

    @property
    def held(self) -> bool:
        """True if there is a `uuid`, readable or not: without one the lock is free."""
        return self.holder.fencing_token != 0


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a lock's row; None: the lock was free. `live`: the watch brought it."""

    name: str
    before: Row | None
    after: Row | None
    live: bool


def updated(
    row: Row | None, name: str, values: Mapping[str, Found], seen_at: float, *, found: bool
) -> Row | None:
    """Return the row after these subkeys of a lock were written; None: nothing is left."""
    if row is None:
        holder = Holder.read(name, values, backtrace=False)
    else:
        # A polled store reports the uuid with each heartbeat: it is the same acquisition.
        holder = remembering(row.holder.updated(values, backtrace=False), row.holder)
    # Without a uuid, only a hostname and problems are kept.
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
    """Return whether a lock has an earlier revision than before: only a restore does that."""
    if before.uuid != after.uuid:
        return 0 < after.fencing_token < before.fencing_token
    revisions = zip(before.stamp_revisions, after.stamp_revisions, strict=True)
    return any(0 < now < once for once, now in revisions)


def remembering(holder: Holder, former: Holder) -> Holder:
    """Return the holder with what was learned from `former`, if it is the same acquisition."""
    if (former.uuid, former.fencing_token) != (holder.uuid, holder.fencing_token):
        return holder
    seen = former.about_seen or holder.about_seen
    first = holder.first_distance if former.first_distance is None else former.first_distance
    first = None if seen else first
    if (seen, first) == (holder.about_seen, holder.first_distance):
        return holder
    return replace(holder, about_seen=seen, first_distance=first)
