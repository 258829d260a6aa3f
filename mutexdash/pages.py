"""The pages for people: all locks, one lock, its force-unlock, what was held, what was removed.

Each page works by plain reload; `static/live.js` only reloads it more smoothly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, render_template, request, url_for

from lockclient.record import Removal
from lockclient.shown import Bar, duration, plain, utc
from mutexdash.axis import SPANS, lane_text, span_text, tick, ticks
from mutexdash.context import dashboard, name_asked_for, tagged, unchanged
from mutexdash.detail import complete, known
from mutexdash.exports import read_removal
from mutexdash.frames import read_backtrace
from mutexdash.lanes import SPAN, lanes
from mutexdash.query import BadParameter, Page, Query
from mutexdash.snapshot import Moment
from mutexdash.text import iso, visible

blueprint = Blueprint("pages", __name__)

COLUMNS = (
    ("state", "State"),
    ("name", "Lock"),
    ("hostname", "Holder"),
    ("reason", "Reason"),
    ("locked_at", "Held for"),
    ("auto_unlock_at", "Until auto-unlock"),
    ("waiters", "Waiters"),
)


@blueprint.get("/")
def locks() -> Response:
    """Show the locks that are held, and for a few seconds those that were."""
    query = _query("q", "state", "sort", "page")
    moment = dashboard().moment()
    if (same := unchanged(moment.etag())) is not None:
        return same
    query, page = _clamped(query, lambda asked: moment.picture.select(asked, ended=True))
    return tagged(_render("locks.html", moment, query=query, page=page), moment.etag())


@blueprint.get("/lock/<lock:name>")
@blueprint.get("/lock")
def lock(name: str | None = None) -> Response:
    """Show one lock."""
    return _about_one("lock.html", name_asked_for(name))


@blueprint.get("/locks/<lock:name>/force-unlock")
@blueprint.get("/locks/force-unlock")
def force(name: str | None = None) -> Response:
    """Show the form that takes a lock from the holder `?uuid=`, and from no other."""
    return _about_one("force.html", name_asked_for(name), uuid=request.args.get("uuid", ""))


def _about_one(template: str, name: str, **shown: Any) -> Response:
    board = dashboard()
    moment = board.moment()
    detail = known(name, moment, board.live.table)
    if (same := unchanged(detail.etag)) is not None:
        return same
    whole = complete(detail, moment, board.store, request.args.get("unlocked"))
    return tagged(_render(template, moment, detail=whole, **shown), whole.etag)


@blueprint.get("/removed")
def removed() -> Response:
    """Show what was auto-unlocked and force-unlocked lately."""
    query = _query("q", "page")
    moment = dashboard().moment()
    if (same := unchanged(moment.etag())) is not None:
        return same
    query, page = _clamped(query, moment.picture.snapshot.removed)
    return tagged(_render("removed.html", moment, query=query, page=page), moment.etag())


@blueprint.get("/removal")
def removal() -> Response:
    """Show one removal, with the backtrace of the holder that was."""
    # Not in the path: of all pages' names this one alone needs two, and a path has no room for `.`.
    moment = dashboard().moment()
    if (same := unchanged(moment.etag())) is not None:  # a record never changes
        return same
    found = read_removal(name_asked_for(None), request.args.get("uuid", ""))
    return tagged(_render("removal.html", moment, removal=found), moment.etag())


@blueprint.get("/timeline")
def timeline() -> Response:
    """Show who held what lately, as far as this dashboard has seen it."""
    query, span = _query("q"), _span()
    board = dashboard()
    moment = board.moment()
    shown = lanes(board.live, moment, query, span=span)
    tag = f"{moment.etag()}-{shown.etag}"
    if (same := unchanged(tag)) is not None:
        return same
    page = _render(
        "timeline.html", moment, query=query, span=int(span), spans=SPANS, lanes=shown,
        ticks=ticks(shown),
    )  # fmt: skip
    return tagged(page, tag)


def _query(*taken: str) -> Query:
    # A page is opened by links that others made, with parameters of theirs perhaps.
    return Query.read({key: request.args[key] for key in taken if key in request.args}, taken)


def _span() -> float:
    said = request.args.get("span") or str(int(SPAN))
    known_spans = [str(seconds) for seconds, _ in SPANS]
    if said not in known_spans:
        raise BadParameter(
            f"The parameter span must be one of {', '.join(known_spans)} seconds; it is {said!r}."
        )
    return float(said)


def _clamped(query: Query, select: Callable[[Query], Page]) -> tuple[Query, Page]:
    """Return the page that was asked for, or the last one if it is gone meanwhile."""
    page = select(query)
    if query.page > page.last:
        query = replace(query, page=page.last)
        page = select(query)
    return query, page


def _render(template: str, moment: Moment, **shown: Any) -> str:
    return render_template(template, moment=moment, wall=moment.wall, **shown)


def lock_url(name: str) -> str:
    """Return the address of a lock's page."""
    return _named("pages.lock", name)


def force_url(name: str, uuid: str) -> str:
    """Return the address of the form that takes the lock from the holder `uuid`."""
    address = _named("pages.force", name)
    return f"{address}{'&' if '?' in address else '?'}{urlencode({'uuid': uuid})}"


def unlock_url(name: str) -> str:
    """Return the address that the form is sent to."""
    return _named("pages.force", name)


def _named(endpoint: str, name: str) -> str:
    if name in (".", ".."):  # see `LockName`
        return url_for(endpoint, name=None) + "?" + urlencode({"name": name})
    return url_for(endpoint, name=name)


def removal_url(gone: Removal) -> str:
    """Return the address of one removal's page."""
    said = urlencode({"name": gone.holder.name, "uuid": gone.holder.uuid or ""})
    return f"{url_for('pages.removal')}?{said}"


def list_url(query: Query, span: int | None = None, **changes: Any) -> str:
    """Return the address of the current list, first page, with these changes to what it shows."""
    changed = replace(query, **({"page": 1} | changes))
    wanted = {
        "q": changed.text,
        "state": changed.state,
        "sort": "" if changed.sort == "state" else changed.sort,
        "page": "" if changed.page == 1 else changed.page,
        "span": span,
    }
    said = urlencode({key: value for key, value in wanted.items() if value})
    return url_for(request.endpoint or "pages.locks") + (f"?{said}" if said else "")


def alert_query(name: str) -> str:
    """Return the parameters with which Prometheus shows this lock's alerts."""
    # JSON writes a text as PromQL takes one; control characters are in no lock's name.
    expression = f"ALERTS{{name={json.dumps(name, ensure_ascii=False)}}}"
    return urlencode({"g0.expr": expression, "g0.tab": "1"})


@blueprint.app_context_processor
def _common() -> dict[str, Any]:
    board = dashboard()
    return {
        "build": board.build,
        "store_url": board.url,
        "endpoints": board.store.endpoints(),
        "moment": None,  # on error pages; the others give their own
        "columns": COLUMNS,
        "bar_of": Bar.of,
        "lock_url": lock_url,
        "force_url": force_url,
        "unlock_url": unlock_url,
        "removal_url": removal_url,
        "list_url": list_url,
    }


for _filter in (visible, plain, duration, utc, iso, alert_query, lane_text, span_text, tick):
    blueprint.add_app_template_filter(_filter)
blueprint.add_app_template_filter(read_backtrace, "frames")
