"""Reentry: whether a release runs on top of this library's own code, in one thread.

The garbage collector runs finalizers in whichever thread allocates, in the middle of anything, and
a signal's handler runs between any two steps of the main thread. A `with` of a generator that is
collected there releases its lock. If it waited, it would wait for what its own thread was about to
do, or for a lock of Python's that this has: so it hands over, and returns at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from lockclient.model.backtrace import COMMANDS, LIBRARY

_FRONT = tuple(
    f"{LIBRARY}{module}.py"
    for module in (
        *("mutex", "aio", "acquisition/decorated"),
        *("acquisition/reentry", "acquisition/with_statement"),
    )
)


def called_by_library() -> bool:
    """Tell whether this release was begun by a finalizer or handler on top of our own code."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename in _FRONT:
        frame = frame.f_back  # the call itself
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(LIBRARY) and not code.co_filename.startswith(COMMANDS):
            return code is not call_user.__code__
        frame = frame.f_back
    return False


def call_user(function: Callable[..., object], *args: object, **how: object) -> object:
    """Call what the program gave us (`on_lost`, what is decorated), where it may wait."""
    return function(*args, **how)
