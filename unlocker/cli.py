"""The `unlocker` command."""

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
from lockclient.version import __version__
from unlocker.app import create_app
from unlocker.service import Unlocker

log = logging.getLogger("unlocker")

_PATIENCE = 4.0
"""Seconds to end in: 5 are promised."""


def _check_seconds(_ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 <= value <= 86400:  # click's own range would take `nan`
        raise click.BadParameter(f"{value:g} is not from 0 to 86400 seconds.", param=param)
    return value


@click.command(
    context_settings={"auto_envvar_prefix": "UNLOCKER", "help_option_names": ["-h", "--help"]}
)
@service_options("127.0.0.1:9722")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=float,
    callback=_check_seconds,
    default=10,
    show_default=True,
    help="How long locks that were there when it started stay beyond their auto_unlock_at, "
    "to make up for wrong clocks of their hosts.",
)
@click.version_option(__version__)
def main(
    settings: Settings | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    grace: float,
) -> None:
    """Watch all locks, alert on silent ones and remove abandoned ones.

    Run as many as you like: each removal is guarded, so they can't hurt each other. Each option
    can also be given as a variable, like UNLOCKER_GRACE for --grace.
    """
    settings = settings_of(settings)
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    end = EndSignal()
    unlocker = Unlocker(open_store(settings), grace=grace, version=__version__)
    server = HttpServer(create_app(unlocker), listen)
    log.info(
        "%s listens on %s and watches %s, grace %g s.",
        unlocker.identity,
        server.url,
        settings.url(),
        grace,
    )
    unlocker.start()
    server.start()
    log.info("Ending on %s.", end.wait())
    end_process(unlocker.stop, _PATIENCE)
