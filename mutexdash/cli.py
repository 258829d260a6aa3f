"""The command `mutexdash`."""

from __future__ import annotations

import logging
from typing import Any

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
from mutexdash.history import History
from mutexdash.options import access_options, prometheus_url, read_access
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
@access_options
@click.option(
    "--prometheus-url", "prometheus", metavar="URL", default="",
    envvar="MUTEXDASH_PROMETHEUS_URL", help="Where people see alerts, for links to them.",
)  # fmt: skip
@click.version_option(__version__)
def main(
    settings: Settings | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    prometheus: str,
    **flags: Any,
) -> None:
    """Show every lock, who holds it, who waits for it, and the code that took it.

    Every option can also be given as a variable, like MUTEXDASH_LISTEN; an option comes first.
    """
    access = read_access(host=listen[0], **flags)
    prometheus = prometheus_url(prometheus)
    settings = settings_of(settings)
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    end = EndSignal()
    store = open_store(settings)
    history = History()
    table = Table(
        store, removals=_REMOVALS, on_change=history.note, on_removal=history.note_removals
    )
    live = Live(table, history)
    app = create_app(live, store, url=settings.url(), access=access, prometheus_url=prometheus)
    server = HttpServer(app, listen, proxied=bool(access.proxies.all))
    log.info("Listening on %s, showing the locks of %s.", server.url, settings.url())
    table.start()
    live.start()
    server.start()
    log.info("Ending on %s.", end.wait())
    # The rest only reads, in threads that end with the process: waiting for them would be waiting
    # for an etcd that does not answer, perhaps.
    end_process(server.close, _PATIENCE)
