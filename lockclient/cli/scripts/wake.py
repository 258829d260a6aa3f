"""One place to wait for signals and for what other threads have to say."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable

NEWS = 0
"""Stands among the signals for a call of `Wake.tell`; there is no signal 0."""


class Wake:
    """Collects signals, and calls from other threads. For the main thread, once in a process.

    Python writes the number of each signal into a pipe at once, whatever its threads do; a handler
    would have to wait for the main thread, which waits for the handler.
    """

    def __init__(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._collected: list[int] = []

    def collect(self, signals: Iterable[int]) -> None:
        """Collect these signals from now on, unless we were started with them as ignored."""
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in signals:
            # One that is handled already goes on being so, and is collected as well.
            if signal.getsignal(number) in (signal.SIG_DFL, None):
                signal.signal(number, _collected)
                self._collected.append(number)

    def end(self) -> None:
        """Let signals do what they do in any program."""
        signal.set_wakeup_fd(-1)
        for number in self._collected:
            signal.signal(number, signal.SIG_DFL)

    def tell(self) -> None:
        """Have `hear` return `NEWS`; from any thread."""
        os.write(self._in, bytes([NEWS]))

    def hear(self, until: float) -> list[int]:
        """Wait for signals, or until this monotonic time; return their numbers in their order."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        # A wait of a day at most: poll counts milliseconds in an int.
        if poll.poll(min(max(until - time.monotonic(), 0), 86400) * 1000):
            return list(os.read(self._out, 4096))
        return []


def _collected(_number: int, _frame: object) -> None:
    """Do nothing: the pipe has it."""
