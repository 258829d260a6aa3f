"""What so many votes come to; no I/O.

What a majority says, is so; any two majorities have a server in common, and that server says one
thing at a time. Nobody's silence is a vote: neither that a lock is there nor that it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockclient.stores.valkey.wire.connection import Reply

_SHOWN = 40
"""Characters of a uuid in a sentence: ours have 36, another program's may be any text."""
HAD = ("taken", "had")
"""What a server says whose vote a taker has."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many servers there are, and how many of them must agree."""

    servers: int

    @property
    def majority(self) -> int:
        """More than half of them."""
        return self.servers // 2 + 1

    def agree(self, answers: Mapping[int, Reply], *kinds: str) -> bool:
        """Tell whether a majority answered one of these."""
        return count(answers, *kinds) >= self.majority

    def can_agree(self, answers: Mapping[int, Reply], *kinds: str) -> bool:
        """Tell whether a majority may have answered one of these, when all have."""
        return self.servers - len(answers) + count(answers, *kinds) >= self.majority

    def decided(self, answers: Mapping[int, Reply], *kinds: str) -> bool:
        """Tell whether those who have not answered can't change whether a majority says so."""
        return self.agree(answers, *kinds) or not self.can_agree(answers, *kinds)

    def holder(self, holders: Iterable[str | None]) -> tuple[bool, str | None]:
        """Return whether it is known who has a lock, and who: of each vote, whom it names.

        Nobody has it when nobody can have a majority, whoever the missing votes are for.
        """
        said = list(holders)
        most = Counter(each for each in said if each is not None).most_common(1)
        who, for_it = most[0] if most else (None, 0)
        if for_it >= self.majority:
            return True, who
        return for_it + self.servers - len(said) < self.majority, None

    def may_hold(self, holders: Iterable[str | None], asked: str = "") -> str | None:
        """Return who may have a lock, as far as those go who voted: whom the others could help to
        a majority. Of several it is who was `asked` for, then who has the most votes.
        """
        said = list(holders)
        votes = Counter(each for each in said if each is not None)
        away = self.servers - len(said)
        may = (each for each, number in votes.items() if number + away >= self.majority)
        return max(may, key=lambda each: (each == asked, votes[each], each), default=None)

    def few(self, votes: Mapping[str, int], asked: int) -> str:
        """Say in words who has so many votes of those that were asked, of whom none has a majority.

        Who has as many is named in the order of the uuids, so that the words stay the same.
        """
        most = sorted(votes.items(), key=lambda each: (-each[1], each[0]))
        whose = " and ".join(f"{uuid[:_SHOWN]} on {number}" for uuid, number in most)
        said = f"{whose} of {self.servers} servers, and {self.majority} make it a lock"
        if most[0][1] + self.servers - asked < self.majority:
            return f"{said}: nobody holds it"
        return f"{said}: {self.servers - asked} could not be asked, so that it may be held"


def count(answers: Mapping[int, Reply], *kinds: str) -> int:
    """Return how many answered one of these."""
    return sum(each.kind in kinds for each in answers.values())


def text(value: object) -> str:
    """Return a text of an answer's."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
