"""A backtrace as frames: the application's own first, those of libraries folded away.

Clients write what Python prints, and so does every client that wants its frames told apart; any
other text stays what it is and is shown as it came.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

_HEAD = re.compile(r'^ *File "(.+)", line (\d{1,9}), in (.+)$')
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python[\d.]*/|/node_modules/|/pkg/mod/|^<frozen "
)

_MAX_CALLS_IN_ROUND = 4
_MIN_ROUNDS = 3
"""Rounds below which folding hides more than it helps."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: `code` is its source line, empty if that was not to be had.

    `repeated` is how often the call, and `calls` - 1 before it, stood there in a row: once is 1.
    """

    file: str
    line: int
    function: str
    code: str
    library: bool
    repeated: int = 1
    calls: int = 1

    @property
    def place(self) -> str:
        """File and line as editors take them."""
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
    """Read a hostile text; one that is no backtrace of Python's has no frames."""
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
        return Backtrace(folded(frames), (), 0, text)
    library = [frame for frame in frames if frame.library]
    return Backtrace(folded(own), folded(library), frames.index(own[0]), text)


def folded(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames, of a call that calls itself over and over only one round.

    Directly, or by a few others that take turns.
    """
    found: list[Frame] = []
    at = 0
    while at < len(frames):
        calls, times = _round(frames, at)
        found += frames[at : at + calls]
        if times > 1:
            found[-1] = replace(found[-1], repeated=times, calls=calls)
        at += calls * times
    return found


def _round(frames: Sequence[Frame], at: int) -> tuple[int, int]:
    """Return how many calls from `at` on make one round, and how many rounds follow each other."""
    for calls in range(1, _MAX_CALLS_IN_ROUND + 1):
        one, times = frames[at : at + calls], 1
        while frames[at + calls * times : at + calls * (times + 1)] == one:
            times += 1
        if times >= _MIN_ROUNDS:
            return calls, times
    return 1, 1
