"""The library's clean-up at the end of a process: in order, each step once.

`atexit` calls it; in forked children of `multiprocessing`, which run no `atexit` before Python
3.13, a finalizer of `multiprocessing`. No step may need a new thread: Python 3.12 starts none.
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
"""The pid of the process that has done the clean-up."""


def arm() -> None:
    """Register the calls: the scheduler's thread does so as it starts.

    `atexit` calls the last registered function first, so the program's own functions run later,
    and the stores that they close are still open.
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
        with ExitStack() as stack:  # calls each, also after an exception
            for order in sorted(calls, reverse=True):
                stack.callback(calls[order])


atexit.register(_run)
