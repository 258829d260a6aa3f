"""Users and passwords from a file as `htpasswd -B` writes it."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import bcrypt

from lockclient.service.outage import Outage

log = logging.getLogger(__name__)

# Of the last character of the salt only two bits count: bcrypt refuses one that has others.
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}", re.ASCII)
_COSTS = range(4, 16)
"""Accepted costs of bcrypt: with a higher one a login would keep a thread for many seconds."""
_MAX_PASSWORD_BYTES = 72
"""bcrypt ignores the bytes after these; a longer password is refused."""
_NOBODYS_HASH = b"." * 53
"""The hash that the password of an unknown user is compared with."""
_MAX_REMEMBERED = 1000
"""Correct logins that are remembered; the oldest is forgotten."""


class BadFile(ValueError):
    """The password file can't be used; the text is a sentence that says why."""


class Passwords:
    """The users of a file, which is read again when it has changed.

    A change counts at once, also the deletion of the file or of a line. A line that can't be read
    admits no user and is logged; the others count.

    Raises:
        BadFile: the file has no user at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version = _version(path)
        self._hashes, faults = _read(path)
        if not self._hashes:
            raise BadFile(faults[0])
        _log_faults(faults)
        self._outage = Outage(log, f"The password file {path} can be used again.")
        # A page polls every two seconds, and bcrypt is slow. So a keyed hash of a correct password
        # is remembered with the user's line, for the network that it came from.
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def has_logged_in(self, user: str, place: str = "") -> bool:
        """Return whether this user has logged in from this network."""
        return (user, place) in self._right

    def is_remembered(self, user: str, password: str, place: str = "") -> bool:
        """Return whether this password was correct before, from the same network; fast."""
        stored = self._stored(user)
        digest = self._right.get((user, place))
        if stored is None or digest is None:
            return False
        return hmac.compare_digest(digest, self._digest(stored, password))

    def check(self, user: str, password: str, place: str = "") -> bool:
        """Return whether this is the user's password, by bcrypt.

        It takes as long for an unknown user if all hashes have the same cost.
        """
        stored = self._stored(user)
        nobodys = self._nobodys()
        if nobodys is None:
            return False
        given = password.encode(errors="replace")
        fits = len(given) <= _MAX_PASSWORD_BYTES and b"\0" not in given
        right = bcrypt.checkpw(given if fits else b"", stored or nobodys)
        if stored is None or not fits or not right:
            return False
        with self._lock:
            self._right[user, place] = self._digest(stored, password)
            self._right.move_to_end((user, place))
            while len(self._right) > _MAX_REMEMBERED:
                self._right.popitem(last=False)
        return True

    def _nobodys(self) -> bytes | None:
        """Return a hash of the users' most frequent cost."""
        costs = Counter(stored[4:6] for stored in self._hashes.values()).most_common(1)
        return b"$2b$%b$%b" % (costs[0][0], _NOBODYS_HASH) if costs else None

    def _digest(self, stored: bytes, password: str) -> bytes:
        return hmac.digest(self._key, stored + password.encode(errors="replace"), sha256)

    def _stored(self, user: str) -> bytes | None:
        with self._lock:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._hashes, faults = _read(self._path)
                _log_faults(faults)
                if self._hashes:
                    self._outage.succeeded()
                else:
                    text = "Nobody can log in until the password file %s is fixed."
                    self._outage.failed(text, self._path)
            return self._hashes.get(user)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - at every request: the quick way
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _log_faults(faults: list[str]) -> None:
    for fault in faults[:10]:
        log.error("%s", fault)
    if len(faults) > 10:
        log.error("%d more such lines follow.", len(faults) - 10)


def _read(path: Path) -> tuple[Mapping[str, bytes], list[str]]:
    """Return the users' hashes, and sentences on the file's faults; one at least if it has no
    user."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        return {}, [f"The password file {path} can't be read: {error.strerror}."]
    found: dict[str, bytes] = {}
    twice: set[str] = set()
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            user, _, stored = line.decode().strip().partition(":")
        except UnicodeDecodeError:
            faults.append(f"Line {number} of the password file {path} is not UTF-8.")
            continue
        match = _HASH.fullmatch(stored)
        if not (user and match and int(match[1]) in _COSTS):
            faults.append(
                f"Line {number} of the password file {path} is not USER:HASH with a bcrypt hash "
                f"of cost {_COSTS[0]} to {_COSTS[-1]}: it lets nobody in. Make it by: "
                "htpasswd -B -C 12 FILE USER"
            )
        elif user in found:
            twice.add(user)
        else:
            found[user] = stored.encode()
    for user in sorted(twice):
        del found[user]
        faults.append(f"The password file {path} has the user {user!r} twice: neither counts.")
    if not found and not faults:
        faults.append(
            f"The password file {path} has no user. Add one by: htpasswd -B -C 12 {path} USER"
        )
    return found, faults
