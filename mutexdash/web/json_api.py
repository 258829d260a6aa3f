"""The JSON API: the same locks as on the pages, for programs.

    /api/locks?q=&state=&sort=&page=&per_page=   all locks; `sort=-waiters` reverses the order
    /api/locks/deploy%2Fprod                     one lock, its name percent-encoded once
    /api/lock?name=..                            the same; the only form for `.` and `..`
    /api/removed?q=&page=&per_page=              what was auto-unlocked and force-unlocked
    /api/removed/deploy%2Fprod?uuid=             one of these, with its backtrace
    /api/removal?name=..&uuid=                   the same
    /api/locks/deploy%2Fprod/force-unlock        POST: see `web.force_unlock_routes`
    /api/openapi.yaml                            all of this, for programs to read

Errors are `{"error": "a sentence"}`. In lists, texts of more than 200 characters are cut and end
in `…`. Every list and every lock has an ETag, which stays while nothing changes.
"""

from __future__ import annotations

from pathlib import Path

from flask import Blueprint, Response, abort, current_app, jsonify, request

from lockclient.overview.lock_json import locks_document, removal_facts, whole_lock
from lockclient.overview.lock_status import status_of
from mutexdash.data.list_parameters import Query
from mutexdash.data.lock_detail import complete, known
from mutexdash.web.context import dashboard, name_asked_for
from mutexdash.web.exports import read_removal
from mutexdash.web.openapi import description
from mutexdash.web.respond import respond

blueprint = Blueprint("api", __name__, url_prefix="/api")


@blueprint.get("/locks")
def locks() -> Response:
    query = Query.read(request.args, ("q", "state", "sort", "page", "per_page"))
    dated = dashboard().dated_snapshot()
    snapshot = dated.snapshot

    def listed() -> Response:
        page = snapshot.select(query)
        document = locks_document(
            page.items,
            total=page.total,
            revision=snapshot.revision,
            wall=dated.wall,
            unlockers=len(snapshot.unlockers),
            connected=dated.outdated_since is None,
            deadlocks=snapshot.waits.deadlocks,
            remarks=dated.remarks,
        )
        return jsonify(document)

    return respond(dated.shown("locks"), listed)


@blueprint.get("/locks/<lock:name>")
@blueprint.get("/lock")
def lock(name: str | None = None) -> Response:
    name = name_asked_for(name)
    board = dashboard()
    dated = board.dated_snapshot()
    detail = known(name, dated, board.live.table)

    def whole() -> Response:
        asked = complete(detail, dated, board.store)
        if asked.trouble:
            abort(503, f"The lock {name!r} can't be shown. {asked.trouble}")
        if asked.holder is None:
            abort(404, f"Nobody holds the lock {name!r}.")
        circle = detail.deadlock.seen_from(name) if detail.deadlock else ()
        status = status_of(asked.holder, dated.judged_at, deadlock=bool(circle))
        facts = whole_lock(asked.holder, status, asked.queue.first, circle)
        facts["waiters"] = asked.queue.waiting if board.store.can.queue else None
        return jsonify(facts)

    return respond((dated.shown(), detail.shown), whole)


@blueprint.get("/removed")
def removed() -> Response:
    query = Query.read(request.args, ("q", "page", "per_page"))
    dated = dashboard().dated_snapshot()
    snapshot = dated.snapshot

    def listed() -> Response:
        page = snapshot.removed(query)
        return jsonify(
            removed=[removal_facts(gone) for gone in page.items],
            total=page.total,
            revision=snapshot.revision,
            server_time=dated.wall,
        )

    return respond(dated.shown("removals"), listed)


@blueprint.get("/removed/<lock:name>")
@blueprint.get("/removal")
def removal(name: str | None = None) -> Response:
    found = read_removal(name_asked_for(name), request.args.get("uuid", ""))
    return jsonify(found.facts())


@blueprint.get("/openapi.yaml")
def openapi() -> Response:
    text = description(Path(current_app.root_path) / "static")
    return Response(text, content_type="application/yaml")
