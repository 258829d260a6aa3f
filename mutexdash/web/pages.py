"""The pages for people.

Every page works without JavaScript. With it, `static/live.js` replaces a page's content without a
full reload.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, url_for
from markupsafe import Markup
from werkzeug.wrappers import Response as BaseResponse

from lockclient.model.retention import RECORD_RETENTION
from lockclient.overview.columns_and_order import COLUMNS, MANY_WAITERS, QUEUE
from lockclient.overview.force_unlock_request import NO_RECORD
from lockclient.overview.lock_presentation import Bar, fact_rows, fact_text, no_unlock
from lockclient.overview.lock_status import status_of
from lockclient.text.durations import duration, parse_duration, period, roughly
from lockclient.text.escaping import ascii_name, plain, unescaped
from lockclient.text.timestamps import utc
from mutexdash.data.hosts import select_hosts
from mutexdash.data.list_parameters import MAX_PER_PAGE, BadParameter, Page, Query
from mutexdash.data.lock_detail import complete, known
from mutexdash.data.snapshot import DatedSnapshot
from mutexdash.data.timeline import (
    DEFAULT_SPAN_S,
    SPANS_S,
    lane_text,
    lanes,
    span_text,
    tick,
    ticks,
    wait_text,
)
from mutexdash.markup.frames import read_backtrace
from mutexdash.markup.html_text import iso, visible
from mutexdash.markup.links import linked
from mutexdash.markup.next_steps import runbook_sections, steps_about_holder, steps_about_waiter
from mutexdash.web.context import dashboard, name_asked_for
from mutexdash.web.exports import read_removal
from mutexdash.web.respond import NotCached, respond
from mutexdash.web.urls import (
    alert_query,
    force_url,
    host_url,
    list_url,
    lock_url,
    removal_url,
    span_url,
)

blueprint = Blueprint("pages", __name__)

_COLUMNS = [column for column in COLUMNS if column.title]


@blueprint.get("/")
def locks() -> Response:
    query = _query("q", "state", "sort", "page")
    dated = dashboard().dated_snapshot()
    rows = partial(dated.snapshot.select, ended=True)
    return respond(dated.shown("locks"), lambda: _render_list("locks.html", dated, query, rows))


@blueprint.get("/lock/<lock:name>")
@blueprint.get("/lock")
def lock(name: str | None = None) -> Response:
    name, table = name_asked_for(name), dashboard().live.table
    # The name may be copied from an alert, which shows invisible characters as escapes. If no lock
    # has the literal name, show the lock with the unescaped name.
    if table.row(name) is None and table.row(unescaped(name)) is not None:
        name = unescaped(name)
    return _about_one("lock.html", name, request.args.get("unlocked"))


@blueprint.get("/locks/<lock:name>")
@blueprint.get("/locks")
def lock_by_another_path(name: str | None = None) -> BaseResponse:
    """Redirect to a lock's page or to the list.

    People type `/locks` and `/locks/NAME` because the API has such paths.
    """
    return redirect(url_for("pages.locks") if name is None else lock_url(name))


@blueprint.get("/locks/<lock:name>/force-unlock")
@blueprint.get("/locks/force-unlock")
def force(name: str | None = None) -> Response:
    """Show the form that force-unlocks the holder `?uuid=`."""
    uuid = request.args.get("uuid", "")
    return _about_one("force.html", name_asked_for(name), uuid, uuid=uuid)  # if removed, shows that


def _about_one(template: str, name: str, removed: str | None, **values: Any) -> Response:
    """Render a page about one lock.

    The ETag is computed from the table alone. The store is read for the rest, such as the
    backtrace, only if the viewer's copy is out of date.

    Args:
        template: the page's.
        name: the lock's.
        removed: a holder's uuid: if that holder was removed, the page shows the removal.
        values: further values for the template.
    """
    board = dashboard()
    dated = board.dated_snapshot()
    detail = known(name, dated, board.live.table)

    def page() -> Response | str:
        full_detail = complete(detail, dated, board.store, removed)
        html = _render(template, dated, detail=full_detail, **values)
        return html if full_detail.complete else NotCached(html, mimetype="text/html")

    return respond((dated.shown(), detail.shown), page)


@blueprint.get("/host")
def host() -> Response:
    """Show what the host `?name=` holds and waits for."""
    name = request.args.get("name")
    if not name:
        raise BadParameter("The parameter name is missing: give the host's name.")
    dated = dashboard().dated_snapshot()
    snapshot = dated.snapshot

    def page() -> str:
        held, waits = snapshot.on_host(name), snapshot.waits.on_host(name)
        return _render("host.html", dated, name=name, held=held, waits=waits, most=MAX_PER_PAGE)

    return respond(dated.shown("locks", "waits"), page)


@blueprint.get("/hosts")
def hosts() -> Response:
    query = _query("q", "page")
    dated = dashboard().dated_snapshot()
    rows = partial(select_hosts, dated.snapshot.locks, dated.snapshot.waits)
    etag_parts = dated.shown("locks", "waits")
    return respond(etag_parts, lambda: _render_list("hosts.html", dated, query, rows))


@blueprint.get("/waiting")
def waiting() -> Response:
    query = _query("q", "page")
    dated = dashboard().dated_snapshot()
    rows = dated.snapshot.waits.select
    etag_parts = dated.shown("locks", "waits")
    return respond(etag_parts, lambda: _render_list("waiting.html", dated, query, rows))


@blueprint.get("/removed")
def removed() -> Response:
    query = _query("q", "page")
    dated = dashboard().dated_snapshot()
    rows = dated.snapshot.removed
    etag_parts = dated.shown("removals")
    return respond(etag_parts, lambda: _render_list("removed.html", dated, query, rows))


@blueprint.get("/removal")
def removal() -> Response:
    # Name and uuid are parameters: `.` can't be a part of a path.
    dated = dashboard().dated_snapshot()
    name, uuid = name_asked_for(None), request.args.get("uuid", "")

    def page() -> str:
        return _render("removal.html", dated, removal=read_removal(name, uuid))

    return respond(dated.shown("removals"), page)


@blueprint.get("/timeline")
def timeline() -> Response:
    query, span = _query("q"), _span()
    board = dashboard()
    dated = board.dated_snapshot()

    def page() -> str:
        drawn = lanes(board.live, dated, query, span=span)
        return _render(
            "timeline.html", dated, query=query, span=int(span), spans=SPANS_S, lanes=drawn,
            ticks=ticks(drawn),
        )  # fmt: skip

    # The axis moves on every ten seconds.
    versions = board.live.history.version, int(dated.wall / 10)
    return respond((dated.shown("locks", "waits"), versions), page)


@blueprint.get("/runbook")
def runbook() -> str:
    """Show what to do about each alert, also before the locks were read."""
    return render_template("runbook.html", text=_runbook_text())


@cache
def _runbook_text() -> Markup:
    # `make runbook` renders it from docs/runbook.md, which has no raw HTML.
    path = Path(__file__).parents[1] / "runbook.html"
    return Markup(path.read_text(encoding="utf-8"))  # noqa: S704 - see above


def _query(*taken: str) -> Query:
    # Unknown parameters are ignored: links to pages may have some.
    return Query.read({key: request.args[key] for key in taken if key in request.args}, taken)


def _span() -> float:
    given = request.args.get("span")
    if not given:
        return DEFAULT_SPAN_S
    with suppress(ValueError):
        if (seconds := parse_duration(given)) in dict(SPANS_S):
            return seconds
    offered = ", ".join(label for _, label in SPANS_S)
    raise BadParameter(f"The parameter span must be one of {offered}; it is {given[:40]!r}.")


def _render_list(
    template: str, dated: DatedSnapshot, query: Query, select: Callable[[Query], Page]
) -> str:
    """Render the requested page of a list, or the last one if there are fewer by now."""
    page = select(query)
    if query.page > page.last:
        query = replace(query, page=page.last)
        page = select(query)
    return _render(template, dated, query=query, page=page)


def _render(template: str, dated: DatedSnapshot, **values: Any) -> str:
    return render_template(template, dated=dated, wall=dated.wall, **values)


def split_host(hostname: str) -> tuple[str, str]:
    """Split a host's name into its first label and the rest; an address is not split."""
    first, dot, rest = hostname.partition(".")
    if not first or first.isdecimal():  # an IP address: its last part identifies the host
        return hostname, ""
    return first, dot + rest


@blueprint.app_context_processor
def _common() -> dict[str, Any]:
    board = dashboard()
    return {
        "build": board.build,
        "process": board.process,
        "store_url": board.url,
        "endpoints": board.store.endpoints(),
        "dated": None,  # on error pages; the others give their own
        "can": board.store.can,
        "poll": board.store.poll,
        "no_queue": f"{board.store.can.display_name} has no queue: waiters poll for the lock on "
        "their own, in no order, and nothing shows them.",
        "columns": [
            column for column in _COLUMNS if board.store.can.queue or column.kind is not QUEUE
        ],
        "bar_of": Bar.of,
        "lines_of": fact_rows,
        "no_unlock": no_unlock,
        "status_of": status_of,
        "many_waiters": MANY_WAITERS,
        "record_retention": RECORD_RETENTION,
        "no_record": NO_RECORD,
        "lock_url": lock_url,
        "force_url": force_url,
        "removal_url": removal_url,
        "host_url": host_url,
        "span_url": span_url,
        "list_url": list_url,
    }


for _filter in (
    visible,
    plain,
    duration,
    roughly,
    period,
    utc,
    fact_text,
    ascii_name,
    iso,
    alert_query,
    lane_text,
    span_text,
    wait_text,
    tick,
    linked,
    split_host,
    runbook_sections,
    steps_about_holder,
    steps_about_waiter,
):
    blueprint.add_app_template_filter(_filter)
blueprint.add_app_template_filter(read_backtrace, "frames")
