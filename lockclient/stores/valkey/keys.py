"""Key names, lock fields and versions on each server; no I/O.

    <root>/server                    proves that this server has lost nothing: `lua_scripts`
    <root>/locks/<name>              the lock: a hash
    <root>/locks                     an index, a set: the rest of the name of each key below it;
                                     also <root>/unlockers and <root>/removed
    <root>/withdrawn/<name>/<uuid>   a tombstone: takes of this uuid up to that number do nothing
    <root>/removed/<name>/<uuid>     the record of a removal, JSON
    <root>/unlockers/<id>            an unlocker's announcement: a hash, which expires
    <root>/notifications/<name>      a document of unlockers: a hash, `announcements_and_documents`
    <root>/released/<name>           a channel, no key: a message there reports a release

A lock is one key: it exists as a whole or not at all. It is a hash, not JSON: its fields are the
five subkeys of every store, so that a script compares the uuid without reading the backtrace, and a
push writes two numbers and not ten kilobytes. Three more fields are `take`, the number of the try
that took the lock, `push`, the number of the last push (0: none), and `expiry`, the lifetime in
milliseconds after each of these (0: it does not expire).
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
"""Seconds that a lock's key outlives its time, so that an unlocker can report the end, and after
which no request can arrive: TCP gives up after a quarter of an hour."""
_PUSH_BITS: Final = 44
_MAX_PUSH_DIGITS: Final = 13
"""Digits of a push's number: milliseconds since 1970, until the year 2286."""


def drifted(seconds: float) -> float:
    """Return the duration that a server is given so that it never ends sooner than that here.

    Two clocks may differ in rate by one in a hundred, and a server reads its own a thousand times a
    second: the drift that Redlock's description allows for.
    """
    return seconds * 1.01 + 0.002


def milliseconds(seconds: float) -> str:
    """Return a duration in a command, rounded up."""
    return str(int(seconds * 1000) + 1)


class KeyNames(SegmentNames):
    """The keys' names below a root."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}/locks/", f"{root}/unlockers/", f"{root}/removed/")
        self.lock_index = f"{root}/locks"
        self.unlocker_index = f"{root}/unlockers"
        self.record_index = f"{root}/removed"
        self.server = f"{root}/server"
        self.documents = f"{root}/notifications/"
        self.all = f"{root}/"
        self.channels = f"{root}/released/*"
        """The pattern of all channels: neither a name nor the root contains a star."""

    def tombstone(self, name: str, uuid: str) -> str:
        """Return the key that disarms late takes of this uuid."""
        return f"{self.all}withdrawn/{encode(name)}/{encode(uuid)}"

    def channel(self, name: str) -> str:
        """Return the channel on which releases of a lock are published."""
        return f"{self.all}released/{encode(name)}"


def token_of(uuid: str) -> int:
    """Return a number of an acquisition, computed without a server; it is no fencing token.

    Servers that know nothing of each other have no number that only grows.
    """
    digest = int.from_bytes(blake2b(uuid.encode(errors="replace"), digest_size=4).digest(), "big")
    return MOST_FENCING + (digest // 16384 << _PUSH_BITS)  # too large to be shown as a token


def revision_of(uuid: str, push: int) -> int:
    """Return the number of a lock's state: within an acquisition it grows with each push."""
    return token_of(uuid) + push


def following(push: int) -> int:
    """Return the number of the push after this one: the time, and always higher than this one.

    Several processes may push for one uuid, one after the other: each `clustermutex alive` of a
    script is one. The next process may not read what the last one wrote on a minority of the
    servers, and must find a higher number all the same: else a remover that has read the earlier
    push takes it for the latest.
    """
    return max(push + 1, time.time_ns() // 10**6)


def push_of(revision: int) -> int:
    """Return the push of a revision, 0: the take."""
    return revision & (1 << _PUSH_BITS) - 1


def holder_of(name: str, fields: Mapping[str, bytes]) -> Holder | None:
    """Return the holder of a lock, by its fields on one server; None: the lock is free."""
    if "uuid" not in fields:
        return None
    uuid = fields["uuid"].decode(errors="replace")
    return Holder.read(name, subkeys_of(fields, uuid, number_of(fields.get("push", b""))))


def subkeys_of(fields: Mapping[str, bytes | None], uuid: str, push: int) -> dict[str, Found]:
    """Return the subkeys of a lock with their revisions, by its fields on one server."""
    token, now = token_of(uuid), revision_of(uuid, push)
    values = ((part, fields.get(part)) for part in SUBKEYS)
    return {
        part: (value, now if part in STAMPS else token)
        for part, value in values
        if value is not None
    }


def number_of(value: bytes, max_digits: int = _MAX_PUSH_DIGITS) -> int:
    """Read a number; any other text is 0, as in scripts."""
    return int(value) if value.isdigit() and len(value) <= max_digits else 0


def push_to_follow(name: str, value: bytes) -> int:
    """Read the number of a push.

    Raises:
        StoreError: another program wrote something else, and no number follows that.
    """
    if value.isdigit() and len(value) <= _MAX_PUSH_DIGITS:
        return int(value)
    raise StoreError(
        f"The lock {name!r} can't be pushed: its field push is {value.decode(errors='replace')!r} "
        "and no number of at most thirteen digits. Another program has written it."
    )
