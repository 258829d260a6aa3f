"""`clustermutex lock`: take a lock for a script of several steps (see `alive`, `unlock`).

Locks have no lease, so no process needs to stay: a uuid is all that it takes to push or to release
one, from anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shlex import quote
from typing import Any

import click

from lockclient.cli.exit_status import OUTPUT, status_of_error
from lockclient.cli.scripts.lock_options import ANY_LOCK_NAME, lock_options
from lockclient.cli.scripts.script_errors import Failure
from lockclient.cli.scripts.shell_mutex import ShellMutex, ending_cleanly, environment_of
from lockclient.cli.scripts.signals import Signals
from lockclient.cli.scripts.stderr_log import WarningLog


class _Exporting(click.Command):
    """With `--export`, a failure prints a command that makes `eval` fail.

    `eval "$(…)"` ignores the status of the command inside: the script would continue without its
    lock.
    """

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        with _failing_eval("--export" in args):
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _failing_eval(ctx.params["export"]):
            return super().invoke(ctx)


@contextmanager
def _failing_eval(export: bool) -> Iterator[None]:
    try:
        yield
    except click.exceptions.Exit:
        raise
    except Exception as error:
        _fail_eval(status_of_error(error), export)
        raise


def _fail_eval(status: int, export: bool) -> None:
    if export:
        with suppress(OSError):  # stdout is closed; our exit status stays
            click.echo(f"(exit {status})")


@click.command(cls=_Exporting)
@click.argument("name", type=ANY_LOCK_NAME)
@lock_options
@click.option(
    "--export", is_flag=True, help="Print variables for `eval`, instead of the uuid alone."
)
@click.pass_context
def lock(ctx: click.Context, /, name: str, export: bool, **options: Any) -> None:
    """Take the lock NAME, print its uuid and leave it held.

    It is held until `clustermutex unlock`, or until no `clustermutex alive` has come for
    --auto-unlock-after seconds. Its holder is shown as the process that calls this. In a script:

    \b
      lock=$(clustermutex lock NAME --export) || exit
      eval "$lock"
      trap 'clustermutex unlock' EXIT
      trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM

    Statuses: 69 the store does not answer, or NAME can't be a lock's name; 75 somebody else has
    the lock.
    """
    signals = Signals()
    WarningLog()
    # The holder is the script: this process ends soon.
    mutex = ShellMutex(name, pid=os.getppid(), **options)
    with ending_cleanly(mutex, signals, lambda status: _fail_eval(status, export)):
        mutex.take()
        while mutex.may_arrive_late():
            # A take that was sent twice may arrive again, even after the unlock. Only a release
            # by this process, which knows of it, makes that harmless.
            mutex.release()
            mutex.take()
        # To the end: with a status other than 0 the script would end and leave the lock held.
        signals.hold_off()
    _hand_over(mutex, _exported(environment_of(mutex, ctx)) if export else mutex.uuid)
    mutex.held.hand_over()


def _hand_over(mutex: ShellMutex, text: str) -> None:
    """Print the uuid or the variables; if that fails, release the lock: no other process could."""
    try:
        # Not by print: what that could not write it would try again at the end.
        os.write(sys.stdout.fileno(), f"{text}\n".encode())
    except (OSError, ValueError, AttributeError) as error:  # no sys.stdout, or one that is closed
        mutex.withdraw()
        raise Failure(
            f"The uuid could not be printed, so {mutex.name!r} was released: {error}.", OUTPUT
        ) from error


def _exported(values: dict[str, str]) -> str:
    return "export " + " ".join(f"{name}={quote(value)}" for name, value in values.items())
