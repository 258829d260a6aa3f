"""Key names, lock fields and versions on each server; no I/O.

    <root>/server                    what tells that this server has lost nothing (`SETTLE`)
    <root>/locks/<name>              the lock: a hash
    <root>/locks                     an index, a set: what follows that in the names of such keys;
                                     <root>/unlockers and <root>/removed as well
    <root>/withdrawn/<name>/<uuid>   a tombstone: this uuid's takes do nothing, up to that number
    <root>/removed/<name>/<uuid>     the record of a removal, JSON
    <root>/unlockers/<id>            an unlocker's announcement: a hash, which expires
    <root>/notifications/note        what unlockers agree on: a hash (`lua_scripts.PROMISE`)
    <root>/released/<name>           a channel, no key: on it is said that a holder has gone

A lock is one key, so that it is there or not. It is a hash and no JSON text: its fields are the
five subkeys as every store has them, so that a script compares the uuid without reading the
backtrace, and a push writes two numbers and not ten kilobytes. Beside them stand `take`, the number
of the try that took it, `push`, that of the last push (0: none), and `expiry`, in milliseconds
after each of these (0: never).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from lockclient.errors import StoreError
from lockclient.model.holder import MOST_FENCING, STAMPS, SUBKEYS, Found, Holder
from lockclient.stores.common.segments import SegmentNames, encode

LATE_REQUEST_S: Final = 86400.0
"""Seconds for which a lock outlives its time, so that an unlocker tells of its end, and for which a
request may arrive late: TCP gives up after a quarter of an hour."""
_PUSH_BITS: Final = 44
_MAX_PUSH_DIGITS: Final = 13
"""Of a push's number, at most: milliseconds since 1970, until the year 2286."""


def drifted(seconds: float) -> float:
    """Return how long a server is told to wait so that it never is sooner than that here.

    Two clocks may go differently fast by one in a hundred, and a server looks at its own a
    thousand times a second: the drift that Redlock's description allows for.
    """
    return seconds * 1.01 + 0.002


def milliseconds(seconds: float) -> str:
    """Return a duration as servers take it, rounded up."""
    return str(int(seconds * 1000) + 1)


class KeyNames(SegmentNames):
    """The keys' names below a root."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}/locks/", f"{root}/unlockers/", f"{root}/removed/")
        self.lock_index = f"{root}/locks"
        self.unlocker_index = f"{root}/unlockers"
        self.record_index = f"{root}/removed"
        self.server = f"{root}/server"
        self.note = f"{root}/notifications/note"
        self.all = f"{root}/"
        self.channels = f"{root}/released/*"
        """The pattern of all these channels: neither a name nor the root has such a star."""

    def tombstone(self, name: str, uuid: str) -> str:
        """Return the key of what keeps takes of this uuid from doing anything."""
        return f"{self.all}withdrawn/{encode(name)}/{encode(uuid)}"

    def channel(self, name: str) -> str:
        """Return the channel on which it is said that a lock is free."""
        return f"{self.all}released/{encode(name)}"


def token_of(uuid: str) -> int:
    """Return the number that names an acquisition, without asking anybody; it is no fencing token.

    Servers that know nothing of each other have no number that only grows.
    """
    digest = int.from_bytes(blake2b(uuid.encode(errors="replace"), digest_size=4).digest(), "big")
    return MOST_FENCING + (digest // 16384 << _PUSH_BITS)  # so large that nobody shows it as one


def revision_of(uuid: str, push: int) -> int:
    """Return the number of a lock's state: of one acquisition they grow with each push."""
    return token_of(uuid) + push


def following(push: int) -> int:
    """Return the number of the push after this one.

    It is the time, and higher in any case. Several processes may push for one uuid, one after the
    other: each `clustermutex alive` of a script is one. What one of them has left on a minority of
    the servers the next one may not get to see, so that it must find a higher number without that:
    else a remover that has seen the first one's takes it for the latest.
    """
    return max(push + 1, time.time_ns() // 10**6)


def push_of(revision: int) -> int:
    """Return which push a revision is of, 0: the take."""
    return revision & (1 << _PUSH_BITS) - 1


def written(holder: Holder) -> list[str]:
    """Return what a taker writes, fields and values in turn."""
    return [text for pair in holder.subkeys().items() for text in pair]


def holder_of(name: str, fields: Mapping[str, bytes]) -> Holder | None:
    """Return who has a lock, by its fields in one server; None: nobody."""
    if "uuid" not in fields:
        return None
    uuid = fields["uuid"].decode(errors="replace")
    return Holder.read(name, subkeys_of(fields, uuid, number_of(fields.get("push", b""))))


def subkeys_of(fields: Mapping[str, bytes | None], uuid: str, push: int) -> dict[str, Found]:
    """Return the subkeys of a lock with their revisions, by its fields in one server."""
    token, now = token_of(uuid), revision_of(uuid, push)
    values = ((part, fields.get(part)) for part in SUBKEYS)
    return {
        part: (value, now if part in STAMPS else token)
        for part, value in values
        if value is not None
    }


def number_of(value: bytes, max_digits: int = _MAX_PUSH_DIGITS) -> int:
    """Read a number as a script does that finds something else there."""
    return int(value) if value.isdigit() and len(value) <= max_digits else 0


def numbered(name: str, value: bytes) -> int:
    """Read the number of a push that is to be followed by the next one.

    Raises:
        StoreError: it is none, so that nothing follows it.
    """
    if value.isdigit() and len(value) <= _MAX_PUSH_DIGITS:
        return int(value)
    raise StoreError(
        f"The lock {name!r} can't be pushed: its field push is {value.decode(errors='replace')!r} "
        "and no number of at most thirteen digits. Another program has written it."
    )
