"""The difference between what is true and what a recipient knows: what its next message says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from unlocker.notifications.conditions import (
    CRITICAL,
    KINDS,
    OF_UNLOCKER,
    OVER_S,
    holder_of,
    is_condition,
)
from unlocker.notifications.sent_document import FEW, MAX_IDS, Change, SentDocument
from unlocker.notifications.truth import Truth

MANY = 500
"""Conditions of a kind beyond which a document has only their number."""


class Difference:
    """The difference for one recipient, while this unlocker sends to it.

    It knows since when this unlocker has seen conditions as over.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._seen: dict[str, float] = {}

    def of(self, known: SentDocument, truth: Truth, now: float) -> Change:
        """Return what to say at the monotonic time `now`.

        What needs no message is noted in `known` itself.
        """
        self._seen = {}
        removals = [holder for holder in truth.removals if holder not in known.removals]
        removed = known.removals.keys() | {*removals}
        self._note_silently(known, truth, removed)
        many = self._many(known, truth, now)
        counted = {code for code in {**known.many, **many} if many.get(code, FEW) >= FEW}
        begun = [
            each
            for code, found in truth.found.items()
            if code not in counted
            for each in found
            if each not in known.sent and holder_of(each) not in removed
        ]
        perhaps = {each for each in known.perhaps if is_condition(each)}
        ended = [
            each
            for each in known.sent | perhaps
            if each not in truth.found.get(each[0], ()) and self._is_over(each, truth, now)
        ]
        self._since = self._seen  # what is true again, or unknown, begins anew
        return Change(begun, ended, removals, many)

    def _note_silently(self, known: SentDocument, truth: Truth, removed: Collection[str]) -> None:
        """A removal takes the place of its holder's ends. A holder that is late again within
        `OVER_S` after a heartbeat is no news, and its earlier condition has no end.
        """
        now = {
            code + holder_of(each): each
            for code in truth.found.keys() - known.many.keys()
            for each in truth.found[code]
        }

        def renewed(each: str) -> str:
            if is_condition(each) and holder_of(each) in removed:
                return ""
            return now.get(each[0] + holder_of(each), each)

        known.sent = {new for each in known.sent if (new := renewed(each))}
        known.perhaps = {new: n for each, n in known.perhaps.items() if (new := renewed(each))}

    def _is_over(self, condition_id: str, truth: Truth, now: float) -> bool:
        return truth.is_ready and truth.is_over(condition_id) and self._lasts(condition_id, now)

    def _lasts(self, what: str, now: float) -> bool:
        began = self._seen[what] = self._since.get(what, now)
        return now - began >= OVER_S

    def _many(self, known: SentDocument, truth: Truth, now: float) -> dict[str, int]:
        """Return the new numbers of kinds that are counted, or were.

        A number falls only if an unlocker that finds all has seen that for `OVER_S`.
        """
        found = {code: len(each) for code, each in truth.found.items()}
        ids = Counter(each[0] for each in known.sent if each not in truth.found.get(each[0], ()))
        total = sum(ids.values()) + sum(n for code, n in found.items() if code not in known.many)
        many = {}
        for code, number in sorted(found.items(), key=lambda item: -item[1]):
            kind, last = KINDS[code], known.many.get(code)
            if last is not None:
                is_fewer = number < FEW or 2 * number <= last
                if number >= 2 * last or (is_fewer and truth.is_sure and self._lasts(code, now)):
                    many[code] = number
            elif kind.of is not OF_UNLOCKER and (
                total > MAX_IDS or (number > MANY and kind.severity != CRITICAL)
            ):
                many[code] = max(number, FEW)
                total -= number + ids[code]
        return many
