"""What people search for: words, and words of one field, in command and dashboard alike.

    bill-3                  somewhere in name, host or reason; or the pid, or a uuid's beginning
    host:bill-3             in the host's name; so lock:, reason: and owner:
    label:env=prod          among the holder's labels, and what it was taken for this time
    state:overdue           in this state, or one that begins so; or `deadlock`, `held-too-long`
    -host:bill-3 -retry     not that
    reason:"second attempt" a text with blanks

All of them must hold. A word with another colon in it is a word like any other, which is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.verdict import VERDICTS
from lockclient.text.escaping import shown_name

_HEAD: Final = "(-?)(?:(host|state|lock|reason|owner|label):)?"
_TYPED: Final = re.compile(_HEAD + r'("[^"]*"?|\S+)')
_GIVEN: Final = re.compile(_HEAD + "(.+)", re.DOTALL)
_UUID: Final = re.compile(r"[0-9a-f-]{4,36}")
"""Four characters of a uuid at least: fewer would be found in very many of them."""

_FIELDS: Final[dict[str, Callable[[Holder], str | None]]] = {
    "host": lambda holder: holder.hostname,
    "lock": lambda holder: holder.name,
    "reason": lambda holder: holder.reason,
    "owner": lambda holder: holder.owner,
    "label": lambda holder: "\n".join(_labels(holder)),
}
_UNFINISHED: Final = frozenset(("-", "state:", *(f"{field}:" for field in _FIELDS)))
"""What a person has typed who has not said yet what is looked for."""
_LOOKS_LIKE_A_FIELD: Final = re.compile(r"[a-z_]+:(?!//|[0-9])")
_Item = TypeVar("_Item")


def searchable(holder: Holder) -> str:
    """Return where a word is looked for: the lock's name (also as it is shown), whose it is."""
    name = holder.name if holder.name.isascii() else f"{holder.name}\n{shown_name(holder.name)}"
    said = (holder.hostname, holder.reason, holder.owner, holder.user, holder.container)
    return "\n".join((name, *filter(None, said), *_labels(holder))).casefold()


def _labels(holder: Holder) -> Iterator[str]:
    for said in (holder.labels, holder.context):
        if said:
            yield from (f"{name}={text}" for name, text in said.items())


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that is searched for: `word` (small letters) in `field`, or, if empty, anywhere."""

    word: str
    field: str = ""
    without: bool = False

    @property
    def said(self) -> str:
        """Say in a few words what it was taken for."""
        if self.field == "state":
            states = " or ".join(self.states())
            what = (
                f"state is {states}" if states else f"state is “{self.word}”, which is not a state"
            )
        else:
            what = f"{self.field or 'anything'} has “{self.word}”"
            if self.misread:
                what += f" (there are {', '.join(f'{field}:' for field in (*_FIELDS, 'state'))})"
        return f"not: {what}" if self.without else what

    @property
    def misread(self) -> bool:
        """Whether it may have been meant for a field that there is not."""
        return not self.field and _LOOKS_LIKE_A_FIELD.match(self.word) is not None

    def holds(self, holder: Holder, text: str, states: Collection[str]) -> bool:
        """Tell whether it is so for a holder, `text` being what is `searchable` of it."""
        return self._found(holder, text, states) != self.without

    def _found(self, holder: Holder, text: str, states: Collection[str]) -> bool:
        word = self.word
        if self.field == "state":
            return any(state in states for state in self.states())
        if self.field:
            return word in (_FIELDS[self.field](holder) or "").casefold()
        if word in text:
            return True
        if word.isdecimal() and holder.pid is not None and word == str(holder.pid):
            return True
        uuid = holder.uuid
        return uuid is not None and _UUID.match(word) is not None and uuid.lower().startswith(word)

    def states(self) -> list[str]:
        """Return the states that it may ask for."""
        return [state for state in VERDICTS if state.startswith(self.word)]


@dataclass(frozen=True, slots=True)
class Search:
    """All that is searched for; nothing finds everything."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def read(cls, text: str) -> Search:
        """Read what a person typed; whatever it is, it means something."""
        return cls(tuple(_terms(_TYPED.findall(text.casefold()))))

    @classmethod
    def of(cls, words: Iterable[str]) -> Search:
        """Read what a shell has split already: blanks inside a word are a part of it."""
        return cls(
            tuple(_terms(given for word in words for given in _GIVEN.findall(word.casefold())))
        )

    @property
    def said(self) -> list[str]:
        """Say what it was taken for, where that is more than words; else nothing."""
        plain = not any(term.field or term.without or term.misread for term in self.terms)
        return [] if plain else [term.said for term in self.terms]

    def check(self) -> None:
        """Look whether there is what it asks for: for who is told so at once, and types no more.

        Raises:
            ValueError: there is no such state.
        """
        for term in self.terms:
            if term.field == "state" and not term.states():
                states = ", ".join(VERDICTS)
                raise ValueError(f"No state is {term.word!r}: there are {states}.")

    def finds(self, holder: Holder, *states: str, also: str = "") -> bool:
        """Tell whether all of it is so for a holder.

        Args:
            holder: who has the lock.
            states: what it is found by (`Standing.words`).
            also: a text that words may be in, too.
        """
        if not self.terms:
            return True
        text = searchable(holder) + also.casefold()
        return all(term.holds(holder, text, states) for term in self.terms)

    def finds_removal(self, removal: Removal) -> bool:
        """Tell the same for a removal: its state is how it went, and who did it and why count."""
        also = f"\n{removal.removed_by}\n{removal.how}\n{removal.why}"
        return self.finds(removal.holder, removal.how, also=also)

    def finds_ticket(self, ticket: Ticket) -> bool:
        """Tell the same for who waits: in no state."""
        waits = Holder(ticket.name, ticket.uuid, ticket.hostname, ticket.pid, reason=ticket.reason)
        return self.finds(waits)

    def among(
        self, items: Iterable[_Item], known: Callable[[_Item], tuple[Holder, str, Collection[str]]]
    ) -> list[_Item]:
        """Return the items of which all of it is so; `known` are their holder, text, states."""
        found = [*items]
        for term in self.terms:  # the next one looks at what is left only
            found = [item for item in found if term.holds(*known(item))]
        return found


def _terms(found: Iterable[tuple[str, str, str]]) -> Iterator[Term]:
    for without, field, said in found:
        word = said.strip('"') if said.startswith('"') else said
        if word and word not in _UNFINISHED:
            yield Term(word, field, bool(without))
