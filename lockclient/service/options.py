"""What the two services have in common: flags, logging, the end by a signal.

Needs the `services` extra; the library does not import it.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import click

from lockclient.model.clocks import monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.service.http_server import HttpServer
from lockclient.service.request_filter import read_hosts
from lockclient.service.supervision import Supervisor, notify
from lockclient.settings import LIKE, Settings
from lockclient.stores.common.polling import POLL
from lockclient.stores.registry import open_store
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.durations import parse_duration
from lockclient.text.escaping import ascii_json, plain, without_secrets
from lockclient.text.log_format import PlainFormatter

Command = TypeVar("Command", bound=Callable[..., Any])
log = logging.getLogger(__name__)


class ServiceCommand(click.Command):
    """A service's command: its errors steer no terminal, and quote no password of a URL."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """See `click.Command`."""
        with _told_plainly():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`."""
        with _told_plainly():
            return super().invoke(ctx)


@contextmanager
def _told_plainly() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        text = without_secrets(error.format_message(), given=True)
        raise click.UsageError(plain(text, block=True), error.ctx) from error
    except click.ClickException as error:
        raise click.ClickException(plain(error.format_message(), block=True)) from error


class Address(click.ParamType[tuple[str, int]]):
    """`HOST:PORT`, with `[…]` around an IPv6 host; port 0 picks a free one."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return host and port."""
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65536):
            self.fail(f"{value!r} is not HOST:PORT, like 127.0.0.1:8080.", param, ctx)
        return host.strip("[]"), int(port)


class Pace(click.ParamType[float]):
    """How often a store is looked at."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not 0.5 <= seconds <= 60:
            self.fail(f"{value!r} is not from 0.5 to 60 seconds.", param, ctx)
        return seconds


class StoreUrl(click.ParamType[Settings]):
    """A store's URL, read with the environment into `Settings`."""

    name = "url"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Settings:
        """Return the settings."""
        if isinstance(value, Settings):
            return value
        try:
            return Settings.load(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FlagNamedOption(click.Option):
    """Named by its flag in the environment, too (UNLOCKER_URL), not by the command's parameter."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return what the variable holds."""
        flag = self.opts[0].removeprefix("--").upper()
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{flag}") or None


def settings_of(settings: Settings | None) -> Settings:
    """Return what `--url` gave, or else what the environment says, as a usage error if it can't."""
    if settings is not None:
        return settings
    try:
        return Settings.load()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def hosts_of(text: str | None) -> frozenset[str]:
    """Return the names of `--allowed-host`, as a usage error if they are none."""
    try:
        return read_hosts(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def store_of(settings: Settings, poll: float | None) -> ServiceStore:
    """Open a service's store, with the pace that `--poll` asks for.

    Raises:
        click.UsageError: it is none that is looked at.
    """
    store = open_store(settings)
    if poll is not None:
        if store.can.watch:
            raise click.UsageError(
                f"--poll: {store.can.display_name} tells what happens as it happens. Leave it out."
            )
        store.poll = poll
    return store


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, shown in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def service_options(default_listen: str) -> Callable[[Command], Command]:
    """Add what both services take to a command: `--url`, `--poll`, `--listen`, `--log-…`."""
    return with_options(
        click.option(
            "--url",
            "settings",
            cls=FlagNamedOption,
            type=StoreUrl(),
            help=f"The store, {LIKE}. "
            "[default: CLUSTERMUTEX_URL, the ETCDCTL_* variables, 127.0.0.1:2379]",
        ),
        click.option(
            "--poll",
            type=Pace(),
            metavar="DURATION",
            help="Of a store that can only be looked at, like a bucket or Valkey: how long from "
            "one look to the next, 0.5 to 60 s. Each costs a listing; see docs/stores.md. "
            f"[default: {POLL:g}]",
        ),
        click.option(
            "--listen",
            type=Address(),
            default=default_listen,
            show_default=True,
            help="Where to serve HTTP; port 0 picks a free one.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
            default="info",
            show_default=True,
        ),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
        ),
    )


SHUTDOWN_TIMEOUT_S = 4.0
"""Seconds to end in: 5 are promised."""
_FIELDS = ("event", "lock", "uuid", "hostname")
_LONGEST = 500
"""Characters of a text from outside in a field."""


def said(event: str, holder: Holder, removal: Removal | None = None) -> dict[str, object]:
    """Return the `extra` of a logging call about a lock: its fields in JSON.

    A removal's record is told in full, in text as in JSON: the store keeps it for some days only,
    or not at all if it is out of space.
    """
    known = {"lock": holder.name, "uuid": holder.uuid, "hostname": holder.hostname}
    texts = {field: text and text[:_LONGEST] for field, text in known.items()}
    return {"event": event, **texts, "removal": removal}


class _TextFormatter(PlainFormatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        text = super().formatMessage(record)
        removal = getattr(record, "removal", None)
        return text if removal is None else f"{text} The record: {ascii_json(removal.written())}"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        found = {field: getattr(record, field, None) for field in _FIELDS}
        entry |= {field: value for field, value in found.items() if value is not None}
        if (removal := getattr(record, "removal", None)) is not None:
            entry["removal"] = removal.facts()
        if record.exc_info:
            entry["exception"] = without_secrets(self.formatException(record.exc_info))
        return ascii_json(entry)


def configure_logging(level: str, style: str) -> None:
    """Log to stderr, a line an event, as text or JSON. Only programs call this."""
    handler = logging.StreamHandler(sys.stderr)
    text = _TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Their chatter about each job and each queued request is no news to an operator.
    for noisy in ("apscheduler", "waitress"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


class EndSignal:
    """SIGTERM or SIGINT, caught from now on. For the main thread.

    Its handler runs in the midst of whatever the main thread does, its `wait` included. So it takes
    no lock: an Event's own, which `wait` holds for moments, would be waited for in vain, for ever.
    """

    def __init__(self) -> None:
        self._coming = threading.Lock()
        self._coming.acquire()
        self._names: list[str] = []
        signal.signal(signal.SIGTERM, self._catch)
        signal.signal(signal.SIGINT, self._catch)

    def _catch(self, number: int, _frame: Any) -> None:
        self._names.append(signal.Signals(number).name)
        with suppress(RuntimeError):  # another one has come, and nobody has seen it yet
            self._coming.release()

    def wait(self, seconds: float = math.inf) -> str | None:
        """Wait for it, but not longer than that, and return its name; None if it did not come."""
        until = monotonic() + seconds
        # With a timeout: a signal that the kernel hands to another thread does not wake a main
        # thread that waits for ever, and its handler would never run.
        while not self._names and monotonic() < until:
            self._coming.acquire(timeout=min(0.5, max(0.0, until - monotonic())))
        return self._names[0] if self._names else None


def supervise(end: EndSignal, sick: Callable[[], str | None]) -> int:
    """Look after a service until it is to end; return the status to end with.

    Args:
        end: the signal that ends it in good order.
        sick: see `Supervisor`; called once a second.
    """
    supervisor = Supervisor(sick)
    notify("READY=1")
    while True:
        why = supervisor.look()
        if why is not None:
            log.critical("Ending, to be started anew. %s", why)
            status = 1
            break
        if (name := end.wait(1.0)) is not None:
            log.info("Ending on %s.", name)
            status = 0
            break
    notify("STOPPING=1")
    return status


def end_process(clean_up: Callable[[], None], patience: float, status: int = 0) -> NoReturn:
    """Clean up, for `patience` seconds at most, and end the process with this status.

    Without the interpreter's own end: that waits for every thread of a pool, a request that hangs
    included, and can itself hang for ever in the `__del__` of a gRPC call, which wants a lock that
    a gRPC thread held at the moment when the end stopped all threads.
    """
    cleaner = threading.Thread(target=clean_up, name="clean-up", daemon=True)
    cleaner.start()
    cleaner.join(patience)
    if cleaner.is_alive():
        log.warning("Cleaning up took more than %g s and was left at that.", patience)
    logging.shutdown()
    os._exit(status)


def serve(
    end: EndSignal, server: HttpServer, is_live: Callable[[], str | None], stop: Callable[[], None]
) -> NoReturn:
    """Answer HTTP until the signal comes or the service is not live; then end the process.

    Args:
        is_live: see `Supervisor`.
        stop: ends the service in good order.
    """
    server.start()
    status = supervise(end, lambda: is_live() or server.trouble())
    end_process(stop, SHUTDOWN_TIMEOUT_S, status)
