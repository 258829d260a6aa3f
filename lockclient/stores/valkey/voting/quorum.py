"""Quorum: the results of the servers' votes, by majority; no I/O.

What a majority answers is true: any two majorities share a server, and a server gives one answer at
a time. A missing answer is no vote, neither that a lock is there nor that it is not.

Each of the servers that name the holder may have missed pushes. So the stamps are those of the
latest push, which a majority has confirmed or may still confirm; of two with the same number, the
later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from lockclient.model.clocks import parse_stamp
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import NotHolder
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.lua_scripts import Answers, Reply

Fields = Mapping[str, bytes]

_UUID_CHARS = 40
"""Characters of a uuid in a sentence: ours have 36, another program's may be any text."""
GRANTED = ("taken", "already_taken")
"""Kinds of the replies that give a taker a vote."""


class Quorum:
    """The number of servers, and of those that must agree."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.majority = servers // 2 + 1
        self.decides_take = self.decides(*GRANTED)

    # ------------------------------------------------------------ kinds of replies

    def agrees(self, answers: Answers, *kinds: str) -> bool:
        """Tell whether a majority answered one of these."""
        return count(answers, *kinds) >= self.majority

    def can_agree(self, answers: Answers, *kinds: str) -> bool:
        """Tell whether a majority may answer one of these, when all servers have answered."""
        return self.servers - len(answers) + count(answers, *kinds) >= self.majority

    def decides(self, *kinds: str) -> Callable[[Answers], bool]:
        """Return a function that tells whether the missing answers can't change that a majority
        answers one of these, or does not."""
        return partial(self._is_decided, kinds)

    def _is_decided(self, kinds: tuple[str, ...], answers: Answers) -> bool:
        votes = count(answers, *kinds)
        return votes >= self.majority or self.servers - len(answers) + votes < self.majority

    # ------------------------------------------------------------ holders

    def holder(self, holders: Iterable[str | None]) -> tuple[bool, str | None]:
        """Return whether the holder is known, and the holder: of each vote, whom it names.

        The lock is free when no uuid can have a majority, whatever the missing votes are.
        """
        votes = list(holders)
        most = Counter(uuid for uuid in votes if uuid is not None).most_common(1)
        uuid, number = most[0] if most else (None, 0)
        if number >= self.majority:
            return True, uuid
        return number + self.servers - len(votes) < self.majority, None

    def may_hold(self, holders: Iterable[str | None], asked: str = "") -> str | None:
        """Return a uuid that the missing votes could help to a majority.

        Of several it is the one `asked` for, then the one with the most votes.
        """
        named = list(holders)
        votes = Counter(uuid for uuid in named if uuid is not None)
        missing = self.servers - len(named)
        may = (uuid for uuid, number in votes.items() if number + missing >= self.majority)
        return max(may, key=lambda uuid: (uuid == asked, votes[uuid], uuid), default=None)

    def is_known(self, answers: Answers) -> bool:
        """Tell whether these replies to `READ` are enough to name the holder."""
        return self.holder(uuid for uuid, _ in locks(answers))[0]

    def holder_and_push(self, answers: Answers, asked: str = "") -> tuple[str | None, int]:
        """Return by replies to `READ` the holder, or the possible holder, and the latest push."""
        votes = list(locks(answers))
        known, holder = self.holder(uuid for uuid, _ in votes)
        if not known:
            holder = self.may_hold((uuid for uuid, _ in votes), asked)
        pushes = (_push(fields) for uuid, fields in votes if uuid == holder)
        return holder, 0 if holder is None else max(pushes)

    def latest_fields(self, answers: Answers, asked: str = "") -> Fields:
        """Return by replies to `READ` the lock's fields as of its latest push; none: it is free."""
        newest = self.holder_and_push(answers, asked)
        if newest[0] is None:
            return {}
        found = (fields for uuid, fields in locks(answers) if (uuid, _push(fields)) == newest)
        return max(found, key=_alert_at, default={})

    def holder_named(self, uuid: str, answers: Answers) -> tuple[bool, str | None]:
        """Return whether the holder is known, and the holder, by replies about this uuid's lock."""
        return self.holder(_named(uuid, reply) for reply in answers.values())

    def not_holder(self, name: str, uuid: str, answers: Answers, resent: bool) -> NotHolder:
        """Return `NotHolder` for this uuid, with the current holder."""
        _, holder = self.holder_named(uuid, answers)
        removal = None if holder == uuid else record_of(name, uuid, answers)
        return NotHolder(holder, removal, resent)

    def winning_record(self, answers: Answers, ours: bytes) -> bytes:
        """Return the record of the removal that ended a lock; empty: none did.

        Args:
            answers: of all reachable servers, to the command that was to remove it.
            ours: the record on those servers that executed it.
        """
        found = _records(answers, ours)
        without = count(answers, "not_holder", "dropped") - found.total()
        if not found or without >= self.majority:  # its holder has released it
            return b""
        return found.most_common(1)[0][0]

    # ------------------------------------------------------------ sentences

    def votes_text(self, name: str, answers: Answers) -> str:
        """Return a sentence about the votes for a lock, if some servers have it and not all."""
        votes = Counter(uuid for uuid, _ in locks(answers) if uuid is not None)
        holder = self.holder(uuid for uuid, _ in locks(answers))[1]
        if not votes or votes[holder or ""] == self.servers:
            return ""
        if holder is None:
            return f"{name!r}: {self.minority_text(votes, len(answers))}."
        missing = self.servers - len(answers)
        unasked = f"; {missing} could not be asked" if missing else ""
        return f"{name!r}: held on {votes[holder]} of {self.servers} servers{unasked}."

    def minority_text(self, votes: Mapping[str, int], asked: int) -> str:
        """Return a text about uuids without a majority, by their votes.

        Uuids with as many votes are in their own order, so that the text does not change.
        """
        most = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))
        whose = " and ".join(f"{uuid[:_UUID_CHARS]} on {number}" for uuid, number in most)
        text = f"{whose} of {self.servers} servers, and {self.majority} make it a lock"
        if most[0][1] + self.servers - asked < self.majority:
            return f"{text}: nobody holds it"
        return f"{text}: {self.servers - asked} could not be asked, so that it may be held"


def count(answers: Answers, *kinds: str) -> int:
    """Return how many servers answered one of these."""
    number = 0
    for reply in answers.values():
        number += reply.kind in kinds
    return number


def locks(answers: Answers) -> Iterator[tuple[str | None, dict[str, bytes]]]:
    """Yield of each reply to `READ` the uuid that it names, and the lock's fields."""
    for reply in answers.values():
        if reply.kind == "read":
            flat = reply.rest[0]
            fields = {decoded(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
            yield (decoded(fields["uuid"]) if "uuid" in fields else None), fields


def record_of(name: str, uuid: str, answers: Answers) -> Removal | None:
    """Return the record of that uuid's removal, if a server has it."""
    found = _records(answers, b"").most_common(1)
    return Removal.read(name, uuid, found[0][0]) if found else None


def with_record(answers: Answers, record: bytes) -> set[int]:
    """Return the servers with this record of a removal, by this sending or an earlier one."""
    return {
        i
        for i, reply in answers.items()
        if reply.kind == "dropped" or (reply.kind == "not_holder" and reply.rest[1] == record)
    }


def without_lock(answers: Answers) -> dict[int, int]:
    """Return the servers that have neither the lock that was pushed nor another one nor a record,
    and their times in milliseconds."""
    replies = ((i, reply.rest) for i, reply in answers.items() if reply.kind == "not_holder")
    return {i: now for i, (holder, record, now) in replies if not (holder or record)}


def decoded(value: object) -> str:
    """Return a text of a reply."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _records(answers: Answers, ours: bytes) -> Counter[bytes]:
    """Return how many servers have which record of a removal: of as many, the smaller is first."""
    texts = [
        ours if reply.kind == "dropped" else reply.rest[1]
        for reply in answers.values()
        if reply.kind in ("read", "not_holder", "dropped")
    ]
    return Counter(sorted(filter(None, texts)))


def _named(uuid: str, reply: Reply) -> str | None:
    """Return the holder that a reply about this uuid's lock names."""
    if reply.kind == "not_holder":
        return decoded(reply.rest[0]) or None
    return uuid if reply.kind in ("pushed", "moved") else None


def _push(fields: Fields) -> int:
    return number_of(fields.get("push", b""))


def _alert_at(fields: Fields) -> float:
    """Return when the lock alerts, as written; an unreadable time is the earliest."""
    try:
        return parse_stamp(fields.get("alert_at", b"").decode("ascii"))
    except ValueError:
        return 0.0
