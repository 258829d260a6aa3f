"""A daemon thread that does one step again and again, started when it is first needed."""

from __future__ import annotations

import signal
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import Final

SYNCHRONOUS_SIGNALS: Final = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}
"""Signals that a thread causes itself. Blocked, they end the process without `faulthandler`."""

_program_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""The signals that the program has blocked."""


def block_signals(numbers: Collection[int]) -> None:
    """Block signals in this thread, and in the threads that run the program's code from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    _program_mask.update(numbers)


def set_program_mask() -> None:
    """Block the program's blocked signals in this thread, and no others of its starter's."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _program_mask)


def is_interpreter_end(refusal: Exception) -> bool:
    """Return whether a thread was refused because the interpreter ends.

    Python 3.12 refuses each from the end of the main thread on, while others may still work.
    """
    return "shutdown" in str(refusal)


class DaemonThread:
    """A thread that calls `_turn` again and again; `start` takes no lock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.missing = deque((True,))  # the thread that pops this entry stays

    def start(self) -> None:
        """Start the thread, unless it runs; raise RuntimeError if the system gives none."""
        # One call in C. A `Thread.start()` that a signal handler's exception interrupts leaves a
        # thread that hangs before it has begun.
        if self.missing:
            start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self.missing.pop()
        except IndexError:  # two callers started one at once
            return
        try:
            threading.current_thread().name = self._name
            self._begin()
            while True:
                self._turn()
        finally:  # a program may raise in any thread by `PyThreadState_SetAsyncExc`
            self.missing.append(True)
            with suppress(RuntimeError):  # then the next caller starts it
                self.start()

    def _begin(self) -> None:
        set_program_mask()

    def _turn(self) -> None:
        raise NotImplementedError
