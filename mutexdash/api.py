"""The JSON API: the same locks as on the pages, for programs."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, abort, jsonify, request

from lockclient.record import Holder
from mutexdash.context import dashboard, name_asked_for, unless_seen
from mutexdash.detail import complete, known
from mutexdash.query import Query

blueprint = Blueprint("api", __name__, url_prefix="/api")


def lock_facts(holder: Holder, state: str, waiters: int) -> dict[str, Any]:
    """Return a lock as a list shows it, without its backtrace."""
    facts = holder.facts()
    del facts["backtrace"]
    name, uuid = facts.pop("name"), facts.pop("uuid")
    return {"name": name, "uuid": uuid, "state": state, **facts, "waiters": waiters}


@blueprint.get("/locks")
def locks() -> Response:
    """List the locks that are held."""
    query = Query.read(request.args, ("q", "state", "sort", "page", "per_page"))
    moment = dashboard().moment()
    picture = moment.picture

    def answer() -> Response:
        page = picture.select(query)
        return jsonify(
            locks=[lock_facts(*held) for held in page.items],
            total=page.total,
            revision=picture.snapshot.revision,
            server_time=moment.wall,
            unlockers=len(picture.snapshot.unlockers),
            connected=moment.away_since is None,
        )

    return unless_seen(moment.etag(), answer)


@blueprint.get("/locks/<lock:name>")
@blueprint.get("/lock")
def lock(name: str | None = None) -> Response:
    """Show one lock, with its backtrace and the line of its waiters."""
    name = name_asked_for(name)
    board = dashboard()
    moment = board.moment()
    detail = known(name, moment, board.live.table)

    def answer() -> Response:
        whole = complete(detail, moment, board.store)
        if whole.trouble:
            abort(503, f"The lock {name!r} can't be shown: {whole.trouble}")
        if whole.holder is None:
            abort(404, f"Nobody holds the lock {name!r}.")
        facts = lock_facts(whole.holder, whole.holder.state(moment.wall), len(whole.line))
        queue = [ticket.facts() for ticket in whole.line]
        return jsonify(**facts, backtrace=whole.holder.backtrace, queue=queue)

    return unless_seen(detail.etag, answer)


@blueprint.get("/removed")
def removed() -> Response:
    """List what was auto-unlocked and force-unlocked lately, the newest first."""
    query = Query.read(request.args, ("q", "page", "per_page"))
    moment = dashboard().moment()
    snapshot = moment.picture.snapshot

    def answer() -> Response:
        page = snapshot.removed(query)
        facts = [removal.facts() for removal in page.items]
        for each in facts:
            del each["backtrace"]
        return jsonify(
            removed=facts,
            total=page.total,
            revision=snapshot.revision,
            server_time=moment.wall,
        )

    return unless_seen(moment.etag(), answer)
