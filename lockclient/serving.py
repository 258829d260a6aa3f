"""What the two services have in common: flags, logging, the HTTP server, the end by a signal.

Needs the `services` extra; the library does not import it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
from waitress.server import create_server

from lockclient.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
log = logging.getLogger(__name__)


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


class _UrlOption(click.Option):
    """Named by its flag in the environment, too (UNLOCKER_URL), not by the command's parameter."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return os.environ.get(f"{ctx.auto_envvar_prefix}_URL") or None


def settings_of(settings: Settings | None) -> Settings:
    """Return what `--url` gave, or else what the environment says, as a usage error if it can't."""
    if settings is not None:
        return settings
    try:
        return Settings.load()
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def service_options(default_listen: str) -> Callable[[Command], Command]:
    """Add `--url`, `--listen`, `--log-level` and `--log-format` to a service's command."""
    options = [
        click.option(
            "--url",
            "settings",
            cls=_UrlOption,
            type=StoreUrl(),
            help="The store, like etcd://host1:2379,host2:2379/clustermutex. "
            "[default: CLUSTERMUTEX_URL, the ETCDCTL_* variables, 127.0.0.1:2379]",
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
    ]

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(level: str, style: str) -> None:
    """Log to stderr, a line an event, as text or JSON. Only programs call this."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Their chatter about each job and each queued request is no news to an operator.
    for noisy in ("apscheduler", "waitress"):
        logging.getLogger(noisy).setLevel(logging.ERROR)


class HttpServer:
    """A WSGI application under waitress, in a thread of its own.

    Args:
        proxied: the application itself tells which `X-Forwarded-…` headers to believe; else it
            sees none.

    Raises:
        click.ClickException: the address can't be listened on.
    """

    def __init__(
        self, app: Any, listen: tuple[str, int], *, threads: int = 4, proxied: bool = False
    ) -> None:
        host, port = listen
        try:
            # Figures and reasons in the waitress documentation: poll instead of select takes more
            # than 1024 connections; idle ones are cut so that slow clients can't use them all up.
            server: Any = create_server(
                app,
                host=host,
                port=port,
                threads=threads,
                connection_limit=1000,
                asyncore_use_poll=True,
                channel_timeout=30,
                clear_untrusted_proxy_headers=not proxied,
                max_request_body_size=64 * 1024,
                expose_tracebacks=False,
                ident=None,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.ClickException(
                f"Can't listen on {host}:{port}: {reason}. End what listens there, or give "
                "another --listen HOST:PORT."
            ) from error
        self._server = server
        shown = f"[{host}]" if ":" in host else host
        several = getattr(server, "effective_listen", None)  # a name with several addresses
        bound = several[0][1] if several else server.effective_port
        self.url = f"http://{shown}:{bound}"
        self._thread = threading.Thread(target=server.run, name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests under way get a moment to end."""
        self._server.close()


class EndSignal:
    """SIGTERM or SIGINT, caught from now on. For the main thread."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._names: list[str] = []
        signal.signal(signal.SIGTERM, self._catch)
        signal.signal(signal.SIGINT, self._catch)

    def _catch(self, number: int, _frame: Any) -> None:
        self._names.append(signal.Signals(number).name)
        self._came.set()

    def wait(self) -> str:
        """Wait for it and return its name."""
        # With a timeout: a signal that the kernel hands to another thread does not wake a main
        # thread that waits for ever, and its handler would never run.
        while not self._came.wait(0.5):
            pass
        return self._names[0]


def wait_for_end() -> str:
    """Wait in the main thread for SIGTERM or SIGINT and return its name."""
    return EndSignal().wait()


def end_process(clean_up: Callable[[], None], patience: float) -> NoReturn:
    """Clean up, for `patience` seconds at most, and end the process with status 0.

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
    os._exit(0)
