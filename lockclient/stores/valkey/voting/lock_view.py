"""Lock state by majority, from the answers of several servers; no I/O.

It is what a majority says. Of the servers that name its holder each may have missed pushes: the
stamps are those of the latest one, which a majority has confirmed or which may still be confirmed;
where two have its number, the later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from lockclient.model.clocks import parse_stamp
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import NotHolder
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import KeyNames, holder_of, number_of
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.quorum import Quorum, count, decoded
from lockclient.stores.valkey.wire.connection import Command


class LockViews:
    """Reads answers for one set of servers."""

    def __init__(self, keys: KeyNames, quorum: Quorum) -> None:
        self._keys = keys
        self._quorum = quorum

    def read_command(self, name: str, uuid: str = "", *, whole: bool = False) -> Command:
        """Return the question who has a lock; `whole`: with all it says, and that uuid's record."""
        keys = (self._keys.server, self._keys.lock(name), self._keys.record(name, uuid))
        return Command(lua_scripts.READ, keys, ("1" if whole else "",))

    def is_known(self, answers: Mapping[int, Reply]) -> bool:
        """Tell whether these are enough to say who has the lock."""
        return self._quorum.holder(uuid for uuid, _ in seen(answers))[0]

    def holder_and_push(
        self, answers: Mapping[int, Reply], asked: str = ""
    ) -> tuple[str | None, int]:
        """Return who has the lock, or may have it (`Quorum.may_hold`), and its latest push."""
        votes = list(seen(answers))
        known, holder = self._quorum.holder(uuid for uuid, _ in votes)
        if not known:
            holder = self._quorum.may_hold((uuid for uuid, _ in votes), asked)
        pushes = (_push(fields) for uuid, fields in votes if uuid == holder)
        return holder, 0 if holder is None else max(pushes)

    def latest_fields(self, answers: Mapping[int, Reply], asked: str = "") -> Mapping[str, bytes]:
        """Return the lock's fields with its latest push; none: nobody has it."""
        newest = self.holder_and_push(answers, asked)
        if newest[0] is None:
            return {}
        found = (fields for uuid, fields in seen(answers) if (uuid, _push(fields)) == newest)
        return max(found, key=_alert_at, default={})

    def holder(self, name: str, answers: Mapping[int, Reply], asked: str) -> Holder | None:
        """Return who has the lock, or may have it, with all that it says of itself."""
        return holder_of(name, self.latest_fields(answers, asked))

    def votes_text(self, name: str, answers: Mapping[int, Reply]) -> str:
        """Say in a sentence on how many servers somebody has a lock, if some have it, not all."""
        votes = Counter(uuid for uuid, _ in seen(answers) if uuid is not None)
        holder = self._quorum.holder(uuid for uuid, _ in seen(answers))[1]
        if not votes or votes[holder or ""] == self._quorum.servers:
            return ""
        if holder is None:
            return f"{name!r}: {self._quorum.minority_text(votes, len(answers))}."
        return f"{name!r}: {self._quorum.majority_text(votes[holder], len(answers))}."

    @staticmethod
    def record(name: str, uuid: str, answers: Mapping[int, Reply]) -> Removal | None:
        """Return the record of that uuid's removal, if a server has it."""
        found = _recorded(answers, b"").most_common(1)
        return Removal.read(name, uuid, found[0][0]) if found else None

    def winning_record(self, answers: Mapping[int, Reply], ours: bytes) -> bytes:
        """Return the record of the removal that ended a lock; empty: it was none.

        Args:
            answers: to what was to remove it, of all servers that can be asked.
            ours: what those have noted down that did it.
        """
        found = _recorded(answers, ours)
        without = count(answers, "gone", "dropped") - found.total()
        if not found or without >= self._quorum.majority:  # its holder has let go of it
            return b""
        return found.most_common(1)[0][0]

    def holder_named(self, uuid: str, answers: Mapping[int, Reply]) -> tuple[bool, str | None]:
        """Return whether it is known whose lock it is, by answers about this uuid's; and whose."""
        return self._quorum.holder(_named(uuid, reply) for reply in answers.values())

    def not_holder(
        self, name: str, uuid: str, answers: Mapping[int, Reply], *, resent: bool
    ) -> NotHolder:
        """Return that a lock is not this uuid's any more, and whose it is."""
        _, holder = self.holder_named(uuid, answers)
        removal = None if holder == uuid else self.record(name, uuid, answers)
        return NotHolder(holder, removal, resent)


def _recorded(answers: Mapping[int, Reply], ours: bytes) -> Counter[bytes]:
    """Return how many servers have which record of a removal: of as many, the smaller is first."""
    texts = [
        ours if reply.kind == "dropped" else reply.rest[1]
        for reply in answers.values()
        if reply.kind in ("seen", "gone", "dropped")
    ]
    return Counter(sorted(filter(None, texts)))


def _named(uuid: str, reply: Reply) -> str | None:
    """Return whose lock it is by a reply about this uuid's."""
    if reply.kind == "gone":
        return decoded(reply.rest[0]) or None
    return uuid if reply.kind in ("pushed", "moved") else None


def seen(answers: Mapping[int, Reply]) -> Iterator[tuple[str | None, dict[str, bytes]]]:
    """Return whom each server names, and the lock's fields there."""
    for reply in answers.values():
        if reply.kind == "seen":
            flat = reply.rest[0]
            fields = {decoded(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
            yield (decoded(fields["uuid"]) if "uuid" in fields else None), fields


def _push(fields: Mapping[str, bytes]) -> int:
    return number_of(fields.get("push", b""))


def _alert_at(fields: Mapping[str, bytes]) -> float:
    """Return when it alerts, as written; what can't be read is the earliest."""
    try:
        return parse_stamp(fields.get("alert_at", b"").decode("ascii"))
    except ValueError:
        return 0.0
