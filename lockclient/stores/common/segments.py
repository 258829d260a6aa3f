"""Percent-encoded lock names as the last segment of a key's or an object's name."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from lockclient.errors import InvalidLockName
from lockclient.model.lock_name import check_name

_is_plain: Final = re.compile("[A-Za-z0-9_.-]+").fullmatch


def lock_name_of(segment: str) -> str | None:
    """Return the lock's name that a segment encodes; None: it is none that we would write."""
    try:
        if _is_plain(segment):  # nearly all are
            return check_name(segment)
        name = check_name(unquote(segment, errors="strict"))
    except (InvalidLockName, UnicodeDecodeError):
        return None
    return name if quote(name, safe="") == segment else None
