"""The library's clean-up at the end of a process: in order, each step once.

`atexit` calls it. Forked children of `multiprocessing` run no `atexit` before Python 3.13: there a
finalizer of `multiprocessing` calls it. No call may need a new thread: Python 3.12 starts none.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from enum import IntEnum


class Order(IntEnum):
    """The order of the calls."""

    LOCKS, CLEAN_UP, INSTRUMENTS, LOG = range(4)


calls: dict[Order, Callable[[], object]] = {}
_done_in = 0
"""The process in which all was called; a fork's child does not count its parent's."""


def arm() -> None:
    """Register the calls: the scheduler's thread does so as it starts.

    `atexit` calls first what was registered last: stores that the program closes are open then.
    """
    atexit.unregister(_run)
    atexit.register(_run)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, _run, exitpriority=0)


def _run() -> None:
    global _done_in
    if _done_in != os.getpid():
        _done_in = os.getpid()
        with ExitStack() as stack:  # each is called, whatever another one raises
            for order in sorted(calls, reverse=True):
                stack.callback(calls[order])


atexit.register(_run)
