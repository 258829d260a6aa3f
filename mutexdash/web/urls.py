"""The addresses of pages, and lock names in them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from flask import request, url_for
from werkzeug.routing import BaseConverter

from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.text.escaping import shown_name
from mutexdash.data.list_parameters import Query
from mutexdash.data.timeline import Span


def lock_url(name: str) -> str:
    return _named("pages.lock", name)


def force_url(name: str, uuid: str = "") -> str:
    """Return the address of the form that force-unlocks the holder `uuid`; without that, the
    address to which the form is sent."""
    address = _named("pages.force", name)
    between = "&" if "?" in address else "?"
    return f"{address}{between}{urlencode({'uuid': uuid})}" if uuid else address


def _named(endpoint: str, name: str) -> str:
    if name in (".", ".."):  # see `LockName`
        return url_for(endpoint, name=None) + "?" + urlencode({"name": name})
    return url_for(endpoint, name=name)


def removal_url(holder: Holder) -> str:
    parameters = urlencode({"name": holder.name, "uuid": holder.uuid or ""})
    return f"{url_for('pages.removal')}?{parameters}"


def span_url(span: Span) -> str:
    """Return the address of the removal that ended a span, or else of the lock."""
    if span.how in (AUTO_UNLOCK, FORCE_UNLOCK):
        return removal_url(span.holder)
    return lock_url(span.holder.name)


def host_url(hostname: str) -> str:
    return f"{url_for('pages.host')}?{urlencode({'name': hostname})}"


def list_url(query: Query, span: int | None = None, **changes: Any) -> str:
    """Return the address of the current list's first page with these changes of the query."""
    changed = replace(query, **({"page": 1} | changes))
    wanted = {
        "q": changed.text,
        "state": changed.state,
        "sort": "" if changed.sort == "state" else changed.sort,
        "page": "" if changed.page == 1 else changed.page,
        "span": span,
    }
    parameters = urlencode({key: value for key, value in wanted.items() if value})
    return url_for(request.endpoint or "pages.locks") + (f"?{parameters}" if parameters else "")


class LockName(BaseConverter):
    """A lock's name as the rest of a path, with its `/`, percent-encoded once.

    The WSGI server decodes the path once, so the paths of two names always differ. Browsers
    resolve `.` and `..` in a path, encoded or not: for them, and for any name, views take `?name=`.
    """

    regex = ".+"
    part_isolating = False

    def to_url(self, value: str) -> str:
        """Return the name percent-encoded, as in the keyspace."""
        return quote(value, safe="")


def alert_query(name: str) -> str:
    """Return the parameters with which Prometheus shows this lock's alerts."""
    # The name as in metrics. A JSON string is a PromQL string.
    expression = f"ALERTS{{name={json.dumps(shown_name(name), ensure_ascii=False)}}}"
    return urlencode({"g0.expr": expression, "g0.tab": "1"})
