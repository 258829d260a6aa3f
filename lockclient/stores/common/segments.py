"""Percent-encoded lock names as segments of the names of keys and objects.

A name is percent-encoded with nothing but RFC 3986's unreserved characters left bare, so that it
is always one path segment and two names never share a key.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from lockclient.errors import InvalidLockName
from lockclient.model.lock_name import check_name

_is_bare: Final = re.compile("[A-Za-z0-9._~-]*").fullmatch


@lru_cache(maxsize=1024)  # one cycle asks for the same few again and again
def encode(name: str) -> str:
    """Return the path segment of a lock's name."""
    return name if _is_bare(name) else quote(name, safe="")


@lru_cache(maxsize=1024)  # the five keys of a lock in etcd come one after the other
def decode(segment: str) -> str | None:
    """Return the name of a path segment; None if it is not the encoding of any name.

    Only the one canonical encoding counts: `a b` and `a%20b` must not be taken for one lock.
    """
    try:
        name = check_name(unquote(segment, errors="strict"))
    except (UnicodeDecodeError, InvalidLockName):
        return None
    return name if encode(name) == segment else None


class SegmentNames:
    """Names of keys or objects in a store without folders, by the prefix of each kind."""

    def __init__(self, locks: str, unlockers: str, removed: str) -> None:
        self.locks = locks
        self.unlockers = unlockers
        self.removed = removed

    def lock(self, name: str) -> str:
        """Return the name of a lock."""
        return f"{self.locks}{encode(name)}"

    def record(self, name: str, uuid: str) -> str:
        """Return the name of the record of a removal."""
        return f"{self.removed}{encode(name)}/{encode(uuid)}"

    def announcement(self, unlocker: str) -> str:
        """Return the name of an unlocker's announcement."""
        return f"{self.unlockers}{encode(unlocker)}"
