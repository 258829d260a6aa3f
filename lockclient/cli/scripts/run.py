"""`clustermutex run`: hold a lock while a command runs."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from lockclient.cli.exit_status import LOST, NOT_EXECUTABLE, NOT_FOUND, SYSTEM_LIMITS
from lockclient.cli.options import Duration
from lockclient.cli.scripts.child_processes import Child
from lockclient.cli.scripts.heartbeats import follow_pushes, push_after_output
from lockclient.cli.scripts.lock_options import ANY_LOCK_NAME, lock_options
from lockclient.cli.scripts.output_relay import Relay
from lockclient.cli.scripts.script_errors import Failure
from lockclient.cli.scripts.shell_mutex import ShellMutex, ending_cleanly, environment_of
from lockclient.cli.scripts.signals import NOTIFIED, Signals, die_by_signal
from lockclient.cli.scripts.stderr_log import WarningLog
from lockclient.errors import ClusterMutexError, LockLost
from lockclient.service.service_flags import with_options
from lockclient.text.durations import period

Notify = Callable[[str], None]
_REST_POLL_S = 0.05
"""Seconds between two reads of /proc for what a command left running."""
_KILLED_REST_S = 1.0
"""Seconds that this may take to end after SIGKILL."""
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals after which no process of the command should keep running."""
_REFUSED = "this user may not signal the command or a process that it started"


@dataclass(eq=False)
class Run:
    """A command under a lock that is held.

    Attributes:
        mutex: the lock.
        signals: what reports signals and, by `NOTIFIED`, the loss of the lock.
        notify: prints a message for the user, without waiting until it is read.
        ends: whether the command is ended when the lock is lost.
        grace: seconds from SIGTERM to SIGKILL then; and from the end of a command that was sent
            one of `_ENDING_SIGNALS` to SIGKILL for the processes that it left.
        interrupted: whether a SIGINT came.
    """

    mutex: ShellMutex
    signals: Signals
    notify: Notify
    ends: bool
    grace: float
    interrupted: bool = False
    _kill_at: float = math.inf
    _lost: bool = False
    _killed: bool = False
    _was_asked_to_end: bool = False

    def supervise(self, child: Child) -> int:
        """Wait for the command's end, forward signals, end it when the lock is lost.

        Returns the exit status that is to be ours.
        """
        self._notice_loss(child)  # the lock may have been lost before
        while child.status is None:
            self._handle_next(child, self._kill_at)
            if time.monotonic() >= self._kill_at:
                self._kill(child)
        if self._ending() or self._was_asked_to_end or child.killed_by in _ENDING_SIGNALS:
            self._end_rest(child)
        return LOST if self._ending() else child.status

    def _end_rest(self, child: Child) -> None:
        """Wait until all processes that the command started have ended; after the grace, kill them.

        The caller releases the lock after that. Until then it is held and pushed, as before.
        """
        grace = 0.0 if self._killed else self.grace  # after SIGKILL the rest has had its time
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        while child.processes() and time.monotonic() < self._kill_at:
            self._handle_next(child, min(self._kill_at, time.monotonic() + _REST_POLL_S))
        if not child.processes():
            return
        killed = self._kill(child)
        if not self._ending():
            self.notify("SIGKILL ends what the command left running." if killed else f"{_REFUSED}.")
        until = time.monotonic() + _KILLED_REST_S
        while child.processes() and time.monotonic() < until:
            time.sleep(_REST_POLL_S)
            child.reap()
            self._kill(child)

    def _ending(self) -> bool:
        return self._lost and self.ends

    def _handle_next(self, child: Child, until: float) -> None:
        received = self.signals.wait(until)
        if received is None:
            return
        number = received.number
        if number in (NOTIFIED, signal.SIGCONT):
            # By the clock first: while we were stopped, the lock may have been lost.
            self._notice_loss(child)
        self.interrupted |= number == signal.SIGINT
        if number == signal.SIGCHLD:
            child.reap()
        elif number != NOTIFIED and not (received.is_key and child.shares_group):
            self._was_asked_to_end |= number in _ENDING_SIGNALS
            if not child.signal(number) and number in _ENDING_SIGNALS:
                self.notify(f"{signal.Signals(number).name}: {_REFUSED}.")

    def _notice_loss(self, child: Child) -> None:
        if self._lost or self.mutex.healthy:
            return
        self._lost = True
        if not self.ends:
            self.notify("The lock is lost. The command continues, because of --on-lost ignore.")
            return
        self._kill_at = min(self._kill_at, time.monotonic() + self.grace)
        allowed = child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # one that is stopped would not hear it
        if not allowed:
            self.notify(f"The lock is lost, and {_REFUSED}. It continues without the lock.")
            return
        limit = period(self.grace)
        self.notify(f"The lock is lost: ending the command by SIGTERM, in {limit} by SIGKILL.")

    def _kill(self, child: Child) -> bool:
        self._kill_at, self._killed = math.inf, True
        return child.signal(signal.SIGKILL)


def _start(
    command: tuple[str, ...], env: dict[str, str], signals: Signals, relay: Relay | None
) -> Child:
    try:
        child = Child(command, env, signals.inherited_mask, relay.files if relay else {})
    except (FileNotFoundError, ValueError) as error:  # ValueError: an empty name
        raise Failure(
            f"The command {command[0]!r} was not found (or the program that its first line names).",
            NOT_FOUND,
        ) from error
    except OSError as error:
        if error.errno in SYSTEM_LIMITS:
            raise
        hint = ": is there a first line like #!/bin/sh?" if error.errno == errno.ENOEXEC else "."
        raise Failure(
            f"The command {command[0]!r} can't be executed ({error.strerror}){hint}",
            NOT_EXECUTABLE,
        ) from error
    try:
        if relay is not None:
            relay.start()
    except BaseException:  # no thread could be started: the command must not run unsupervised
        child.signal(signal.SIGKILL)
        raise
    return child


def _release(mutex: ShellMutex, status: int, notify: Notify, *, ends: bool) -> int:
    """Release the lock; return our exit status: `LOST` if the lock had been lost."""
    try:
        mutex.release()
    except LockLost as lost:
        if not ends or status == LOST:
            return status
        notify(f"{lost} It was lost before the command ended, or in that moment.")
        return LOST
    except ClusterMutexError as error:
        notify(
            f"The lock {mutex.name!r} could not be released: {error} "
            "If it is not free in a moment, the unlocker or `clustermutex force-unlock` frees it."
        )
    return status


class _CommandRunner(click.Command):
    """Passes the words after COMMAND's first one to COMMAND, also options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = self._with_separator(args)
        is_nameless = len(words) < len(args)
        try:
            return super().parse_args(ctx, words)
        except click.MissingParameter as error:
            if is_nameless:
                raise click.UsageError("NAME is missing before --.", ctx) from error
            raise

    def _with_separator(self, args: list[str]) -> list[str]:
        """Return the arguments with `--` before COMMAND, or those before it if none is NAME."""
        options = [option for option in self.params if isinstance(option, click.Option)]
        taking = {name for option in options if not option.is_flag for name in option.opts}
        words = iter(enumerate(args))
        named = False
        for number, word in words:
            if word == "--":
                _, following = next(words, (number, ""))
                # After it may come NAME, where it begins with a hyphen; a COMMAND does not.
                return args if named or following.startswith("-") else args[:number]
            if word.startswith("-") and word != "-":
                if word in taking:
                    next(words, None)
            elif named:
                return [*args[:number], "--", *args[number:]]
            else:
                named = True
        return args


_run_options = with_options(
    click.option(
        "--on-lost",
        type=click.Choice(["terminate", "ignore"]),
        default="terminate",
        show_default=True,
        help="What becomes of the command when the lock is lost.",
    ),
    click.option(
        "--grace",
        type=Duration(),
        default="5s",
        show_default=True,
        help="How long from SIGTERM to SIGKILL when the lock is lost, and from the end of a "
        "COMMAND that a signal ended to SIGKILL for what it left running.",
    ),
    click.option(
        "--alive",
        type=click.Choice(["process", "output", "manual"]),
        default="process",
        show_default=True,
        help="What counts as a heartbeat: that the command lives, that it prints something, or "
        "that it calls `clustermutex alive`.",
    ),
)


@click.command(cls=_CommandRunner)
@click.argument("name", type=ANY_LOCK_NAME)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@lock_options
@_run_options
@click.pass_context
def run(
    ctx: click.Context,
    /,
    name: str,
    command: tuple[str, ...],
    on_lost: str,
    grace: float,
    alive: str,
    **options: Any,
) -> None:
    """Hold the lock NAME while COMMAND runs.

    Options stand before COMMAND: what follows its first word is its own. Such a lock has no
    backtrace, and its command line is not recorded, which may hold passwords: use --reason.

    COMMAND gets CLUSTERMUTEX_NAME, CLUSTERMUTEX_UUID and CLUSTERMUTEX_FENCING_TOKEN (empty in a
    bucket and in Valkey, which have none) in its environment, the streams and the terminal as they
    are, and, with all that it started, the signals that are sent to clustermutex. After SIGTERM,
    SIGINT or SIGQUIT the lock is held until COMMAND and all that it started have ended; what is
    left gets SIGKILL when --grace has passed since COMMAND's end. SIGKILL and SIGABRT end
    clustermutex alone: COMMAND keeps running, and the lock stays until its auto-unlock.

    COMMAND's exit status is passed on, 128 + n if signal n killed it. Statuses of our own come with
    a line on stderr: 69 the store does not answer, or NAME can't be a lock's name, 75 somebody else
    has the lock, 76 the lock was lost and COMMAND ended, 126 COMMAND can't be executed, 127 it was
    not found.
    """
    signals = Signals()
    warnings = WarningLog()
    options |= {"keepalive": alive == "process", "on_lost": lambda _: signals.notify()}
    mutex = ShellMutex(name, **options)
    with ending_cleanly(mutex, signals):
        mutex.take()
        signals.hold_off()
    ends = on_lost == "terminate"
    running = Run(mutex, signals, warnings.print, ends=ends, grace=grace)
    try:
        # Not before `hold_off`: an exception inside `threading` leaves its locks taken.
        warnings.start()
        relay = _start_heartbeats(mutex, alive)
        env = {**os.environ, **environment_of(mutex, ctx)}
        mutex.check_health()
        child = _start(command, env, signals, relay)
    except BaseException:
        mutex.withdraw()
        raise
    status = _release(mutex, running.supervise(child), warnings.print, ends=ends)
    signals.end()
    if relay is not None:
        relay.finish()
    warnings.end()
    # A script around us ends by Ctrl-C only if we die of it as the command did.
    if status != LOST and running.interrupted and child.killed_by == signal.SIGINT:
        die_by_signal(signal.SIGINT)
    sys.exit(status)


def _start_heartbeats(mutex: ShellMutex, kind: str) -> Relay | None:
    """Start the threads that read heartbeats of this kind; return the relay of `output`."""
    if kind == "manual":
        follow_pushes(mutex.held.holding)
    return Relay(push_after_output(mutex)) if kind == "output" else None
