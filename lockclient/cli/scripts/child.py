"""The command that `clustermutex run` runs: its process group, its terminal, signals for it.

It has a process group of its own, so that all of it can be ended without touching those who run
beside us (a script, the rest of a pipeline). A terminal obeys one group: so that group is made the
foreground one where we are that, at once if input and output are the terminal, else when the
command asks for it, by being stopped as it reads or sets the terminal. What the terminal would
have done to a single group is done to ours by us: a Ctrl-Z that stops the command stops our job,
and a Ctrl-C that ends it ends the script around us.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockclient.cli.exit_status import SIGNALLED

_NOT_FORWARDED = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD),
    *(signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGCONT),
    # By these the kernel says that we did something wrong ourselves.
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT),
    *(signal.SIGSYS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU, signal.SIGPROF),
}
FORWARDED_SIGNALS = frozenset(signal.valid_signals() - _NOT_FORWARDED)
"""What a command gets that is sent to us."""


class Terminal:
    """Our controlling terminal, if we have one, and which process group it obeys."""

    def __init__(self) -> None:
        self._own = os.getpgrp()
        self._fd: int | None = None
        with suppress(OSError):  # a cron job, a service: there is none
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)

    def foreground(self) -> int | None:
        """Return the group that it obeys; None: there is none, or it is gone."""
        if self._fd is None:
            return None
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return None

    def is_ours(self) -> bool:
        """Tell whether our group is in the foreground."""
        return self.foreground() == self._own

    def give(self, group: int) -> None:
        """Make it obey this group."""
        if self._fd is None:
            return
        # A background group that does this is stopped by SIGTTOU, unless that is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(OSError):  # the group has ended, or the terminal was closed
                os.tcsetpgrp(self._fd, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_back(self, group: int) -> bool:
        """Make it obey us again if it obeys this group; tell whether it did."""
        had = self.foreground() == group
        if had:
            self.give(self._own)
        return had


class Child:
    """The command, running.

    Args:
        command: the program and its arguments.
        env: its environment.
        files: what is to be its standard streams, by their numbers; the others are ours.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], files: Mapping[int, int] | None = None
    ) -> None:
        self.status: int | None = None
        """Its exit status, 128 + n where signal n has killed it; None while it lives."""
        self.killed_by: int | None = None
        """The signal that has killed it, if one has."""
        self.had_terminal = False
        """Whether a terminal obeyed it when it ended."""
        self._terminal = Terminal()
        self._interactive = os.isatty(0) and os.isatty(1)
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in (files or {}).items()]
        # Not by fork, which is not safe in a process where gRPC has threads. It has returned when
        # the new program runs, in its group: nothing is left to be done in the child.
        self.pid = os.posix_spawnp(
            command[0],
            list(command),
            env,
            file_actions=actions,
            setpgroup=0,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, the command must not
        )
        # Only now, so that the command has it as whoever started us had it. Some parents block the
        # first, and we would not hear of its end; by the last we would be stopped when we write to
        # a terminal that is the command's (`stty tostop`), and end it no more.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGCONT})
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if self._interactive and self._terminal.is_ours():
            self._terminal.give(self.pid)

    # ------------------------------------------------------------ signals

    def signal(self, number: int) -> None:
        """Send a signal to its process group; nothing happens if that is gone."""
        with suppress(ProcessLookupError, PermissionError):  # it may be another user's by now
            os.killpg(self.pid, number)

    def stop_with_us(self) -> None:
        """A SIGTSTP was sent to us, by the terminal or by anyone: stop it, and ourselves."""
        self.signal(signal.SIGTSTP)
        _stop(signal.SIGTSTP, whole_group=False)

    def resume(self) -> None:
        """Let it continue after a stop, with the terminal if that is ours now."""
        if self.status is None and self._interactive and self._terminal.is_ours():
            self._terminal.give(self.pid)
        self.signal(signal.SIGCONT)

    def group_lives(self) -> bool:
        """Tell whether anything of its process group is left after its own end.

        The number can't be another group's: numbers come around only after all others were used.
        """
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        # A member that a second one forks during the first look, and then ends, is in the second.
        return not (_only_zombies(self.pid) and _only_zombies(self.pid))

    # ------------------------------------------------------------ what becomes of it

    def check(self) -> bool:
        """See what has become of it; return True where we stopped with it and it may go on now.

        To be called after each SIGCHLD.
        """
        if self.status is not None:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return False
        if os.WIFSTOPPED(status):
            return self._stopped(os.WSTOPSIG(status))
        self.had_terminal = self._terminal.take_back(self.pid)
        if os.WIFSIGNALED(status):
            self.killed_by = os.WTERMSIG(status)
        self.status = (
            os.WEXITSTATUS(status) if self.killed_by is None else SIGNALLED + self.killed_by
        )
        return False

    def _stopped(self, number: int) -> bool:
        foreground = self._terminal.foreground()
        if foreground is None:
            return False  # by somebody's SIGSTOP, who may continue it, too
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            if self._terminal.is_ours():
                self._terminal.give(self.pid)
                return True
            if foreground == self.pid:  # stopped in the moment before it was given the terminal
                return True
            _stop(number)  # a job in the background that wants the terminal; SIGCONT tells the rest
            return False
        if self._terminal.take_back(self.pid):
            _stop(signal.SIGTSTP)
            # Also where no shell is there to continue us, and so nothing did stop us: what is
            # started without a shell can't be stopped by the terminal.
            return True
        return False


def _only_zombies(group: int) -> bool:
    """Tell whether a process group has zombies and nothing else, as far as /proc shows it.

    Process 1 of a container is often a program that does not wait for the orphans it inherits. A
    process whose first thread has ended is shown as a zombie, too, but with its other threads.
    """
    found = False
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if os.getpgid(int(folder.name)) == group:
                stat = (folder / "stat").read_text(errors="replace")
                state, *fields = stat.rpartition(")")[2].split()
                if state not in "ZX" or int(fields[16]) > 1:  # field 20: how many threads
                    return False
                found = True
    return found


def _stop(number: int, *, whole_group: bool = True) -> None:
    """Stop, as a program does that does not handle this signal; return when we are continued."""
    handler = signal.signal(number, signal.SIG_DFL)
    try:
        os.kill(0 if whole_group else os.getpid(), number)
    finally:
        signal.signal(number, handler)
