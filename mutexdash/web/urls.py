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
from mutexdash.data.query import Query
from mutexdash.data.timeline import Span


def lock_url(name: str) -> str:
    """Return the address of a lock's page."""
    return _named("pages.lock", name)


def force_url(name: str, uuid: str = "") -> str:
    """Return the address of the form that takes the lock from the holder `uuid`; without that, the
    address that the form is sent to."""
    address = _named("pages.force", name)
    between = "&" if "?" in address else "?"
    return f"{address}{between}{urlencode({'uuid': uuid})}" if uuid else address


def _named(endpoint: str, name: str) -> str:
    if name in (".", ".."):  # see `LockName`
        return url_for(endpoint, name=None) + "?" + urlencode({"name": name})
    return url_for(endpoint, name=name)


def removal_url(holder: Holder) -> str:
    """Return the address of the page about the removal of a holder."""
    parameters = urlencode({"name": holder.name, "uuid": holder.uuid or ""})
    return f"{url_for('pages.removal')}?{parameters}"


def span_url(span: Span) -> str:
    """Return the address of what says more about a span: the removal that ended it, or the lock."""
    if span.how in (AUTO_UNLOCK, FORCE_UNLOCK):
        return removal_url(span.holder)
    return lock_url(span.holder.name)


def host_url(hostname: str) -> str:
    """Return the address of the page of a host."""
    return f"{url_for('pages.host')}?{urlencode({'name': hostname})}"


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
    parameters = urlencode({key: value for key, value in wanted.items() if value})
    return url_for(request.endpoint or "pages.locks") + (f"?{parameters}" if parameters else "")


class LockName(BaseConverter):
    """A lock's name as the rest of a path: `/` and all, percent-encoded once.

    A WSGI server decodes the path once before it is looked at here. So `deploy%2Fprod` arrives as
    `deploy/prod`, and the lock that is really named `deploy%2Fprod`, written `deploy%252Fprod`,
    as that: two names never meet. Only `.` and `..` can't be written in a path, because every
    browser takes them out, encoded or not: the views take `?name=` for them, and for any name.
    """

    regex = ".+"
    part_isolating = False

    def to_url(self, value: str) -> str:
        """Return the name percent-encoded, as in the keyspace."""
        return quote(value, safe="")


def alert_query(name: str) -> str:
    """Return the parameters with which Prometheus shows this lock's alerts."""
    # As metrics have it. JSON writes a text as PromQL takes one.
    expression = f"ALERTS{{name={json.dumps(shown_name(name), ensure_ascii=False)}}}"
    return urlencode({"g0.expr": expression, "g0.tab": "1"})
