"""Quorum: what the votes of servers come to, by majority; no I/O.

What a majority says, is so; any two majorities have a server in common, and that server says one
thing at a time. Nobody's silence is a vote: neither that a lock is there nor that it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lockclient.stores.valkey.lua_scripts import Reply

_UUID_CHARS = 40
"""Characters of a uuid in a sentence: ours have 36, another program's may be any text."""
GRANTED = ("taken", "had")
"""What a server says whose vote a taker has."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """The number of servers, and of those that must agree."""

    servers: int

    @property
    def majority(self) -> int:
        """More than half of them."""
        return self.servers // 2 + 1

    def agrees(self, answers: Mapping[int, Reply], *kinds: str) -> bool:
        """Tell whether a majority answered one of these."""
        return count(answers, *kinds) >= self.majority

    def can_agree(self, answers: Mapping[int, Reply], *kinds: str) -> bool:
        """Tell whether a majority may have answered one of these, when all have."""
        return self.servers - len(answers) + count(answers, *kinds) >= self.majority

    def decides(self, *kinds: str) -> Callable[[Mapping[int, Reply]], bool]:
        """Return what tells of answers whether the missing ones can't change that a majority says
        one of these, or does not."""
        return lambda said: self.agrees(said, *kinds) or not self.can_agree(said, *kinds)

    def holder(self, holders: Iterable[str | None]) -> tuple[bool, str | None]:
        """Return whether it is known who has a lock, and who: of each vote, whom it names.

        Nobody has it when nobody can have a majority, whoever the missing votes are for.
        """
        votes = list(holders)
        most = Counter(uuid for uuid in votes if uuid is not None).most_common(1)
        uuid, number = most[0] if most else (None, 0)
        if number >= self.majority:
            return True, uuid
        return number + self.servers - len(votes) < self.majority, None

    def may_hold(self, holders: Iterable[str | None], asked: str = "") -> str | None:
        """Return who may have a lock, as far as those go who voted: whom the others could help to
        a majority. Of several it is who was `asked` for, then who has the most votes.
        """
        named = list(holders)
        votes = Counter(uuid for uuid in named if uuid is not None)
        missing = self.servers - len(named)
        may = (uuid for uuid, number in votes.items() if number + missing >= self.majority)
        return max(may, key=lambda uuid: (uuid == asked, votes[uuid], uuid), default=None)

    def majority_text(self, number: int, asked: int) -> str:
        """Say in words that somebody has a lock on so many servers, of those that were asked."""
        unasked = f"; {self.servers - asked} could not be asked" if asked < self.servers else ""
        return f"held on {number} of {self.servers} servers{unasked}"

    def minority_text(self, votes: Mapping[str, int], asked: int) -> str:
        """Say in words who has so many votes of those that were asked, of whom none has a majority.

        Who has as many is named in the order of the uuids, so that the words stay the same.
        """
        most = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))
        whose = " and ".join(f"{uuid[:_UUID_CHARS]} on {number}" for uuid, number in most)
        text = f"{whose} of {self.servers} servers, and {self.majority} make it a lock"
        if most[0][1] + self.servers - asked < self.majority:
            return f"{text}: nobody holds it"
        return f"{text}: {self.servers - asked} could not be asked, so that it may be held"


def count(answers: Mapping[int, Reply], *kinds: str) -> int:
    """Return how many answered one of these."""
    return sum(reply.kind in kinds for reply in answers.values())


def decoded(value: object) -> str:
    """Return a text of a reply."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""
