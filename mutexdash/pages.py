"""The pages for people: all locks, one lock, what was removed.

Each page works by plain reload; `static/live.js` only reloads it more smoothly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, render_template, request, url_for

from mutexdash.bar import bar_of
from mutexdash.context import dashboard, name_asked_for, tagged, unchanged
from mutexdash.detail import complete, known
from mutexdash.query import Query
from mutexdash.snapshot import Moment
from mutexdash.text import duration, iso, plain, utc, visible

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
    """Show the locks that are held."""
    query = _query("q", "state", "sort", "page")
    moment = dashboard().moment()
    if (same := unchanged(moment.etag())) is not None:
        return same
    page = moment.picture.select(query)
    if query.page > page.last:  # the last page is gone while somebody looked at it
        query = replace(query, page=page.last)
        page = moment.picture.select(query)
    return tagged(_render("locks.html", moment, query=query, page=page), moment.etag())


@blueprint.get("/lock/<lock:name>")
@blueprint.get("/lock")
def lock(name: str | None = None) -> Response:
    """Show one lock."""
    name = name_asked_for(name)
    board = dashboard()
    moment = board.moment()
    detail = known(name, moment, board.live.table)
    if (same := unchanged(detail.etag)) is not None:
        return same
    whole = complete(detail, moment, board.store)
    return tagged(_render("lock.html", moment, detail=whole), whole.etag)


@blueprint.get("/removed")
def removed() -> Response:
    """Show what was auto-unlocked and force-unlocked lately."""
    query = _query("q", "page")
    moment = dashboard().moment()
    if (same := unchanged(moment.etag())) is not None:
        return same
    page = moment.picture.snapshot.removed(query)
    if query.page > page.last:
        query = replace(query, page=page.last)
        page = moment.picture.snapshot.removed(query)
    return tagged(_render("removed.html", moment, query=query, page=page), moment.etag())


def _query(*taken: str) -> Query:
    # A page is opened by links that others made, with parameters of theirs perhaps.
    return Query.read({key: request.args[key] for key in taken if key in request.args}, taken)


def _render(template: str, moment: Moment, **shown: Any) -> str:
    return render_template(template, moment=moment, wall=moment.wall, **shown)


def lock_url(name: str) -> str:
    """Return the address of a lock's page."""
    if name in (".", ".."):  # see `LockName`
        return url_for("pages.lock", name=None) + "?" + urlencode({"name": name})
    return url_for("pages.lock", name=name)


def list_url(query: Query, **changes: Any) -> str:
    """Return the address of the current list, first page, with these changes to what it shows."""
    changed = replace(query, **({"page": 1} | changes))
    wanted = {
        "q": changed.text,
        "state": changed.state,
        "sort": "" if changed.sort == "state" else changed.sort,
        "page": "" if changed.page == 1 else changed.page,
    }
    said = urlencode({key: value for key, value in wanted.items() if value})
    return url_for(request.endpoint or "pages.locks") + (f"?{said}" if said else "")


@blueprint.app_context_processor
def _common() -> dict[str, Any]:
    board = dashboard()
    return {
        "build": board.build,
        "store_url": board.url,
        "endpoints": board.store.endpoints(),
        "moment": None,  # on error pages; the others give their own
        "columns": COLUMNS,
        "bar_of": bar_of,
        "lock_url": lock_url,
        "list_url": list_url,
    }


for _filter in (visible, plain, duration, utc, iso):
    blueprint.add_app_template_filter(_filter)
