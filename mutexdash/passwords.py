"""Users and passwords from a file as `htpasswd -B` writes it."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import bcrypt

log = logging.getLogger(__name__)

# Of the last character of the salt only two bits count: bcrypt refuses one that has others.
_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}", re.ASCII)
_COSTS = range(4, 16)
"""bcrypt's costs that are taken: above them one login would keep a thread for many seconds."""
_LONGEST = 72
"""Bytes of a password that bcrypt looks at; a longer one is none of ours."""
_NOBODYS = b"." * 53
"""The hash that is compared with when there is no such user."""


class BadFile(ValueError):
    """The file of passwords can't be used; the text is a sentence that says why."""


class Passwords:
    """The users of a file, which is read again when it has changed.

    A change that makes it unusable is logged and changes nothing: nobody is locked out by a typing
    error in a running dashboard.

    Raises:
        BadFile: it can't be read, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._version = _version(path)
        self._hashes = _read(path)
        # A page polls every two seconds and bcrypt is slow on purpose: what was right is
        # remembered, not in the clear, as long as the user's line in the file stays the same.
        self._key = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}

    def known(self, user: str, password: str) -> bool:
        """Tell whether this is a user's password that was right a while ago: quick."""
        stored = self._stored(user)
        digest = self._right.get(user)
        if stored is None or digest is None:
            return False
        return hmac.compare_digest(digest, self._digest(stored, password))

    def check(self, user: str, password: str) -> bool:
        """Tell whether this is a user's password; takes as long for a user that there is not.

        (Where all hashes have the same cost.)
        """
        stored = self._stored(user)
        given = password.encode(errors="replace")
        fits = len(given) <= _LONGEST and b"\0" not in given
        right = bcrypt.checkpw(given if fits else b"", stored or self._nobodys())
        if stored is None or not fits or not right:
            return False
        self._right[user] = self._digest(stored, password)
        return True

    def _nobodys(self) -> bytes:
        """Return a hash that takes as long as the users' do, so that the time tells nothing."""
        ((cost, _),) = Counter(each[4:6] for each in self._hashes.values()).most_common(1)
        return b"$2b$%b$%b" % (cost, _NOBODYS)

    def _digest(self, stored: bytes, password: str) -> bytes:
        return hmac.digest(self._key, stored + password.encode(errors="replace"), sha256)

    def _stored(self, user: str) -> bytes | None:
        with self._lock:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                try:
                    self._hashes = _read(self._path)
                except BadFile as error:
                    log.error("Going on with the users of before: %s", error)
                else:
                    self._right = {}
            return self._hashes.get(user)


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - at every request: the quick way
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> Mapping[str, bytes]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadFile(f"The password file {path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"The password file {path} is not UTF-8.") from error
    found: dict[str, bytes] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, stored = line.strip().partition(":")
        match = _HASH.fullmatch(stored)
        if not (user and colon and match and int(match[1]) in _COSTS):
            raise BadFile(
                f"Line {number} of the password file {path} is not USER:HASH with a bcrypt hash "
                f"of cost {_COSTS[0]} to {_COSTS[-1]}. Make it by: htpasswd -B -C 12 FILE USER"
            )
        if user in found:
            raise BadFile(f"The password file {path} has the user {user!r} twice.")
        found[user] = stored.encode()
    if not found:
        raise BadFile(
            f"The password file {path} has no user. Add one by: htpasswd -B -C 12 {path} USER"
        )
    return found
