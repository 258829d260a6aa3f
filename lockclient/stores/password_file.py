"""Password files: a password of a store that is read each time it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MAX_PASSWORD_BYTES: Final = 4096
"""Bytes of a file with a password."""


def read_password(path: str) -> str:
    """Return a file's content without the end of its line.

    Raises:
        ValueError: it can't be read, or is no password; the text says why and quotes nothing of it.
    """
    try:
        with Path(path).open("rb") as file:
            read = file.read(MAX_PASSWORD_BYTES + 1)
        password = read.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"The password file {path!r} can't be read: {why}.") from None
    if not password or len(read) > MAX_PASSWORD_BYTES:
        fault = "is empty" if not password else f"has more than {MAX_PASSWORD_BYTES} bytes"
        raise ValueError(f"The password file {path!r} {fault}.")
    return password
