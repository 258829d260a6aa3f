"""What `run`, `lock`, `alive` and `unlock` share: options, statuses, waiting that a signal ends."""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from lockclient.cli.common import LockName, Session, store_options
from lockclient.cli.params import Duration
from lockclient.cli.scripts.queue_status import telling_the_wait
from lockclient.errors import (
    ClusterMutexError,
    InvalidLockName,
    LockLost,
    LockTimeout,
    StoreUnavailable,
)
from lockclient.model.clocks import AUTO, Now
from lockclient.model.holder import Holder
from lockclient.mutex import ClusterMutex
from lockclient.stores.common.background import AT_EXIT
from lockclient.stores.registry import open_store
from lockclient.text.escaping import plain

UNAVAILABLE = 69
"""Exit status: etcd is away, or refuses, or NAME is none that it could have (EX_UNAVAILABLE)."""
CONFLICT = 75
"""Exit status: somebody else has the lock (EX_TEMPFAIL)."""
LOST = 76
"""Exit status: the lock was lost, or is not that holder's any more."""

Function = TypeVar("Function", bound=Callable[..., Any])


def say(text: str) -> None:
    """Tell the user something, on a line of its own on stderr."""
    with suppress(OSError):  # nobody reads it any more: no reason to leave a command alone
        click.echo(f"clustermutex: {plain(text)}", err=True)


class Failure(click.ClickException):
    """Ends the command with this message and exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(plain(message))
        vars(self)["exit_code"] = status  # which click has for each class


class Warnings(QueueHandler):
    """What the library warns of (an outage, a loss), on stderr, a line each.

    By a thread of its own: where nobody reads stderr (a pager, a terminal after Ctrl-S), whoever
    writes there waits, and the library's thread must go on pushing and noticing losses.

    While we wait for the lock it is told only after `_PATIENCE` seconds: before, the error that
    ends the wait says it all.
    """

    _PATIENCE = 10.0

    def __init__(self) -> None:
        super().__init__(SimpleQueue())
        self.setLevel(logging.WARNING)
        self._listener: QueueListener | None = None
        if logging.getLogger().handlers:
            return  # --debug shows all
        logger = logging.getLogger("lockclient")
        logger.handlers, logger.propagate = [self], False
        timer = threading.Timer(self._PATIENCE, self.tell)
        timer.daemon = True
        timer.start()

    def tell(self) -> None:
        """Tell what was kept, and from now on everything at once."""
        with self.lock or nullcontext():
            if self._listener is None:
                self._listener = QueueListener(self.queue, _Saying())
                self._listener.start()
                atexit.register(self.end)

    def say(self, text: str) -> None:
        """Tell the user something, after what was told before."""
        self.enqueue(logging.makeLogRecord({"msg": text}))

    def end(self) -> None:
        """Wait until all is told; no more after that."""
        with self.lock or nullcontext():
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def failing_by_status() -> Iterator[None]:
    """Turn the library's errors into exit statuses, each with one line."""
    try:
        yield
    except LockTimeout as error:
        raise Failure(str(error), CONFLICT) from error
    except LockLost as error:
        raise Failure(str(error), LOST) from error
    except (InvalidLockName, ClusterMutexError) as error:
        raise Failure(str(error), UNAVAILABLE) from error
    except ValueError as error:  # as the library names them, but for how they are spelled here
        raise click.UsageError(re.sub(r"\b(\w+_\w+)\b", _as_option, str(error))) from error


def _as_option(found: re.Match[str]) -> str:
    name = found[0]
    known = ("expected_runtime", "auto_unlock_after")
    return f"--{name.replace('_', '-')}" if name in known else name


class Name(LockName):
    """A lock's name, checked by who takes the lock: a bad one has the status of no lock."""

    def convert(self, value: Any, *_: Any) -> str:
        """Return it as it is."""
        return str(value)


def getting_options(function: Function) -> Function:
    """Add the options that say where the lock is, how to wait for it and how to hold it."""
    options = [
        click.option(
            "--timeout",
            type=Duration(),
            metavar="TIME",
            help="How long to wait for the lock; 0 tries once.  [default: for ever]",
        ),
        click.option("--no-wait", is_flag=True, help="Try once: the same as --timeout 0."),
        click.option(
            "--expected-runtime",
            type=Duration(),
            default="5m",
            show_default=True,
            metavar="TIME",
            help="How long without a sign of life until people are alerted.",
        ),
        click.option(
            "--auto-unlock-after",
            type=Duration(words={"never": None, AUTO: AUTO}),
            default=AUTO,
            metavar="TIME|never",
            help="How long without a sign of life until the unlocker removes the lock.  "
            "[default: three times --expected-runtime]",
        ),
        click.option("--reason", default="", metavar="TEXT", help="What the lock is used for."),
        click.option(
            "--conflict-exit-code",
            type=click.IntRange(0, 255),
            default=CONFLICT,
            show_default=True,
            metavar="N",
            help="Exit status when somebody else has the lock.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return store_options(function)


class ShellMutex(ClusterMutex):
    """A mutex that a command holds for a shell: made from the options, ended by signals.

    Args:
        name: of the lock.
        pid: which process people should look for, if it is not this one.
        options: the values of `getting_options`, and arguments of `ClusterMutex`.
    """

    def __init__(self, name: str, *, pid: int | None = None, **options: Any) -> None:
        no_wait = options.pop("no_wait")
        if no_wait and options["timeout"]:
            raise click.UsageError("Give --timeout or --no-wait, not both.")
        self._conflict = options.pop("conflict_exit_code")
        if no_wait:
            options["timeout"] = 0.0
        with failing_by_status():
            store = open_store(options.pop("settings"))
            super().__init__(name, capture_backtrace=False, store=store, **options)
        self._pid = pid
        self._asking: str | None = None
        """The uuid of the last call of `get`, and of its ticket."""

    def get(self) -> None:
        """Take the lock, waiting as long as the options say.

        Raises:
            Failure: it was not had; the store did not answer or refuses.
        """
        with failing_by_status():
            try:
                with telling_the_wait(self._store(), self.name, lambda: self._asking):
                    self.__enter__()
            except LockTimeout as error:
                raise Failure(str(error), self._conflict) from error
            except StoreUnavailable as error:
                message = f"The lock {self.name!r} could not be asked for: {error}"
                raise Failure(message, UNAVAILABLE) from error

    def let_go(self) -> None:
        """Leave neither lock nor ticket behind; gives up when the store does not answer."""
        if self.locked():
            with suppress(ClusterMutexError):  # lost, or tried on in the background
                self.release()
        self._store().background.settle(AT_EXIT)

    @property
    def token(self) -> str:
        """The fencing token; empty where the store has none, and never that of a command around."""
        return str(self.fencing_token) if self._store().can.fencing else ""

    def may_be_out_there(self) -> bool:
        """Tell whether a second sending of what took the lock may still arrive, ever so late."""
        return self._held("may_be_out_there()").acquisition.may_be_out_there

    def _new_holder(self, now: Now) -> Holder:
        holder = super()._new_holder(now)
        self._asking = holder.uuid
        # Which thread it was says something about programs only.
        return replace(holder, pid=self._pid or holder.pid, thread=None)


def variables(mutex: ShellMutex, ctx: click.Context) -> dict[str, str]:
    """Return what tells programs which lock is held for them, and where it is if --url said so."""
    said = {
        "CLUSTERMUTEX_NAME": mutex.name,
        "CLUSTERMUTEX_UUID": mutex.uuid,
        "CLUSTERMUTEX_FENCING_TOKEN": mutex.token,
    }
    here = ctx.get_parameter_source("settings") is ParameterSource.COMMANDLINE
    if here or ctx.ensure_object(Session).url is not None:
        said["CLUSTERMUTEX_URL"] = ctx.params["settings"].url()
    return said


# ---------------------------------------------------------------- signals while waiting

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._come)

    def hold_off(self) -> None:
        """Let the signals pass without effect from now on."""
        self._raising = False

    @staticmethod
    def end() -> None:
        """Let the signals do what they do in any program."""
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    def _come(self, number: int, _frame: object) -> None:
        if self._raising:
            self._raising = False  # a second one must not disturb the clean-up after the first
            raise Interrupted(number)


@contextmanager
def ending_cleanly(
    mutex: ShellMutex, interrupts: Interrupts, tell: Callable[[int], object] = lambda _: None
) -> Iterator[None]:
    """Leave nothing behind where a signal ends the wait, and then die of that signal.

    `tell` is called before with the exit status that a shell will see.
    """
    try:
        yield
    except Interrupted as interrupt:
        mutex.let_go()
        say(f"{interrupt} came while waiting for the lock {mutex.name!r}; it was not taken.")
        tell(128 + interrupt.number)
        die_of(interrupt.number)
    finally:
        interrupts.hold_off()


def die_of(number: int) -> NoReturn:
    """End this process by a signal, as whoever started it expects of a program that had it.

    A shell script ends with its command on Ctrl-C only if the command died of it, and systemd
    counts SIGTERM as a good end; for a shell the status is 128 + n in either case.
    """
    with suppress(OSError):
        sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # it was blocked by whoever debugs us
