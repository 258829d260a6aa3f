"""`clustermutex lock`, `alive` and `unlock`: a lock for a script of several steps.

Locks have no lease, so no process needs to stay: a uuid is all that it takes to push or to release
one, from anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from shlex import quote
from typing import Any

import click

from lockclient.cli.common import opened, store_options
from lockclient.cli.main import INTERNAL
from lockclient.cli.scripts.shell_mutex import (
    LOST,
    Failure,
    Interrupts,
    Name,
    ShellMutex,
    Warnings,
    ending_cleanly,
    failing_by_status,
    getting_options,
    say,
    variables,
)
from lockclient.model.clocks import Deadline, Now, Runtime
from lockclient.model.holder import Holder, check_name
from lockclient.model.removal import Removal
from lockclient.settings import Settings
from lockclient.stores import protocol
from lockclient.stores.protocol import Conflict, NotHolder, Outcome, Push, Read, ReadResult, Unlock
from lockclient.text.durations import period


class _Exporting(click.Command):
    """With `--export`, a failure prints what makes `eval` fail.

    `eval "$(…)"` does not see the status of what is inside: a script would go on without its lock.
    """

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        export = "--export" in args
        try:
            return super().make_context(info_name, args, *more, **extra)
        except click.ClickException as error:
            _tell_eval(error.exit_code, export)
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            _tell_eval(error.exit_code, ctx.params["export"])
            raise
        except Exception:
            _tell_eval(INTERNAL, ctx.params["export"])
            raise


def _tell_eval(status: int, export: bool) -> None:
    if export:
        click.echo(f"(exit {status})")


@click.command(cls=_Exporting)
@click.argument("name", type=Name())
@getting_options
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
    Warnings()
    # People look for the script, not for this process, which will be gone.
    mutex = ShellMutex(name, pid=os.getppid(), **options)
    interrupts = Interrupts()
    with ending_cleanly(mutex, interrupts, lambda status: _tell_eval(status, export)):
        mutex.get()
        while mutex.may_be_out_there():
            # A take that was sent twice may arrive again, even after the unlock. Only a release
            # by this process, which knows of it, makes that harmless.
            with failing_by_status():
                mutex.release()
            mutex.get()
        _hand_over(mutex, _exported(variables(mutex, ctx)) if export else mutex.uuid)
        interrupts.hold_off()


def _hand_over(mutex: ShellMutex, text: str) -> None:
    """Print what it takes to release the lock, or else release it: nobody else could."""
    try:
        # Not by print: what that could not write it would try again at the end.
        os.write(sys.stdout.fileno(), f"{text}\n".encode())
    except (OSError, ValueError, AttributeError) as error:  # no sys.stdout, or one that is closed
        mutex.let_go()
        raise Failure(
            f"The uuid could not be printed, so {mutex.name!r} was released: {error}.", 1
        ) from error


def _exported(values: dict[str, str]) -> str:
    return "export " + " ".join(f"{name}={quote(value)}" for name, value in values.items())


def _whose(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the name and the uuid of a lock that is held, from the environment where not given."""
    function = click.option(
        "--uuid",
        envvar="CLUSTERMUTEX_UUID",
        show_envvar=True,
        required=True,
        help="What `lock` printed.",
    )(function)
    function = click.argument("name", type=Name(), envvar="CLUSTERMUTEX_NAME")(function)
    return store_options(function)


@click.command()
@_whose
def alive(name: str, uuid: str, settings: Settings) -> None:
    """Push the alert and the auto-unlock of the lock NAME forward.

    By as much as they were set to when the lock was taken: its work goes on. For a lock of
    `clustermutex lock`, or for the command of `clustermutex run --alive manual`, which both need
    no more than the environment that they have: `clustermutex alive`.

    Statuses: 69 the store does not answer: the lock is not lost by that; 76 it is not this
    holder's any more: stop the work.
    """
    with failing_by_status(), opened(settings) as store:
        seen = store.ask(Read(check_name(name), uuid), Deadline.after(protocol.STORE_TIMEOUT_S))
        if not isinstance(seen, ReadResult):
            raise TypeError(f"the store answered {seen!r} to Read")
        holder = seen.holder
        if holder is None or holder.uuid != uuid:
            raise _lost(name, uuid, None if holder is None else holder.uuid, seen.removal)
        runtime, deadline = _runtime(holder), Deadline.after(protocol.STORE_TIMEOUT_S)
        outcome: Outcome = Conflict(holder.stamp_revisions[0])
        while isinstance(outcome, Conflict):  # by another push, or a person's hand
            push = Push(name, uuid, runtime.stamps(Now.read().wall), outcome.revision)
            outcome = store.ask(push, deadline)
    if isinstance(outcome, NotHolder):
        raise _lost(name, uuid, outcome.holder, outcome.removal)


@click.command()
@_whose
def unlock(name: str, uuid: str, settings: Settings) -> None:
    """Release the lock NAME, if it is still this holder's.

    NAME and uuid are those of CLUSTERMUTEX_NAME and CLUSTERMUTEX_UUID unless they are given.

    Statuses: 69 the store does not answer; 76 the lock is not this holder's any more.
    """
    with failing_by_status(), opened(settings) as store:
        unlock = Unlock(check_name(name), uuid)
        outcome = store.ask(unlock, Deadline.after(protocol.STORE_TIMEOUT_S))
    # Gone without a record after a second sending: the first one did it.
    if isinstance(outcome, NotHolder) and not (outcome.resent and outcome.removal is None):
        raise _lost(name, uuid, outcome.holder, outcome.removal)


def _lost(name: str, uuid: str, holder: str | None, removal: Removal | None) -> Failure:
    how = f" It was removed: {removal.describe()}." if removal else ""
    now = f" It is now held by {holder}." if holder else " Nobody holds it now."
    return Failure(
        f"The lock {name!r} is not held by {uuid}.{how}{now} Stop the work that it protects.", LOST
    )


def _runtime(holder: Holder) -> Runtime:
    """Return how the lock was taken to be held, as far as it says."""
    expected, after = holder.expected_runtime, holder.auto_unlock_after
    if expected is None or (after is not None and after <= expected):
        expected = 300.0 if after is None else min(300.0, after / 3)
        say(
            f"The lock {holder.name!r} does not say when to alert, or only after its auto-unlock: "
            f"its alert is pushed by {period(expected)}."
        )
    return Runtime(expected, after)
