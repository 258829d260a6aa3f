"""Force-unlock by a form and by JSON, the only writes; `request_checks` has checked them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, abort, jsonify, redirect, request
from werkzeug.exceptions import TooManyRequests
from werkzeug.wrappers import Response as BaseResponse

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.removal import Removal
from lockclient.overview.force_unlock_request import NO_RECORD, Changed, force_unlock
from lockclient.service.logging_setup import log_fields
from lockclient.text.escaping import ascii_name, plain
from mutexdash.security.request_checks import acting_user
from mutexdash.web.context import CHANGED, DONE, FAILED, UNKNOWN, dashboard, name_asked_for
from mutexdash.web.urls import force_url, lock_url

log = logging.getLogger(__name__)

blueprint = Blueprint("writes", __name__)

_MAX_REASON_CHARS = 500
_REQUEST_TIMEOUT_S = 3.0
"""Seconds for one force-unlock: each request keeps one of few threads."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A person's request: `typed` is the confirming name, `uuid` the holder on the page.

    `unrecorded`: the person agreed that no record can be kept.
    """

    typed: str
    uuid: str
    reason: str
    unrecorded: bool

    @classmethod
    def read(cls, fields: Any, unrecorded: Any) -> _Request:
        found = []
        for key in ("name", "uuid", "reason"):
            text = fields.get(key) if hasattr(fields, "get") else None
            if not isinstance(text, str) or not (text.strip() if key == "reason" else text):
                abort(400, f"Nothing was unlocked: the field {key} is missing or empty.")
            found.append(text.encode(errors="replace").decode())  # JSON may have half characters
        if not isinstance(unrecorded, bool):
            abort(400, "Nothing was unlocked: the field unrecorded must be true or false.")
        asked = cls(found[0], found[1], " ".join(found[2].split()), unrecorded)
        if len(asked.reason) > _MAX_REASON_CHARS:
            abort(
                400,
                f"Nothing was unlocked: the reason may have {_MAX_REASON_CHARS} characters; this "
                f"one has {len(asked.reason)}.",
            )
        return asked


@blueprint.post("/locks/<lock:name>/force-unlock")
@blueprint.post("/locks/force-unlock")
def by_form(name: str | None = None) -> BaseResponse:
    name = name_asked_for(name)
    fields = {"uuid": _uuid_of(request.form), **request.form.to_dict()}
    asked = _Request.read(fields, "unrecorded" in request.form)
    try:
        removal = _unlock(name, asked)
    except StoreFull:  # the form then asks whether to go on without a record
        return redirect(f"{force_url(name, asked.uuid)}&full=1", 303)
    page = lock_url(name)
    unlocked = urlencode({"unlocked": removal.holder.uuid or ""})
    return redirect(f"{page}{'&' if '?' in page else '?'}{unlocked}", 303)


@blueprint.post("/api/locks/<lock:name>/force-unlock")
@blueprint.post("/api/lock/force-unlock")
def by_json(name: str | None = None) -> Response:
    name = name_asked_for(name)
    body = _body()
    unrecorded = body.get("unrecorded", False) if isinstance(body, dict) else False
    asked = _Request.read(body, unrecorded)
    try:
        removal = _unlock(name, asked)
    except StoreFull:
        abort(409, f"Nothing was unlocked: {NO_RECORD} For that there is the field unrecorded.")
    return jsonify(removed=removal.facts())


def _uuid_of(form: Mapping[str, str]) -> str:
    """Return the uuid of the page's holder; hexadecimal, as browsers change some texts in fields
    (a NUL, a line's end)."""
    try:
        return bytes.fromhex(form.get("uuid_hex", "")).decode()
    except ValueError:
        abort(400, "Nothing was unlocked: the field uuid_hex is no text in hexadecimal.")


def _body() -> Any:
    try:
        return request.get_json(silent=True)
    except RecursionError:  # brackets a thousand deep
        return None


def _unlock(name: str, asked: _Request) -> Removal:
    # A name that can't be typed is shown with escapes.
    if asked.typed not in (name, plain(name), ascii_name(name)):
        abort(
            400,
            f"Nothing was unlocked: the name that was typed is {asked.typed[:300]!r}, and the "
            f"lock's name is {name!r}.",
        )
    board = dashboard()
    unlocks, who = board.unlocks, acting_user()
    dated = board.dated_snapshot()
    if dated.outdated_since is not None:
        why = (
            f"{board.store.can.display_name} is unreachable"
            if dated.state == "unreachable"
            else "the dashboard is out of date"
        )
        abort(503, f"Nothing was unlocked: {why}. Try again shortly.")
    counted = unlocks.counted.hit({(who,): unlocks.most})
    if counted is None:
        raise TooManyRequests(
            f"{unlocks.most} force-unlocks of yours were made within a minute or are under way: "
            "nothing was unlocked. Try again in a minute.",
            retry_after=60,
        )
    deadline = Deadline.after(_REQUEST_TIMEOUT_S)
    try:
        removal = force_unlock(
            board.store,
            name,
            asked.uuid,
            who,
            asked.reason,
            deadline,
            unrecorded=asked.unrecorded,
        )
    except Changed as error:
        unlocks.counted.take_back(counted)
        unlocks.results.labels(CHANGED).inc()
        abort(409, str(error))
    except StoreFull:
        unlocks.counted.take_back(counted)
        unlocks.results.labels(FAILED).inc()
        raise
    except (StoreUnavailable, StoreError) as error:
        unlocks.results.labels(UNKNOWN if error.unknown else FAILED).inc()
        if error.unknown:
            abort(503, f"It is unknown whether it was unlocked: check the lock again. {error}")
        unlocks.counted.take_back(counted)
        abort(502, f"Nothing was unlocked: {error}")
    unlocks.results.labels(DONE).inc()
    log.warning(
        "%s force-unlocked %r: %r.",
        who,
        name,
        asked.reason,
        extra=log_fields("force-unlocked", removal.holder, removal),
    )
    return removal
