"""The `unlocker` command."""

from __future__ import annotations

import logging
from typing import Any

import click
from prometheus_client import disable_created_metrics

from lockclient.config import open_store
from lockclient.errors import StoreError
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
from unlocker.service import MAX_REMOVALS, Unlocker

log = logging.getLogger("unlocker")

_PATIENCE = 4.0
"""Seconds to end in: 5 are promised."""


def _check_seconds(_ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 <= value <= 86400:  # click's own range would take `nan`
        raise click.BadParameter(f"{value:g} is not from 0 to 86400 seconds.", param=param)
    return value


class Limit(click.ParamType[int | None]):
    """A number from 1 on, or `off`. Not 0, which might mean either "none" or "any number"."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        """Return the number, or None for `off`."""
        text = str(value).strip().lower()
        if text == "off":
            return None
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
            self.fail(f"{value!r} is neither a number from 1 on nor `off`.", param, ctx)
        return int(text)


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
@click.option(
    "--max-removals",
    metavar="N|off",
    type=Limit(),
    default=str(MAX_REMOVALS),
    show_default=True,
    help="How many locks all unlockers together may remove in a minute, or a fifth of all locks if "
    "that is more. So many due at once are more often a broken network than dead holders; the "
    "rest waits its turn. `off`: no limit.",
)
@click.version_option(__version__)
def main(
    settings: Settings | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    grace: float,
    max_removals: int | None,
) -> None:
    """Watch all locks, alert on silent ones and remove abandoned ones.

    Run as many as you like: each removal is guarded, so they can't hurt each other. Each option
    can also be given as a variable, like UNLOCKER_GRACE for --grace.
    """
    settings = settings_of(settings)
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    end = EndSignal()
    unlocker = Unlocker(
        open_store(settings), grace=grace, max_removals=max_removals, version=__version__
    )
    server = HttpServer(create_app(unlocker), listen)
    try:
        unlocker.check_rights()
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    log.info(
        "%s listens on %s and watches %s, grace %g s, %s.",
        unlocker.identity,
        server.url,
        settings.url(),
        grace,
        "no limit of removals" if max_removals is None else f"{max_removals} removals a minute",
    )
    unlocker.start()
    server.start()
    log.info("Ending on %s.", end.wait())
    end_process(unlocker.stop, _PATIENCE)
