"""Merges what several servers list in a scan of their keys; no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from lockclient.stores.valkey.keys import number_of

_MAX_DIGITS: Final = 15
"""Of the number of a heartbeat; all JSON has so many."""


class ScannedKey(NamedTuple):
    """A key as the servers report it: its write count and its holder.

    They say it as one text, `<number> <uuid>`. Of 20,000 locks on five servers nothing else is made
    than these texts, and they are only compared, as long as all say what they said before.
    """

    number: int
    uuid: str

    @classmethod
    def parse(cls, text: str) -> ScannedKey:
        """Read a server's text of a key."""
        number, _, uuid = text.partition(" ")
        return cls(number_of(number.encode(), _MAX_DIGITS), uuid)


Folder = dict[str, str]
"""What one server has in a folder: by the key's last segment."""


def latest(folders: Mapping[int, Folder]) -> dict[str, tuple[int, int]]:
    """Return by segments the highest number, and a server that says it."""
    found: dict[str, tuple[int, int]] = {}
    for i, folder in folders.items():
        for segment, text in folder.items():
            found[segment] = max(found.get(segment, (-1, -1)), (ScannedKey.parse(text).number, i))
    return found


def recorded(folders: Mapping[int, Folder]) -> dict[str, tuple[int, int]]:
    """Return by segments how long the record is that most servers have, and one that has it.

    They differ only while two who removed one lock settle which of them it was, or if one of the
    two died in that moment. Then who is asked for the one record (`show`, a removal's own page)
    counts texts (`LockViews.record`). Here lengths are enough: a look that came in between may name
    the other one of the two, and both have removed it from some servers.
    """
    lengths: dict[str, Counter[int]] = {}
    where: dict[tuple[str, int], int] = {}
    for i, folder in folders.items():
        for segment, text in folder.items():
            length = ScannedKey.parse(text).number
            lengths.setdefault(segment, Counter())[length] += 1
            where[segment, length] = i
    found: dict[str, tuple[int, int]] = {}
    for segment, votes in lengths.items():
        _, length = min((-number, length) for length, number in votes.items())
        found[segment] = length, where[segment, length]
    return found
