"""The command that `clustermutex run` runs, and every process that it starts."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockclient.cli.exit_status import SIGNALLED

_PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphans among our descendants become our children, `setsid` ones too."""


class Child:
    """The command, running.

    It shares our process group, so that a terminal's keys and a shell's job control reach both;
    without a terminal it has a group of its own.

    Args:
        command: the program and its arguments.
        env: its environment.
        mask: the signals that it starts with as blocked.
        files: its standard streams by number; the others are ours.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        mask: Collection[int],
        files: Mapping[int, int] | None = None,
    ) -> None:
        self.status: int | None = None
        """Its exit status, 128 + n where signal n has killed it; None while it lives."""
        self.killed_by: int | None = None
        """The signal that has killed it, if one has."""
        self.shares_group = _has_terminal()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A script may have started these and then become us by `exec`.
        self._others = _descendants(os.getpid(), without=set())
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in (files or {}).items()]
        group: dict[str, Any] = {} if self.shares_group else {"setpgroup": 0}
        # Not by fork, which is not safe in a process where gRPC has threads. It has returned when
        # the new program runs, in its group: nothing is left to be done in the child.
        self.pid = os.posix_spawnp(
            command[0],
            list(command),
            env,
            file_actions=actions,
            setsigmask=mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, the command must not
            **group,
        )
        # Only now, so that the command does not inherit it. In the background, a line on a terminal
        # (`stty tostop`) would stop us, and a lost lock's command would go on.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def processes(self) -> set[int]:
        """Return the pids of the command and of all that it started, as far as they live.

        /proc is read twice: a process that another one forks during a reading, and whose parent
        then ends, is in the second.
        """
        found = {self.pid} if self.status is None else set()
        for _ in range(2):
            found |= _descendants(os.getpid(), without=self._others)
        return found

    def signal(self, number: int) -> bool:
        """Send a signal to all of `processes()`; False: this user may not signal one of them."""
        allowed = True
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            except PermissionError:
                allowed = False
        return allowed

    def reap(self) -> None:
        """Collect the status of each child that has ended: the command, and orphans of its own.

        To be called after each SIGCHLD.
        """
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._others.discard(pid)
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.killed_by = -code if code < 0 else None
                    self.status = code if code >= 0 else SIGNALLED - code


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY))
    except OSError:  # a cron job, a service
        return False
    return True


def _descendants(pid: int, *, without: Collection[int]) -> set[int]:
    """Return the descendants of a process as /proc shows them, but for these and their own."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            stat = (folder / "stat").read_text(errors="replace")
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found - {*without}
        found |= new
    return found
