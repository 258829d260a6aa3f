"""Signals for `run` and `lock`: received by one thread, which knows the sender of each."""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty, SimpleQueue
from typing import NamedTuple, NoReturn

from lockclient.cli.exit_status import SIGNALLED
from lockclient.threads.daemon_thread import SYNCHRONOUS_SIGNALS, block_signals

WAKE = signal.SIGRTMAX
"""Interrupts the main thread; not forwarded to a command."""
NOTIFIED = 0
"""Stands among the signals for a call of `Signals.notify`; there is no signal 0."""
_SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent."""
_KEYS = (signal.SIGINT, signal.SIGQUIT)
"""Signals of a terminal's keys (Ctrl-C, Ctrl-\\)."""
_JOB_CONTROL = {signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGSTOP, signal.SIGCONT}
_ERRORS = {
    *SYNCHRONOUS_SIGNALS,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}
"""Signals that the kernel sends for an error of this process."""
_OUR_OWN = {signal.SIGKILL, signal.SIGCHLD, WAKE}
FORWARDED_SIGNALS = frozenset(signal.valid_signals() - _JOB_CONTROL - _ERRORS - _OUR_OWN)
"""Signals that `run` forwards to its command."""
_ENDING_A_WAIT = FORWARDED_SIGNALS - {signal.SIGURG, signal.SIGWINCH}
"""Signals that end a process by default."""


class Interrupted(BaseException):
    """A signal came that ends a process by default."""

    def __init__(self, number: int) -> None:
        super().__init__(_name_of(number))
        self.number = number


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


class Received(NamedTuple):
    """A signal, and whether a terminal sent it to its foreground process group, for a key."""

    number: int
    is_key: bool = False


class Signals:
    """Receives signals, but for those that were ignored when this process started.

    The main thread constructs it before there are other threads: all inherit its mask, which blocks
    the signals, so that `sigwaitinfo` in one thread gets them with their senders.
    """

    def __init__(self) -> None:
        self.inherited_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        received = FORWARDED_SIGNALS | {signal.SIGCHLD, signal.SIGCONT}
        self._received = {n for n in received if signal.getsignal(n) is not signal.SIG_IGN}
        if signal.SIGINT in self._received:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        # A parent may ignore it. Then no child's end would be reported.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._received.add(signal.SIGCHLD)
        signal.signal(WAKE, self._interrupt)
        block_signals(self._received)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {WAKE})
        self._queue: SimpleQueue[Received] = SimpleQueue()
        self._main = threading.get_ident()
        self._raising = self._over = False
        self._ending: int | None = None
        threading.Thread(target=self._receive, name="clustermutex-signals", daemon=True).start()

    def interrupt_main(self) -> None:
        """From now on a signal raises `Interrupted` in the main thread, once, until `hold_off`."""
        self._raising = True
        if self._ending is not None:
            self._interrupt(self._ending, None)

    def hold_off(self) -> None:
        """From now on signals are kept for `wait`."""
        self._raising = False

    def end(self) -> None:
        """From now on signals do what they do in any program."""
        self._over = True

    def notify(self) -> None:
        """Make `wait` return `NOTIFIED`; from any thread."""
        self._queue.put(Received(NOTIFIED))

    def wait(self, until: float) -> Received | None:
        """Return the next signal; None: there was none until this monotonic time."""
        try:
            return self._queue.get(timeout=min(max(until - time.monotonic(), 0), 86400))
        except Empty:
            return None

    def _receive(self) -> None:
        while True:
            info = signal.sigwaitinfo(self._received)
            number = info.si_signo
            is_key = number in _KEYS and info.si_code == _SI_KERNEL
            self._queue.put(Received(number, is_key))
            if number not in _ENDING_A_WAIT:
                continue
            if self._over:
                die_by_signal(number)
            self._ending = self._ending or number
            # The main thread sets `_raising`, then reads `_ending`: one of the two sees the other.
            if self._raising:
                signal.pthread_kill(self._main, WAKE)

    def _interrupt(self, number: int, _frame: object) -> None:
        if self._raising:
            self._raising = False  # a second one must not disturb the clean-up after the first
            raise Interrupted(self._ending or number)


def die_by_signal(number: int) -> NoReturn:
    """End this process by a signal, as its parent expects of a program that had it.

    A shell script ends with its command on Ctrl-C only if the command died of it, and systemd
    counts SIGTERM as a good end; for a shell the status is 128 + n in either case.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)
    os._exit(SIGNALLED + number)  # a debugger holds it back
