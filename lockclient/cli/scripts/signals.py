"""Signals: those that end a wait, dying of one, and a pipe (self-pipe) that collects them."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

from lockclient.cli.exit_status import SIGNALLED

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """One of the signals that end a program has come."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP end what is done in this process, from now on until `hold_off`.

    Not those that we were started with as ignored: under nohup, or in a shell's background.
    """

    def __init__(self) -> None:
        self._raising = True
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def hold_off(self) -> None:
        """Let the signals pass without effect from now on."""
        self._raising = False

    @staticmethod
    def end() -> None:
        """Let the signals do what they do in any program."""
        for number in _ENDING_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    @staticmethod
    def ignore() -> None:
        """Ignore the signals to the end: as Python ends, it resets handlers, but not SIG_IGN."""
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._raising:
            self._raising = False  # a second one must not disturb the clean-up after the first
            raise Interrupted(number)


def die_by_signal(number: int) -> NoReturn:
    """End this process by a signal, as whoever started it expects of a program that had it.

    A shell script ends with its command on Ctrl-C only if the command died of it, and systemd
    counts SIGTERM as a good end; for a shell the status is 128 + n in either case.
    """
    with suppress(OSError):
        sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(SIGNALLED + number)  # it was blocked by whoever debugs us


NOTIFIED = 0
"""Stands among the signals for a call of `SignalPipe`; there is no signal 0."""


class SignalPipe:
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
                signal.signal(number, _do_nothing)
                self._collected.append(number)

    def end(self) -> None:
        """Let signals do what they do in any program."""
        signal.set_wakeup_fd(-1)
        for number in self._collected:
            signal.signal(number, signal.SIG_DFL)

    def notify(self) -> None:
        """Have `wait` return `NOTIFIED`; from any thread."""
        os.write(self._in, bytes([NOTIFIED]))

    def wait(self, until: float) -> list[int]:
        """Wait for signals, or until this monotonic time; return their numbers in their order."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        # A wait of a day at most: poll counts milliseconds in an int.
        if poll.poll(min(max(until - time.monotonic(), 0), 86400) * 1000):
            return list(os.read(self._out, 4096))
        return []


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing: the pipe has it."""
