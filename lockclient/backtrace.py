"""The stack of the call that took a lock, as text, cheap enough for every acquisition."""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

LIMIT = 16 * 1024
"""Bytes that a backtrace may have; the innermost frames are kept."""

_LIBRARY = str(Path(__file__).parent) + os.sep
_COMMANDS = f"{_LIBRARY}cli{os.sep}"  # the command is a user of the library like any other
_CUT = "  [outer frames left out]\n"


def capture() -> str:
    """Return the caller's stack, the innermost call last, without frames of this library.

    File, line, function and source line, as Python prints a traceback; no values of variables.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _internal(frame.f_code.co_filename):
        frame = frame.f_back
    parts: list[str] = []
    size = len(_CUT)
    while frame is not None:
        code = frame.f_code
        text = _frame_text(code.co_filename, frame.f_lineno, code.co_name)
        size += len(text.encode(errors="replace"))
        if size > LIMIT:
            parts.append(_CUT)
            break
        parts.append(text)
        frame = frame.f_back
    parts.reverse()
    return "".join(parts)


def _internal(filename: str) -> bool:
    return filename.startswith(_LIBRARY) and not filename.startswith(_COMMANDS)


# Reading a source line touches a file the first time; the same few call sites come again.
@lru_cache(maxsize=4096)
def _frame_text(filename: str, number: int, function: str) -> str:
    line = linecache.getline(filename, number).strip()
    head = f'  File "{filename}", line {number}, in {function}\n'
    text = f"{head}    {line[:500]}\n" if line else head
    return text.encode(errors="replace").decode()
