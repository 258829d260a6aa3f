"""The search for locks, removals and waiters, in command and dashboard alike.

    bill-3                  in name, host, reason, owner, labels; the pid, a uuid's beginning
    host:bill-3             in one field: host, lock, reason, owner, label (`label:env=prod`)
    state:overdue           in this state, or one that begins so; or `deadlock`, `held-too-long`
    -host:bill-3 -retry     not that
    reason:"second attempt" a text with blanks

All of them must hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_status import VERDICTS
from lockclient.text.escaping import shown_name

_TYPED: Final = re.compile(r'-?(?:\w+:)?"[^"]*"?|\S+')
_TERM: Final = re.compile("(-?)(?:(host|lock|reason|owner|label|state):)?(.*)", re.DOTALL)
_MIN_UUID_CHARS: Final = 4
"""Fewer characters begin the uuids of very many locks."""
_FIELDS: Final[dict[str, Callable[[Holder], str | None]]] = {
    "host": lambda holder: holder.hostname,
    "lock": lambda holder: holder.name,
    "reason": lambda holder: holder.reason,
    "owner": lambda holder: holder.owner,
    "label": lambda holder: "\n".join(_labels(holder)),
}


def searchable(holder: Holder) -> str:
    """Return the text in which a word without a field is searched for."""
    name = holder.name if holder.name.isascii() else f"{holder.name}\n{shown_name(holder.name)}"
    texts = (holder.hostname, holder.reason, holder.owner, holder.user, holder.container)
    return "\n".join((name, *filter(None, texts), *_labels(holder))).casefold()


def _labels(holder: Holder) -> Iterator[str]:
    for labels in (holder.labels, holder.context):
        yield from (f"{name}={text}" for name, text in (labels or {}).items())


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that is searched for: `word` (small letters) in `field`, or, if empty, anywhere."""

    word: str
    field: str = ""
    is_excluded: bool = False

    def holds(self, holder: Holder, text: str, states: Collection[str]) -> bool:
        return self._found(holder, text, states) != self.is_excluded

    def _found(self, holder: Holder, text: str, states: Collection[str]) -> bool:
        word = self.word
        if self.field == "state":
            return any(state.startswith(word) for state in states)
        if self.field:
            return word in (_FIELDS[self.field](holder) or "").casefold()
        is_id = word == str(holder.pid) or (
            len(word) >= _MIN_UUID_CHARS and (holder.uuid or "").lower().startswith(word)
        )
        return is_id or word in text


@dataclass(frozen=True, slots=True)
class Search:
    """All that is searched for; nothing finds everything."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def read(cls, text: str) -> Search:
        """Read what a person typed; whatever it is, it means something."""
        return cls.of(_TYPED.findall(text))

    @classmethod
    def of(cls, words: Iterable[str]) -> Search:
        """Read words that a shell has split: blanks inside a word are a part of it."""
        found = [_TERM.fullmatch(word.casefold()) for word in words]
        terms = [Term(term[3].strip('"'), term[2] or "", bool(term[1])) for term in found if term]
        return cls(tuple(term for term in terms if term.word))  # `host:` has no word yet

    def check(self) -> None:
        """Raise a ValueError for an unknown state: its list would be empty."""
        for term in self.terms:
            if term.field == "state" and not any(word.startswith(term.word) for word in VERDICTS):
                raise ValueError(f"No state is {term.word!r}: there are {', '.join(VERDICTS)}.")

    def finds(self, holder: Holder, *states: str, also: str = "") -> bool:
        """Tell whether all of it is so for a holder in these `states`, with `also` as more text."""
        return self.holds(holder, searchable(holder) + also.casefold(), states)

    def holds(self, holder: Holder, text: str, states: Collection[str]) -> bool:
        return all(term.holds(holder, text, states) for term in self.terms)

    def finds_removal(self, removal: Removal) -> bool:
        """Tell whether all of it is so for a removal: `how` is its state."""
        also = f"\n{removal.removed_by}\n{removal.how}\n{removal.why}"
        return self.finds(removal.holder, removal.how, also=also)

    def finds_ticket(self, ticket: Ticket) -> bool:
        waits = Holder(ticket.name, ticket.uuid, ticket.hostname, ticket.pid, reason=ticket.reason)
        return self.finds(waits)
