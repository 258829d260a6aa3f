"""The stack of the call that took a lock, as text. Fast enough for every acquisition."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from pathlib import Path
from types import CodeType, FrameType

from lockclient.model.fields import size_of

LIMIT = 16 * 1024
"""Bytes of a backtrace in JSON at most; the innermost frames are kept."""

LIBRARY = str(Path(__file__).parents[1]) + os.sep
"""The prefix of this library's own files."""
COMMANDS = (f"{LIBRARY}cli{os.sep}", f"{LIBRARY}testing{os.sep}memory_locks.")
"""Prefixes of the library's files that count as a program: the command and the test locks."""

_WRAPPERS = (contextlib.__file__, f"{Path(contextlib.__file__).parent / 'asyncio'}{os.sep}")
"""Prefixes of the standard library's files that call this library for a program, like `ExitStack`
and `asyncio.wait_for`; a line of the program says more."""

FRAME_BYTES = 200
"""Bytes of the one frame of a ticket in JSON at most."""

_CUT = "  [outer frames left out]\n"
_CUT_SIZE = size_of(_CUT)

_KNOWN_AT_MOST = 4096
_known: dict[tuple[int, int], tuple[CodeType, str, int]] = {}
"""A cache of frames' texts with their bytes, by the code object's id and the instruction.

Finding a line number and reading a source line is slow, and a program has few call sites. The entry
refers to the code object, so that no other one can get its id.
"""


def capture() -> str:
    """Return the caller's stack as Python prints it, without our own frames or any values."""
    frame: FrameType | None = sys._getframe(1)
    parts: list[str] = []
    size = _CUT_SIZE
    while frame is not None:
        key = (id(frame.f_code), frame.f_lasti)
        _, text, length = _known.get(key) or _rendered(key, frame)
        size += length
        if size > LIMIT:
            parts.append(_CUT)
            break
        parts.append(text)
        frame = frame.f_back
    parts.reverse()
    return "".join(parts)


def is_internal(filename: str) -> bool:
    return filename.startswith(LIBRARY) and not filename.startswith(COMMANDS)


def _rendered(key: tuple[int, int], frame: FrameType) -> tuple[CodeType, str, int]:
    text = "" if is_internal(frame.f_code.co_filename) else _text(frame)
    known = (frame.f_code, text, size_of(text))
    if len(_known) >= _KNOWN_AT_MOST:
        _known.clear()
    _known[key] = known
    return known


def _text(frame: FrameType) -> str:
    code, number = frame.f_code, frame.f_lineno
    line = linecache.getline(code.co_filename, number).strip()
    head = f'  File "{code.co_filename}", line {number}, in {code.co_name}\n'
    text = f"{head}    {line[:500]}\n" if line else head
    return text.encode(errors="replace").decode()


def calling_line() -> str | None:
    """Return the line of the program that called this library, like `report.py:7`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_skipped(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def innermost(backtrace: str | None) -> str | None:
    """Return the line of a captured backtrace that took the lock, like `report.py:7`."""
    head = _innermost(backtrace)
    return None if head is None else f"{head[0]}:{head[1]}"


def innermost_frame(backtrace: str | None) -> str | None:
    """Return that line with its function, like `report.py:7 in main`; of a long one the end."""
    head = _innermost(backtrace)
    if head is None:
        return None
    frame = f"{head[0]}:{head[1]} in {head[2]}"
    if size_of(frame) <= FRAME_BYTES:
        return frame
    frame = frame[-FRAME_BYTES:]
    while size_of(frame) > FRAME_BYTES - size_of("…"):
        frame = frame[1:]
    return f"…{frame}"


def _innermost(backtrace: str | None) -> tuple[str, str, str] | None:
    heads: list[tuple[str, str, str]] = _HEAD.findall(backtrace or "")
    named = [head for head in heads if not head[0].startswith(_WRAPPERS)] or heads
    return named[-1] if named else None


def _is_skipped(filename: str) -> bool:
    return is_internal(filename) or filename.startswith(_WRAPPERS)


_HEAD = re.compile(r'^  File "(.+)", line (\d+), in (.*)', re.MULTILINE)
