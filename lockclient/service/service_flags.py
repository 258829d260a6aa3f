"""Options that both services take: their flags, and errors that quote no password.

Needs the `services` extra; the library does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lockclient.default_store import open_store
from lockclient.stores.registry import LIKE
from lockclient.stores.settings import Settings
from lockclient.text.durations import parse_duration
from lockclient.text.escaping import plain, without_secrets

if TYPE_CHECKING:
    from lockclient.stores.service_store import ServiceStore

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")


class ServiceCommand(click.Command):
    """A service's command: its errors steer no terminal, and quote no password of a URL."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """See `click.Command`."""
        with _escaping_errors():
            return super().make_context(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`.

        An argument that is none is not quoted, of whatever it is made: it may be the second of
        several URLs that stand behind `--notify`, each of which is a password.
        """
        ctx.allow_extra_args = True
        if extra := super().parse_args(ctx, args):
            ctx.fail(
                f"There are no arguments besides options, and {len(extra)} too many. (They are not "
                "shown, as they may hold a password.) What has blanks goes in quotes."
            )
        return extra

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Command`."""
        with _escaping_errors():
            return super().invoke(ctx)


@contextmanager
def _escaping_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        text = without_secrets(error.format_message(), given=True)
        raise click.UsageError(plain(text, block=True), error.ctx) from error
    except click.ClickException as error:
        raise click.ClickException(plain(error.format_message(), block=True)) from error


@contextmanager
def as_click_error(error_of: Callable[[str], click.ClickException]) -> Iterator[None]:
    """Raise a ValueError of the block as an error of the command line."""
    try:
        yield
    except ValueError as error:
        raise error_of(str(error)) from error


class Parsed(click.ParamType[Value]):
    """A value that a function parses; its ValueError becomes the usage error.

    Args:
        name: stands for the value in the help.
    """

    def __init__(self, name: str, parse: Callable[[str], Value]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Value:
        """Return what was read; a value that is no text was read before."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _read_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, with `[…]` around an IPv6 host; port 0 picks a free one."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ValueError(f"{text!r} is not HOST:PORT, like 127.0.0.1:8080.")
    return host.strip("[]"), int(port)


def _read_pace(text: str) -> float:
    """Parse the interval of polls."""
    if not 0.5 <= (seconds := parse_duration(text)) <= 60:
        raise ValueError(f"{text!r} is not from 0.5 to 60 seconds.")
    return seconds


def url_option(**attributes: Any) -> Callable[[Command], Command]:
    """Return the option `--url`, which makes the parameter `settings`."""
    return click.option(
        "--url",
        "settings",
        type=Parsed("url", Settings.load),
        help=f"Where the locks are, {LIKE}. "
        "[default: CLUSTERMUTEX_URL, the ETCDCTL_* variables, 127.0.0.1:2379]",
        **attributes,
    )


def settings_of(_ctx: object, _param: object, given: Settings | None) -> Settings:
    """Return the settings of `--url`, else of the environment; raises a usage error."""
    with as_click_error(click.UsageError):
        return given or Settings.load()


def hosts_of(text: str | None) -> frozenset[str]:
    """Return the names of `--allowed-host`; raises a usage error."""
    from lockclient.service.request_filter import read_hosts  # the command needs nothing of it

    with as_click_error(click.UsageError):
        return read_hosts(text)


def store_of(settings: Settings, poll: float | None) -> ServiceStore:
    """Open a service's store, with the pace that `--poll` asks for.

    Raises:
        click.UsageError: the store is not polled.
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


def service_options(program: str, default_listen: str) -> Callable[[Command], Command]:
    """Add what both services take to a command: `--url`, `--poll`, `--listen`, `--log-…`."""
    from lockclient.stores.common.polling import POLL_INTERVAL_S  # the command needs nothing of it

    return with_options(
        url_option(callback=settings_of, envvar=f"{program}_URL"),
        click.option(
            "--poll",
            type=Parsed("duration", _read_pace),
            metavar="DURATION",
            help="Of a store that can only be looked at, like a bucket or Valkey: how long from "
            "one look to the next, 0.5 to 60 s. Each costs a listing; see docs/stores.md. "
            f"[default: {POLL_INTERVAL_S:g}]",
        ),
        click.option(
            "--listen",
            type=Parsed("host:port", _read_address),
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
