"""What a lock is, read off the answers of several servers; no I/O.

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
from lockclient.stores.valkey.keys import Keys, holder_of, number_of
from lockclient.stores.valkey.voting.quorum import Quorum, count, text
from lockclient.stores.valkey.wire.connection import Command, Reply


class Views:
    """Reads answers for one set of servers."""

    def __init__(self, keys: Keys, quorum: Quorum) -> None:
        self._keys = keys
        self._quorum = quorum

    def call(self, name: str, uuid: str = "", *, whole: bool = False) -> Command:
        """Return the question who has a lock; `whole`: with all it says, and that uuid's record."""
        keys = (self._keys.server, self._keys.lock(name), self._keys.record(name, uuid))
        return Command(lua_scripts.READ, keys, ("1" if whole else "",))

    def known(self, answers: Mapping[int, Reply]) -> bool:
        """Tell whether these are enough to say who has the lock."""
        return self._quorum.holder(uuid for uuid, _ in _seen(answers))[0]

    def who(self, answers: Mapping[int, Reply], asked: str = "") -> tuple[str | None, int]:
        """Return who has the lock, or may have it (`Quorum.may_hold`), and its latest push."""
        seen = list(_seen(answers))
        known, holder = self._quorum.holder(uuid for uuid, _ in seen)
        if not known:
            holder = self._quorum.may_hold((uuid for uuid, _ in seen), asked)
        pushes = (number_of(said.get("push", b"")) for uuid, said in seen if uuid == holder)
        return holder, 0 if holder is None else max(pushes)

    def latest(self, answers: Mapping[int, Reply], asked: str = "") -> Mapping[str, bytes]:
        """Return the lock's fields with its latest push; none: nobody has it."""
        uuid, push = self.who(answers, asked)
        found = [
            said
            for each, said in _seen(answers)
            if uuid is not None and each == uuid and number_of(said.get("push", b"")) == push
        ]
        return max(found, key=_alert_at, default={})

    def holder(self, name: str, answers: Mapping[int, Reply], asked: str) -> Holder | None:
        """Return who has the lock, or may have it, with all that it says of itself."""
        return holder_of(name, self.latest(answers, asked))

    def few(self, name: str, answers: Mapping[int, Reply]) -> str:
        """Say in a sentence on how few servers somebody has a lock, if no majority says so."""
        if self._quorum.holder(uuid for uuid, _ in _seen(answers))[1] is not None:
            return ""
        votes = Counter(uuid for uuid, _ in _seen(answers) if uuid is not None)
        return f"{name!r}: {self._quorum.few(votes, len(answers))}." if votes else ""

    @staticmethod
    def record(name: str, uuid: str, answers: Mapping[int, Reply]) -> Removal | None:
        """Return the record of that uuid's removal, if a server has it."""
        found = _recorded(answers, b"").most_common(1)
        return Removal.read(name, uuid, found[0][0]) if found else None

    def removed_by(self, answers: Mapping[int, Reply], ours: bytes) -> bytes:
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

    def whose(self, uuid: str, answers: Mapping[int, Reply]) -> tuple[bool, str | None]:
        """Return whether it is known whose lock it is, by answers about this uuid's; and whose."""
        return self._quorum.holder(_named(uuid, said) for said in answers.values())

    def gone(
        self, name: str, uuid: str, answers: Mapping[int, Reply], *, resent: bool
    ) -> NotHolder:
        """Return that a lock is not this uuid's any more, and whose it is."""
        _, holder = self.whose(uuid, answers)
        removal = None if holder == uuid else self.record(name, uuid, answers)
        return NotHolder(holder, removal, resent)


def _recorded(answers: Mapping[int, Reply], ours: bytes) -> Counter[bytes]:
    """Return how many servers have which record of a removal: of as many, the smaller is first."""
    texts = [
        ours if said.kind == "dropped" else said.rest[1]
        for said in answers.values()
        if said.kind in ("seen", "gone", "dropped")
    ]
    return Counter(sorted(filter(None, texts)))


def _named(uuid: str, said: Reply) -> str | None:
    """Return whose lock it is by an answer about this uuid's."""
    if said.kind == "gone":
        return text(said.rest[0]) or None
    return uuid if said.kind in ("pushed", "moved") else None


def _seen(answers: Mapping[int, Reply]) -> Iterator[tuple[str | None, dict[str, bytes]]]:
    """Return whom each server names, and the lock's fields there."""
    for said in answers.values():
        if said.kind == "seen":
            flat = said.rest[0]
            fields = {text(key): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
            yield (text(fields["uuid"]) if "uuid" in fields else None), fields


def _alert_at(said: Mapping[str, bytes]) -> float:
    """Return when it alerts, as written; what can't be read is the earliest."""
    try:
        return parse_stamp(said.get("alert_at", b"").decode("ascii"))
    except ValueError:
        return 0.0
