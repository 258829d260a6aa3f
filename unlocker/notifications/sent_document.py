"""A document of what one recipient was sent: small JSON, changed by compare-and-swap.

It does not grow with an incident: it has hashes of what was sent, and of a kind with very many
conditions only their number. It has 100 KB in a mass incident, 210 KB with everything at its most.

An unlocker writes an attempt down before it makes it. So if it dies, its successor finds

    before the attempt is written     what it would have sent is still true, and not sent
    before the outcome is written     the attempt: it was "perhaps sent", and is sent as a repeat
    after that                        it was sent
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from lockclient.model.fields import COUNT, FLAG, TEXT, TEXTS, json_facts
from unlocker.notifications.conditions import KINDS, holder_of

MAX_IDS = 2000
"""Conditions of which a document has hashes."""
MAX_REMOVALS = 2000
"""Removals of which a document has hashes; more than a table keeps."""
MAX_NAMED = 200
"""Conditions that were named in a message, of which a document has the lock's name."""
_MAX_NAME_BYTES = 200  # in JSON, where a control character has six
FEW = 250
"""Conditions of a kind below which a document has each of them again, instead of their number."""
SENT, REFUSED, BUSY, UNANSWERED = "sent", "refused", "busy", "unanswered"
"""Outcomes of an attempt. `BUSY`: the recipient has trouble, whatever the message says."""
MAX_UNANSWERED = 3
"""Unanswered attempts after which their content counts as sent."""


class DamagedDocument(Exception):
    """A document that can't be read; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Change:
    """The content of a message: ids of conditions, hashes of the holders of removals.

    Attributes:
        begun: conditions that are true.
        ended: conditions that are over.
        removals: holders that were removed.
        many: the number of conditions of a kind, by code; below `FEW`, `begun` has each.
    """

    begun: Collection[str] = ()
    ended: Collection[str] = ()
    removals: Collection[str] = ()
    many: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.removals or self.many)

    def items(self) -> list[str]:
        """Return all that it says, each by a text of its own."""
        return [*self.begun, *self.ended, *(f"-{holder}" for holder in self.removals), *self.many]

    def within(self, items: Collection[str]) -> Change:
        """Return the part of it that is in `items`."""
        many = {code: number for code, number in self.many.items() if code in items}
        return Change(
            [each for each in self.begun if each in items or each[0] in many],
            [each for each in self.ended if each in items],
            [holder for holder in self.removals if f"-{holder}" in items],
            many,
        )


@dataclass
class SentDocument:
    """The knowledge of one recipient.

    Attributes:
        sent: ids of the conditions that it was notified of, and not of their end.
        removals: holders' hashes of the removals that it was notified of, the oldest first.
        named: names of locks that were named in a message, by `Kind.code` and holder.
        many: of kinds with too many conditions their number, as last sent, by code.
        attempt: items of the message that is being sent. `writer`, `number`: the unlocker that
            sends it, and the number of this attempt.
        perhaps: items of attempts without an outcome, with the number of unanswered ones.
        failed, refused: attempts in a row with that outcome. `failed`: any but sent.
        is_reduced: the last message left out texts, and was accepted.
        is_unknown: what was sent before was lost, and no message has said so.
        error: the outcome of the last failed attempt.
    """

    sent: set[str] = field(default_factory=set)
    removals: dict[str, None] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    many: dict[str, int] = field(default_factory=dict)
    attempt: set[str] = field(default_factory=set)
    writer: str = ""
    number: int = 0
    perhaps: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    refused: int = 0
    is_reduced: bool = False
    is_unknown: bool = False
    error: str = ""

    @classmethod
    def parse(cls, value: bytes | None) -> SentDocument:
        """Return the document in a store's value.

        Raises:
            DamagedDocument: it is too long (None), or something else stands there.
        """
        if value is None:
            raise DamagedDocument("it is too long")
        facts = json_facts(value, _FIELDS)
        if lacking := [name for name, fact in facts.items() if fact is None]:
            raise DamagedDocument(f"it lacks {', '.join(lacking)}")
        texts = {name: facts[name].split() for name in _LISTS}
        try:
            return cls(
                **facts
                | {
                    "attempt": {*texts["attempt"]},
                    "perhaps": {item: int(number) for item, number in facts["perhaps"].items()},
                    "sent": {each for each in texts["sent"] if each[0] in KINDS},
                    "removals": dict.fromkeys(texts["removals"]),
                    "many": {
                        code: int(number) for code, number in facts["many"].items() if code in KINDS
                    },
                }
            )
        except ValueError as error:
            raise DamagedDocument("its `many` or `perhaps` has no numbers") from error

    def value(self) -> bytes:
        """Return the bytes to write."""
        fields = asdict(self) | {name: " ".join(getattr(self, name)) for name in _LISTS}
        fields["perhaps"] = {each: str(n) for each, n in [*self.perhaps.items()][:MAX_IDS]}
        fields["many"] = {code: str(number) for code, number in self.many.items()}
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")

    def begin(self, change: Change, names: Mapping[str, str], writer: str) -> None:
        """Note an attempt, which is about to be made, and the names in it: see `name`."""
        self.attempt, self.writer, self.number = {*change.items()}, writer, self.number + 1
        self.name(names)

    def name(self, names: Mapping[str, str]) -> None:
        """Note the names of conditions that a message spells out, by their ids.

        Those are kept of conditions whose end may be sent, perhaps-sent ones among them.
        """
        known = {each[0] + holder_of(each) for each in (*self.sent, *self.perhaps, *self.attempt)}
        found = self.named | {each[0] + holder_of(each): name for each, name in names.items()}
        kept = [
            (key, name)
            for key, name in found.items()
            if key in known and len(json.dumps(name)) <= _MAX_NAME_BYTES
        ]
        self.named = dict(kept[:MAX_NAMED])

    def take_over(self) -> None:
        """Note that another one's attempt has no outcome: its content was perhaps sent."""
        self.perhaps = dict.fromkeys(self.attempt, 0) | self.perhaps
        self.attempt = set()

    def settle(self, change: Change, outcome: str, *, is_full: bool) -> Change:
        """Note the outcome of the attempt at a change; return the part of it that is given up.

        If a message without others' texts is accepted, and the full one after it is refused again,
        the texts are at fault: the content counts as sent. So does what was never answered.

        Args:
            is_full: the message had all texts.
        """
        self.attempt = set()
        self.failed = 0 if outcome == SENT else self.failed + 1
        self.refused += outcome == REFUSED
        self.error = "" if outcome == SENT else outcome
        given_up = Change()
        if outcome == REFUSED and self.is_reduced:
            given_up = change
        elif outcome == UNANSWERED:
            counts = {item: self.perhaps.get(item, 0) + 1 for item in change.items()}
            self.perhaps |= counts
            given_up = change.within([i for i, n in counts.items() if n >= MAX_UNANSWERED])
        elif outcome == SENT and not is_full:
            self.is_reduced = True
            self.perhaps = dict.fromkeys(change.items(), 0) | self.perhaps
        if given_up or (outcome == SENT and is_full):
            self.mark(given_up or change)
            self.failed = self.refused = 0
            self.is_reduced = self.is_unknown = False
        return given_up

    def mark(self, change: Change) -> None:
        """Note that the recipient knows this."""
        for item in change.items():
            self.perhaps.pop(item, None)
        for code, number in change.many.items():
            self.many[code] = number
            self.sent = {each for each in self.sent if each[0] != code}
            if number < FEW:
                del self.many[code]
        self.sent.difference_update(change.ended)
        self.sent.update(each for each in change.begun if each[0] not in self.many)
        self.removals = dict.fromkeys([*self.removals, *change.removals][-MAX_REMOVALS:])

    def name_of(self, condition_id: str) -> str | None:
        """Return the lock's name if a message named it for this condition."""
        return self.named.get(condition_id[0] + holder_of(condition_id))


_LISTS = ("sent", "removals", "attempt")
"""Fields with texts between spaces."""
_FIELDS = {
    **dict.fromkeys((*_LISTS, "writer", "error"), TEXT),
    **dict.fromkeys(("named", "many", "perhaps"), TEXTS),
    **dict.fromkeys(("number", "failed", "refused"), COUNT),
    **dict.fromkeys(("is_reduced", "is_unknown"), FLAG),
}
