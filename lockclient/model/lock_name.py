"""The rules for a lock's name."""

from __future__ import annotations

import re
from typing import Final

from lockclient.errors import InvalidLockName

MAX_NAME_BYTES: Final = 255
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(name: object) -> str:
    """Return a lock's name as an exact `str` (an Enum's member may format differently), else raise
    InvalidLockName.
    """
    if not isinstance(name, str):
        raise InvalidLockName(f"A lock's name must be a text, not {type(name).__name__}.")
    name = str.__str__(name)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidLockName(
            f"The lock name {name!r} has a lone surrogate and can't be written as UTF-8.",
            name=name,
        ) from None
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidLockName(
            f"A lock's name must have 1 to {MAX_NAME_BYTES} bytes in UTF-8; this one has {size}.",
            name=name,
        )
    if _CONTROL.search(name):
        raise InvalidLockName(f"The lock name {name!r} has control characters.", name=name)
    return name
