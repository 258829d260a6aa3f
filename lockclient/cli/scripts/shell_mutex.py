"""The mutex that `run` and `lock` hold for a shell, made from their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, cast

import click
from click.core import ParameterSource

from lockclient.acquisition.heartbeat_and_loss import Holding
from lockclient.cli.exit_status import SIGNALLED, status_of_error
from lockclient.cli.scripts.script_errors import Failure, print_message
from lockclient.cli.scripts.signals import Interrupted, Signals, die_by_signal
from lockclient.cli.scripts.stderr_log import printing_wait_reports
from lockclient.default_store import open_store
from lockclient.errors import (
    ClusterMutexError,
    LockTimeout,
    StoreUnavailable,
)
from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.mutex import ClusterMutex, HeldLock
from lockclient.service.service_flags import as_click_error
from lockclient.threads import ending


class ShellHeldLock(HeldLock):
    """A lock that is held for a shell."""

    __slots__ = ()

    @property
    def holding(self) -> Holding:
        """The state of the held lock."""
        return self._holding

    def hand_over(self) -> None:
        """Leave it held when this process ends: from now on it is the shell's."""
        self._holding.claim_release()
        self._holding.forget()
        # The end of this program neither releases nor names it.
        self._holding.store.background.acquisitions.pop(self._holding, None)


class ShellMutex(ClusterMutex):
    """A mutex that a command holds for a shell: made from the options, ended by signals.

    Args:
        name: of the lock.
        pid: of the process that is recorded as the holder; None: this one.
        options: the values of `lock_options`, and arguments of `ClusterMutex`.
    """

    _held_type = ShellHeldLock
    held: ShellHeldLock
    """The lock that the last `take` took."""

    def __init__(self, name: str, *, pid: int | None = None, **options: Any) -> None:
        self._quiet = options.pop("quiet")
        no_wait = options.pop("no_wait")
        if no_wait and options["timeout"]:
            raise click.UsageError("Give --timeout or --no-wait, not both.")
        self._conflict_status = options.pop("conflict_exit_code")
        if no_wait:
            options["timeout"] = 0.0
        store = open_store(options.pop("settings"))
        with as_click_error(_usage_error):
            super().__init__(name, capture_backtrace=False, store=store, **options)
        self._pid = pid

    def take(self) -> None:
        """Take the lock, waiting as long as the options say.

        Raises:
            Failure: it was not had; the store did not answer.
            StoreError: the store refuses.
        """
        try:
            with nullcontext() if self._quiet else printing_wait_reports():
                self.held = cast(ShellHeldLock, self.__enter__())
        except LockTimeout as error:
            raise Failure(str(error), self._conflict_status) from error
        except StoreUnavailable as error:
            message = f"The lock {self.name!r} could not be asked for: {error}"
            raise Failure(message, status_of_error(error)) from error

    def withdraw(self) -> bool:
        """Release the lock and the ticket; False: the store did not answer in time."""
        if self.locked():
            with suppress(ClusterMutexError):  # lost, or retried in the background
                self.release()
        background = self._store().background
        background.settle(ending.LIMIT_S)
        return not background.unfinished()

    @property
    def token(self) -> str:
        """The fencing token; empty if the store has none."""
        return str(self.held.fencing_token) if self._store().can.fencing else ""

    def may_arrive_late(self) -> bool:
        """Return whether a resent take of this lock may still be in flight."""
        return self.held.holding.acquisition.may_arrive_late

    def _new_holder(
        self, now: Now, backtrace: str | None, context: Mapping[str, str] | None
    ) -> Holder:
        holder = super()._new_holder(now, backtrace, context)
        # The thread is of no use to people: it is this command's own.
        return replace(holder, pid=self._pid or holder.pid, thread=None)


def _usage_error(text: str) -> click.UsageError:
    for name in ("expected_runtime", "auto_unlock_after"):
        text = text.replace(name, f"--{name.replace('_', '-')}")
    return click.UsageError(text)


def environment_of(mutex: ShellMutex, ctx: click.Context) -> dict[str, str]:
    """Return the environment variables that name the held lock, and the store of `--url`."""
    variables = {
        "CLUSTERMUTEX_NAME": mutex.name,
        "CLUSTERMUTEX_UUID": mutex.uuid,
        "CLUSTERMUTEX_FENCING_TOKEN": mutex.token,
    }
    # DEFAULT_MAP: `--url` before the command's name.
    given = ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP
    if ctx.get_parameter_source("settings") in given:
        variables["CLUSTERMUTEX_URL"] = ctx.params["settings"].url()
    return variables


# ---------------------------------------------------------------- signals while waiting


@contextmanager
def ending_cleanly(
    mutex: ShellMutex, signals: Signals, report: Callable[[int], object] = lambda _: None
) -> Iterator[None]:
    """If a signal ends the wait, withdraw the acquisition, then die of that signal.

    Before that, `report` is called with the exit status that a shell will see.
    """
    try:
        signals.interrupt_main()
        yield
    except Interrupted as interrupt:
        outcome = "it was not taken"
        if not mutex.withdraw():
            outcome = "the store did not answer in time, so a ticket or the lock may be left"
        print_message(f"{interrupt} came while waiting for the lock {mutex.name!r}; {outcome}.")
        report(SIGNALLED + interrupt.number)
        die_by_signal(interrupt.number)
    finally:
        signals.hold_off()
