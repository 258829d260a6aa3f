"""The command `mutexdash`."""

from __future__ import annotations

import logging

import click
from prometheus_client import disable_created_metrics

from lockclient.config import open_store
from lockclient.serving import (
    EndSignal,
    HttpServer,
    configure_logging,
    end_process,
    service_options,
    settings_of,
)
from lockclient.settings import Settings
from lockclient.table import Table
from lockclient.version import __version__
from mutexdash.app import create_app
from mutexdash.guard import is_loopback
from mutexdash.snapshot import Live

log = logging.getLogger("mutexdash")

_REMOVALS = 1000
"""How many removals are shown, the newest ones, as `removed.html` says."""
_PATIENCE = 4.0
"""Seconds to end in: 5 are promised."""


@click.command(
    context_settings={"auto_envvar_prefix": "MUTEXDASH", "help_option_names": ["-h", "--help"]}
)
@service_options("127.0.0.1:8722")
@click.option(
    "--no-auth",
    is_flag=True,
    help="Listen on other addresses than loopback, too, for everyone who can reach them: "
    "there is no login.",
)
@click.version_option(__version__)
def main(
    settings: Settings | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    no_auth: bool,
) -> None:
    """Show every lock, who holds it, who waits for it, and the code that took it.

    Every option can also be given as a variable, like MUTEXDASH_LISTEN; an option comes first.
    """
    host = listen[0]
    if not (no_auth or is_loopback(host)):
        raise click.UsageError(
            f"Listening on {host} would show every lock, and the code that took it, to everyone "
            "who can reach it, since there is no login. Listen on 127.0.0.1, or give --no-auth "
            "if something else keeps strangers away."
        )
    settings = settings_of(settings)
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    end = EndSignal()
    store = open_store(settings)
    table = Table(store, removals=_REMOVALS)
    live = Live(table)
    app = create_app(live, store, url=settings.url(), local_only=not no_auth)
    server = HttpServer(app, listen)
    log.info("Listening on %s, showing the locks of %s.", server.url, settings.url())
    table.start()
    live.start()
    server.start()
    log.info("Ending on %s.", end.wait())
    # The rest only reads, in threads that end with the process: waiting for them would be waiting
    # for an etcd that does not answer, perhaps.
    end_process(server.close, _PATIENCE)
