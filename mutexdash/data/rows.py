"""Rows of the lists: a lock as it is shown, computed once and kept while nothing changes."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from lockclient.model.holder import ALIVE_AT, FACTS, Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.model.ticket import Ticket
from lockclient.overview.columns import Urgency, urgency
from lockclient.overview.search import searchable
from lockclient.overview.verdict import Standing, standing

RELEASED: Final = "released"

_DONE: Final = {
    RELEASED: "Released",
    AUTO_UNLOCK: "Auto-unlocked",
    FORCE_UNLOCK: "Force-unlocked",
}
_WRITTEN: Final = [fact.name for fact in FACTS if fact.in_json and fact.listed and fact != ALIVE_AT]
_SHOWN: Final = attrgetter(*_WRITTEN, "problems")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a holder's time with a lock ended, as this dashboard saw it.

    Attributes:
        holder: who had it.
        at: when, Unix seconds on this machine's clock; at the latest then, if not `exact`: it
            went while nobody looked.
        how: `released`, or what the removal's record says, `auto-unlock` or `force-unlock`.
        by, why: of the removal's record.
    """

    holder: Holder
    at: float
    how: str = RELEASED
    by: str = ""
    why: str = ""
    exact: bool = True

    @property
    def text(self) -> str:
        """Say it in a few words."""
        by = f" by {self.by}" if self.by else ""
        why = f": {self.why}" if self.why else ""
        return f"{_DONE.get(self.how, self.how)}{by}{why}"


class Held(NamedTuple):
    """One lock as a list shows it; tens of thousands are made and looked through at a time.

    Attributes:
        standing: is so while `since < now <= until` (Unix seconds).
        ended: None as long as it is held.
        urgency: what the most urgent lock has least of.
        waits_since: when the one who waits longest came (Unix seconds, on its own clock), if known.
        text: what a search looks at.
        mark: names all that is shown of it, the same in every process.
    """

    holder: Holder
    standing: Standing
    waiters: int
    since: float
    until: float
    urgency: Urgency
    text: str
    mark: int
    ended: Ended | None = None
    waits_since: float | None = None

    @property
    def state(self) -> str:
        """Its state."""
        return self.standing.state

    @property
    def key(self) -> str:
        """Tell this row from all others, also from another holder's of the same lock."""
        return f"{self.holder.name} {self.holder.uuid}"

    @classmethod
    def of(
        cls, holder: Holder, waiters: int, wall: float, ended: Ended | None = None,
        head: Ticket | None = None, *, deadlock: bool = False,
    ) -> Held:  # fmt: skip
        """Return a lock as it is shown at the wall-clock time `wall`; `head` is of `WaitQueues`."""
        stands = standing(holder, wall, deadlock=deadlock)
        since, until = -inf, inf
        for stamp in (holder.alert_at, holder.auto_unlock_at, holder.too_long_at):
            if stamp is not None:
                since, until = (stamp, until) if stamp < wall else (since, min(until, stamp))
        how = ended and (ended.how, ended.by, ended.why)
        waits_since = None if head is None else head.since
        order, text = urgency(holder, stands, waiters, head), searchable(holder)
        # With its place in the order, which a queue can move that is as long as it was.
        told = _SHOWN(holder), stands.words, waiters, how, order, waits_since
        shown = repr(told).encode(errors="replace")
        mark = int.from_bytes(blake2b(shown, digest_size=7).digest(), "big")
        return cls(holder, stands, waiters, since, until, order, text, mark, ended, waits_since)
