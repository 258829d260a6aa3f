"""All that can be changed through the dashboard: force-unlock, by a form and by JSON.

Every request comes here through `guard.Guard.check_write`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, current_app, jsonify, redirect, request
from prometheus_client import CollectorRegistry, Counter
from werkzeug.wrappers import Response as BaseResponse

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.record import Removal
from lockclient.shown import plain
from lockclient.timing import Deadline
from lockclient.unlocking import Changed, force_unlock
from mutexdash.context import dashboard, name_asked_for
from mutexdash.guard import who_did_it
from mutexdash.pages import lock_url

log = logging.getLogger(__name__)

blueprint = Blueprint("writes", __name__)

_LONGEST_REASON = 500
_PATIENCE = 3.0
"""Seconds for one force-unlock: there are few threads, and viewers behind this one."""
_RESULTS = DONE, CHANGED, FAILED, UNKNOWN = "done", "changed", "failed", "unknown"


def install(app: Any, registry: CollectorRegistry) -> None:
    """Count what is done."""
    counter = Counter(
        "mutexdash_force_unlocks", "Force-unlocks tried here.", ["result"], registry=registry
    )
    for result in _RESULTS:
        counter.labels(result)  # from 0 on, or else the first one would be no increase
    app.extensions["mutexdash-force-unlocks"] = counter


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person asks for: `typed` is the name to confirm it, `uuid` the holder they saw."""

    typed: str
    uuid: str
    reason: str

    @classmethod
    def read(cls, fields: Any) -> _Asked:
        found = []
        for key in ("name", "uuid", "reason"):
            text = fields.get(key) if hasattr(fields, "get") else None
            if not isinstance(text, str) or not (text.strip() if key == "reason" else text):
                abort(400, f"Nothing was unlocked: the field {key} is missing or empty.")
            found.append(text.encode(errors="replace").decode())  # JSON may have half characters
        asked = cls(found[0], found[1], " ".join(found[2].split()))
        if len(asked.reason) > _LONGEST_REASON:
            abort(
                400,
                f"Nothing was unlocked: the reason may have {_LONGEST_REASON} characters; this one "
                f"has {len(asked.reason)}.",
            )
        return asked


@blueprint.post("/locks/<lock:name>/force-unlock")
@blueprint.post("/locks/force-unlock")
def by_form(name: str | None = None) -> BaseResponse:
    """Force-unlock from a page, and go back to it."""
    name = name_asked_for(name)
    removal = _unlock(name, _Asked.read(request.form))
    page = lock_url(name)
    said = urlencode({"unlocked": removal.holder.uuid or ""})
    return redirect(f"{page}{'&' if '?' in page else '?'}{said}", 303)


@blueprint.post("/api/locks/<lock:name>/force-unlock")
@blueprint.post("/api/lock/force-unlock")
def by_json(name: str | None = None) -> Response:
    """Force-unlock for a program."""
    name = name_asked_for(name)
    removal = _unlock(name, _Asked.read(_body()))
    return jsonify(removed=removal.facts())


def _body() -> Any:
    try:
        return request.get_json(silent=True)
    except RecursionError:  # brackets a thousand deep
        return None


def _unlock(name: str, asked: _Asked) -> Removal:
    if asked.typed not in (name, plain(name)):  # what can't be typed is shown as an escape
        abort(
            400,
            f"Nothing was unlocked: the name that was typed is {asked.typed[:300]!r}, and the "
            f"lock's name is {name!r}.",
        )
    board = dashboard()
    counts = current_app.extensions["mutexdash-force-unlocks"]
    if board.moment().away_since is not None:
        abort(503, "Nothing was unlocked: etcd is away. Try again when it is back.")
    by, deadline = who_did_it(), Deadline.after(_PATIENCE)
    try:
        removal = force_unlock(board.store, name, asked.uuid, by, asked.reason, deadline)
    except Changed as error:
        counts.labels(CHANGED).inc()
        abort(409, str(error))
    except (StoreUnavailable, StoreError) as error:
        counts.labels(UNKNOWN if error.unknown else FAILED).inc()
        if error.unknown:
            abort(503, f"Whether it was unlocked is not known: look at the lock again. {error}")
        abort(502, f"Nothing was unlocked: {error}")
    counts.labels(DONE).inc()
    # In full: the store keeps it for some days only, or not at all if it is out of space.
    log.warning("%s force-unlocked %r: %r. The record: %s", by, name, asked.reason, removal.value())
    return removal
