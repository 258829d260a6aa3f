"""Keys: from lock names to keys and ranges and back, the contract of `docs/protocol.md`."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args
from urllib.parse import unquote

from lockclient.model.holder import MAX_UUID_BYTES, SUBKEYS
from lockclient.model.lock_name import MAX_NAME_BYTES
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.service_store import Kind

KINDS: tuple[Kind, ...] = get_args(Kind)
_SUBKEYS = {part.encode(): part for part in sorted(SUBKEYS)}
_IN_ORDER = tuple(_SUBKEYS)


def segment_of(key: bytes) -> str:
    """Return a key's last segment, not decoded: another client may encode names differently."""
    return key.rpartition(b"/")[2].decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class LockKeys:
    """The keys of one lock. Ranges are (first key, end), the end not included."""

    lock: tuple[bytes, bytes]
    queue: tuple[bytes, bytes]
    uuid: bytes
    removed: bytes
    withdrawn: bytes

    def subkey(self, part: str) -> bytes:
        """Return the key of one subkey."""
        return self.lock[0] + part.encode()

    def ticket(self, uuid: str) -> bytes:
        """Return the key of a waiter's ticket."""
        return self.queue[0] + encode(uuid).encode()

    def ticket_as_read(self, segment: str) -> bytes:
        """Return the key of a ticket by its `segment_of`."""
        return self.queue[0] + segment.encode(errors="surrogateescape")

    def removal(self, uuid: str) -> bytes:
        """Return the key of the record of a removal."""
        return self.removed + encode(uuid).encode()

    def tombstone(self, uuid: str) -> bytes:
        """Return the key that disarms a late take of a withdrawn acquisition."""
        return self.withdrawn + encode(uuid).encode()


class Keys:
    """All keys under one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.everything = _below(f"{root}/".encode())
        self.documents = _below(f"{root}/notifications/".encode())
        self.keys_of = lru_cache(maxsize=4096)(self._keys_of)
        self._locks = f"{root}/locks".encode()
        # Root, kind, name and part, each byte of the latter two percent-encoded.
        self._longest = len(self.everything[0]) + 16 + 3 * (MAX_NAME_BYTES + MAX_UUID_BYTES)
        self._lock_of = lru_cache(maxsize=4096)(self._name_of)

    def _keys_of(self, name: str) -> LockKeys:
        lock, queue, removed, withdrawn = (
            f"{self.root}/{kind}/{encode(name)}/".encode()
            for kind in ("locks", "queue", "removed", "withdrawn")
        )
        return LockKeys(_below(lock), _below(queue), lock + b"uuid", removed, withdrawn)

    def kind(self, kind: Kind) -> tuple[bytes, bytes]:
        """Return the range of all keys of one kind."""
        return _below(f"{self.root}/{kind}/".encode())

    def locks_from(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the range of all keys of locks whose names begin with `prefix`.

        Each character is encoded by itself, so the encoding of a name begins with its prefix's.
        """
        first = f"{self.root}/locks/{encode(prefix)}".encode()
        return first, first[:-1] + bytes([first[-1] + 1])  # no byte of an encoding is the last one

    def following(self, key: bytes) -> bytes:
        """Return the first key after this one that may be one of ours.

        It skips unknown subkeys of a lock: other clients may have written any number of large ones.
        """
        root = self._locks + b"/"
        segment, slash, part = key.removeprefix(root).partition(b"/")
        if not slash or not key.startswith(root):
            return key + b"\0"
        place = bisect_right(_IN_ORDER, part)
        folder = root + segment
        return folder + (b"/" + _IN_ORDER[place] if place < len(_IN_ORDER) else b"0")

    def unlocker(self, unlocker: str) -> bytes:
        """Return the key of an unlocker's announcement."""
        return f"{self.root}/unlockers/{encode(unlocker)}".encode()

    def code(self, code: str) -> bytes:
        """Return the key of a backtrace that removal records share."""
        return f"{self.root}/code/{encode(code)}".encode()

    def _name_of(self, folder: bytes) -> str | None:
        """Return the name of the lock with this folder of keys; None if no lock has it."""
        locks, _, segment = folder.rpartition(b"/")
        return decode(segment.decode(errors="replace")) if locks == self._locks else None

    def parse(self, key: bytes) -> tuple[Kind, str, str] | None:
        """Return kind, name and part of a key; None: a foreign key.

        A part is a uuid or names a backtrace. Tables keep parts, so a longer one is ignored.
        """
        if len(key) > self._longest:
            return None
        # Nearly all keys are those of locks, five of each lock in a row.
        folder, _, subkey = key.rpartition(b"/")
        part = _SUBKEYS.get(subkey)
        if part is not None and (lock := self._lock_of(folder)) is not None:
            return "locks", lock, part
        try:
            kind, *segments = key[len(self.everything[0]) :].decode().split("/", 2)
        except UnicodeDecodeError:
            return None
        name = decode(segments[0]) if segments else None
        known = next((folder for folder in KINDS if folder == kind), None)
        if known in (None, "locks") or name is None:  # or an unknown subkey of a lock
            return None
        part = unquote(segments[1]) if len(segments) > 1 else ""
        return (known, name, part) if len(part.encode()) <= MAX_UUID_BYTES else None


def _below(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the range of the keys below a prefix that ends in a slash."""
    return prefix, prefix[:-1] + b"0"  # "0" is the character after "/"
