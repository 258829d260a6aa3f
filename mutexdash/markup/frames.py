"""A backtrace as frames: the application's own first, then those of libraries.

A client in another language that prints its stack as Python does gets the same; any other text is
shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEAD = re.compile(r'^ *File "(.+)", line (\d{1,9}), in (.+)$')
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python[\d.]*/|/node_modules/|/pkg/mod/|^<frozen "
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; `code` is its source line, empty if that is missing."""

    file: str
    line: int
    function: str
    code: str
    library: bool

    @property
    def place(self) -> str:
        """File and line, in the form that editors open."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Backtrace:
    """The frames of a backtrace, the innermost call first in both lists.

    Attributes:
        own: frames of the application; the first of them is where it took the lock.
        library: the others. With no frame of an application, all of them count as its own.
        within: how many library frames lie inside the innermost own one, as when the lock was
            taken through `ExitStack.enter_context`.
        text: the backtrace as it came.
    """

    own: Sequence[Frame]
    library: Sequence[Frame]
    within: int
    text: str


def read_backtrace(text: str) -> Backtrace:
    """Return the frames of a hostile text; none if it is no backtrace of Python's."""
    frames: list[Frame] = []
    lines = iter(text.split("\n"))
    line = next(lines, None)
    while line is not None:
        head, line = _HEAD.match(line), next(lines, None)
        if head is None:
            continue
        code = ""
        if line is not None and line.startswith("    ") and not _HEAD.match(line):
            code, line = line.strip(), next(lines, None)
        file, number, function = head.groups()
        frames.append(Frame(file, int(number), function, code, bool(_LIBRARY.search(file))))
    frames.reverse()
    own = [frame for frame in frames if not frame.library]
    if not own:
        return Backtrace(frames, (), 0, text)
    library = [frame for frame in frames if frame.library]
    return Backtrace(own, library, frames.index(own[0]), text)
