"""The command `mutexdash`."""

from __future__ import annotations

import logging
from typing import Any

import click
from prometheus_client import disable_created_metrics

from lockclient.model.version import __version__
from lockclient.service.lifecycle import EndSignal, serve
from lockclient.service.logging_setup import configure_logging
from lockclient.service.service_flags import ServiceCommand, service_options, store_of
from lockclient.stores.settings import Settings
from mutexdash.app import Options, Service
from mutexdash.markup.cluster_label import COLOURS, ClusterLabel, read_title
from mutexdash.security.access_flags import access_options, in_clear, read_access, read_link
from mutexdash.web.trace_link import read_trace_url

log = logging.getLogger("mutexdash")


@click.command(
    cls=ServiceCommand,
    context_settings={"auto_envvar_prefix": "MUTEXDASH", "help_option_names": ["-h", "--help"]},
)
@service_options("MUTEXDASH", "127.0.0.1:8722")
@access_options
@click.option(
    "--prometheus-url", metavar="URL", default="", callback=read_link,
    help="Where people see alerts; the dashboard links there.",
)  # fmt: skip
@click.option(
    "--runbook-url", metavar="URL", default="", callback=read_link,
    help="Where your own runbook is; by default the dashboard serves docs/runbook.md.",
)  # fmt: skip
@click.option(
    "--trace-url", metavar="URL", default="", callback=read_trace_url,
    help="Where people see the trace in which a lock was taken, like https://…/{trace_id}: by any "
    "name in the lock's context or labels.",
)  # fmt: skip
@click.option(
    "--title", metavar="TEXT", default="", callback=read_title,
    help="The cluster's name, like prod, shown on every page and in the tab.",
)  # fmt: skip
@click.option("--colour", type=click.Choice(COLOURS), default=None, help="Its colour there.")
@click.version_option(__version__)
def main(
    settings: Settings,
    poll: float | None,
    listen: tuple[str, int],
    log_level: str,
    log_format: str,
    **flags: Any,
) -> None:
    """Show every lock, who holds it, who waits for it, and the code that took it.

    Every option can also be given as a variable, like MUTEXDASH_LISTEN; an option comes first.
    """
    options = read_options(settings.url(), listen[0], **flags)
    configure_logging(log_level, log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]  # else one more for each counter
    end = EndSignal()
    service = Service(store_of(settings, poll), options)
    server = service.server(listen)
    log.info("Listening on %s, showing the locks of %s.", server.url, settings.url())
    if (why := in_clear(options.access, listen[0])) is not None:
        log.warning("%s", why)
    service.start()
    # `serve` waits for no other thread: those only read, and one may wait for a store that does not
    # answer.
    serve(end, server, service.is_live, server.close)


def read_options(
    url: str,
    host: str,
    *,
    title: str,
    colour: str | None,
    prometheus_url: str,
    runbook_url: str,
    trace_url: str,
    **flags: Any,
) -> Options:
    """Return what the flags say; `flags` are those of `read_access`, and raise as it does."""
    access, label = read_access(host=host, **flags), ClusterLabel(title, colour or "")
    return Options(url, access, label, prometheus_url, runbook_url, trace_url)
