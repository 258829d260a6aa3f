"""The `unlocker` command."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Sequence
from math import inf

import click
from prometheus_client import disable_created_metrics

from lockclient.errors import StoreError
from lockclient.model.retention import RECORD_RETENTION
from lockclient.model.version import __version__
from lockclient.service.http_server import HttpServer
from lockclient.service.lifecycle import EndSignal, serve
from lockclient.service.logging_setup import configure_logging
from lockclient.service.service_flags import (
    Parsed,
    ServiceCommand,
    hosts_of,
    service_options,
    store_of,
)
from lockclient.stores.settings import Settings
from lockclient.text.durations import parse_duration
from lockclient.text.url import is_loopback
from unlocker.http_app import create_app
from unlocker.notifications.apprise_recipients import Recipient, recipients_of
from unlocker.notifications.message import Writer
from unlocker.notifications.notifier import Notifier
from unlocker.notifications.sender import Pace
from unlocker.record_cleanup import MAX_RECORDS
from unlocker.unlocker import MAX_REMOVALS, Unlocker

log = logging.getLogger("unlocker")


def read_limit(text: str) -> int | None:
    """Return a number from 1 on, or None for `off`. 0 is refused: it could mean none or any."""
    limit = text.strip().lower()
    if limit == "off":
        return None
    if not (limit.isascii() and limit.isdecimal() and 0 < int(limit) < 10**9):
        raise ValueError(f"{text!r} is neither a number from 1 on nor `off`.")
    return int(limit)


def read_pace(text: str) -> tuple[float, float]:
    """Return two durations, as seconds."""
    first, interval = _two_durations(text)
    if interval < 1:
        raise ValueError("Between two messages to a recipient is at least a second.")
    return first, interval


def read_reminders(text: str) -> tuple[float, float]:
    """Return two durations, as seconds; for `off` infinite ones."""
    if text.strip().lower() == "off":
        return inf, inf
    critical, other = _two_durations(text)
    if min(critical, other) < 60:
        raise ValueError("Between two reminders is at least a minute.")
    return critical, other


def read_link(text: str) -> str:
    """Return the URL of a page, or ""."""
    if text and not re.fullmatch(r"https?://[!-~]+", text):
        raise ValueError(f"{text[:40]!r} is no URL of a page, like https://locks.example.")
    return text


def _two_durations(text: str) -> tuple[float, float]:
    durations = [parse_duration(part) for part in text.split(",")]
    if len(durations) != 2 or max(durations) > 366 * 86400:
        raise ValueError(f"{text[:40]!r} is not two durations, like 10s,30s.")
    return durations[0], durations[1]


@click.command(
    cls=ServiceCommand,
    context_settings={"auto_envvar_prefix": "UNLOCKER", "help_option_names": ["-h", "--help"]},
)
@service_options("UNLOCKER", "127.0.0.1:9722")
@click.option(
    "--allowed-host",
    metavar="NAME,…",
    help="Host names by which Prometheus reaches /metrics, besides addresses and names without a "
    "dot: it answers to no other.",
)
@click.option(
    "--max-removals",
    metavar="N|off",
    type=Parsed("number", read_limit),
    default=str(MAX_REMOVALS),
    show_default=True,
    help="How many locks all unlockers together may remove in a minute, or a fifth of all "
    "locks if that is more; the rest waits. (So many at once usually means a "
    "broken network or clock, not dead holders.) `off`: no limit.",
)
@click.option(
    "--notify",
    "urls",
    metavar="URL",
    multiple=True,
    envvar="UNLOCKER_NOTIFY",
    help="Whom to notify: an apprise URL, like json://host/hook, slack://… or mailto://…, "
    "optionally with a name of yours: ops=slack://…. Can be given several times; in "
    "UNLOCKER_NOTIFY, which no other user of this host can read, separate several by "
    "spaces. Needs the extra `notify`.",
)
@click.option(
    "--notify-pace",
    metavar="FIRST,INTERVAL",
    type=Parsed("durations", read_pace),
    default="10s,30s",
    show_default=True,
    help="How long news are gathered before the first message, and the least time from one message "
    "to a recipient to the next.",
)
@click.option(
    "--notify-reminders",
    metavar="CRITICAL,ELSE|off",
    type=Parsed("durations", read_reminders),
    default="4h,24h",
    show_default=True,
    help="After how long people are reminded of what is still wrong: if any of it is critical, and "
    "else. `off`: never.",
)
@click.option(
    "--dashboard-url",
    metavar="URL",
    type=Parsed("url", read_link),
    default="",
    help="The dashboard's URL, for notifications.",
)
@click.option(
    "--keep-removals",
    metavar="N|off",
    type=Parsed("number", read_limit),
    default=str(MAX_RECORDS),
    show_default=True,
    help="How many removal records stay in the store; the oldest are deleted first, and each after "
    f"{RECORD_RETENTION}. `off`: no limit.",
)
@click.version_option(__version__)
def main(
    settings: Settings,
    poll: float | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    allowed_host: str | None,
    max_removals: int | None,
    urls: tuple[str, ...],
    notify_pace: tuple[float, float],
    notify_reminders: tuple[float, float],
    dashboard_url: str,
    keep_removals: int | None,
) -> None:
    """Watch all locks, alert on silent ones and remove abandoned ones.

    Run as many as you like: each removal is guarded, so they can't hurt each other. Each option
    can also be given as a variable, like UNLOCKER_MAX_REMOVALS for --max-removals.
    """
    hosts = hosts_of(allowed_host) | {socket.gethostname().lower()}
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    recipients, complete = _recipients(urls)
    writer = Writer(settings.where, dashboard_url)
    notifier = Notifier(recipients, writer, Pace(*notify_pace, *notify_reminders))
    end = EndSignal()
    unlocker = Unlocker(
        store_of(settings, poll),
        max_removals=max_removals,
        keep_removals=keep_removals,
        version=__version__,
        notifier=notifier,
        notifications_off=not complete,
    )
    server = HttpServer(create_app(unlocker, hosts), listen)
    try:
        unlocker.check_rights()
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    log.info(
        "%s listens on %s and watches %s, %s.",
        unlocker.identity,
        server.url,
        settings.url(),
        "no limit of removals" if max_removals is None else f"{max_removals} removals a minute",
    )
    if not is_loopback(listen[0]):
        log.warning(
            "Anyone who can reach %s can read there, without a login, which locks are past "
            "their alert, on which hosts and why: allow only Prometheus.",
            server.url,
        )
    unlocker.start()
    serve(end, server, unlocker.supervise, unlocker.stop)


def _recipients(urls: Sequence[str]) -> tuple[Sequence[Recipient], bool]:
    """Return the recipients, and whether all URLs work.

    With bad URLs the service starts all the same: in a crash loop, nobody would watch the locks.
    Texts of libraries about a URL are not repeated, as they may quote a password.
    """
    try:
        recipients, faults = recipients_of(urls)
    except Exception as error:  # noqa: BLE001 - see above
        recipients, faults = [], [f"{type(error).__name__}."]
    for fault in faults:
        log.error(
            "--notify: %s %d of %d URLs work, and locks are watched as usual.",
            fault,
            len(recipients),
            len(urls),
            extra={"event": "notifications-off"},
        )
    return recipients, not faults
