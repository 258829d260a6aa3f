"""The WSGI application (Flask): blueprints, guard, compression, error pages.

`Service` is a whole dashboard over a store: the table, the threads that keep it new, the
application.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from flask import Flask, Response, jsonify, make_response, render_template, request
from prometheus_client import CollectorRegistry
from werkzeug.exceptions import BadRequest, HTTPException, NotFound

from lockclient.errors import InvalidLockName
from lockclient.model.clocks import monotonic
from lockclient.overview.table import Table
from lockclient.service.http_server import HttpServer
from lockclient.service.metrics import ComputedCollector
from lockclient.stores.service_protocol import ServiceStore
from mutexdash.data.history import History
from mutexdash.data.live import Live
from mutexdash.data.query import BadParameter
from mutexdash.data.staleness import Probe
from mutexdash.data.waits import WaiterPoller
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security import guard
from mutexdash.security.access import Access
from mutexdash.security.proxy import mounted
from mutexdash.web import exports, force_unlock_routes, json_api, pages, probes_and_metrics
from mutexdash.web.context import Dashboard, Unlocks, attach, dashboard
from mutexdash.web.respond import compress
from mutexdash.web.trace_link import trace_link
from mutexdash.web.urls import LockName

_MAX_REMOVALS: Final = 1000
"""How many removals are shown, the newest ones, as `removed.html` says."""


class Service:
    """The dashboard of a store.

    Args:
        store: whose locks it shows; closing it is the caller's.
        clock: the wall clock, for tests.
        background: whether threads keep it new, and ask the store how old the table is; tests
            with a clock of their own call `poll()` instead.
        rest: see `Live`.
        access, options: those of `create_app`.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        clock: Callable[[], float] = time.time,
        background: bool = True,
        rest: float = 2.0,
        access: Access | None = None,
        **options: Any,
    ) -> None:
        self._background = background
        history = History(clock=clock)
        self._table = Table(
            store, removals=_MAX_REMOVALS, on_change=history.note, on_removal=history.note_removals
        )
        self._waiting = WaiterPoller(self._table, store)
        probe = Probe(self._table, store) if background else None
        self._live = Live(
            self._table, history, probe=probe, waiting=self._waiting, clock=clock, rest=rest
        )
        access = access or Access()
        self._is_proxied = bool(access.proxies.all)
        self.app = create_app(self._live, store, access=access, **options)

    def server(self, listen: tuple[str, int]) -> HttpServer:
        """Return a server of its pages, which listens and is still to be started."""
        return HttpServer(self.app, listen, proxied=self._is_proxied)

    def start(self) -> None:
        """Begin to read the store and to follow it."""
        self._table.start()
        if self._background:
            self._live.start()

    def stop(self) -> None:
        """End what `start()` began."""
        self._live.stop()
        self._table.stop()

    def is_live(self) -> str | None:
        """See `Live.is_live`."""
        return self._live.is_live()

    def poll(self) -> int:
        """Read who waits, as a thread does every few seconds; return the revision that is shown,
        0 before everything was read once."""
        self._waiting.poll()
        return self._table.revision if self._table.ready() else 0


def create_app(
    live: Live,
    store: ServiceStore,
    *,
    url: str = "",
    access: Access | None = None,
    prometheus_url: str = "",
    runbook_url: str = "",
    trace_url: str = "",
    label: ClusterLabel | None = None,
    ticks: Callable[[], float] = monotonic,
) -> Flask:
    """Return the dashboard as a WSGI application.

    Args:
        live: what there is to show; starting and stopping it and its table is the caller's.
        store: asked for the backtrace when one lock is looked at.
        url: the store's URL as people may see it, for the commands that pages propose.
        access: who may see and do what; by default all that come over loopback may look.
        prometheus_url: where people see alerts, without a slash at the end; "" if nowhere.
        runbook_url: where people read the runbook, the same way.
        trace_url: where people see a trace, with names of a lock's context in braces.
        label: which cluster this is, for people.
        ticks: the monotonic clock, for tests.
    """
    access, label = access or Access(), label or ClusterLabel()
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = 16 * 1024
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    # A lock's name in a path may hold any slashes: no two of them are the same name.
    app.url_map.merge_slashes = False
    app.url_map.converters["lock"] = LockName
    registry = CollectorRegistry()
    registry.register(ComputedCollector(lambda: probes_and_metrics.lock_gauges(live, store)))
    unlocks = Unlocks(registry, access.unlocks_a_minute, ticks)
    build = _build(Path(app.root_path), label)
    attach(app, Dashboard(live, store, registry, url, build, unlocks))
    guard.protect(app, access)
    app.after_request(compress)
    for part in (pages, json_api, exports, probes_and_metrics, force_unlock_routes):
        app.register_blueprint(part.blueprint)
    links = {
        "prometheus_url": prometheus_url,
        "runbook_url": runbook_url,
        "trace_of": partial(trace_link, trace_url),
    }
    app.context_processor(lambda: links | {"label": label})
    app.after_request(_say_how_old)
    app.wsgi_app = mounted(app.wsgi_app, access)  # type: ignore[method-assign]  # as Flask has it
    app.register_error_handler(HTTPException, _explain)
    for kind in (BadParameter, InvalidLockName):
        app.register_error_handler(kind, _refuse)
    return app


def _say_how_old(response: Response) -> Response:
    """Say until when the picture is new, also to who has seen it: by that a page counts its age."""
    if request.blueprint in ("pages", "api"):
        response.headers["X-Updated-At"] = f"{dashboard().live.updated_at():.3f}"
    return response


def _refuse(error: Exception) -> Response:
    return _explain(BadRequest(str(error)))


def _explain(error: HTTPException) -> Response:
    """Answer an error as JSON to programs and as a page to people, in the same words."""
    original = error.get_response()
    if error.description == NotFound.description:
        error = NotFound("This page does not exist. A lock's page is /lock/ followed by its name.")
    if request.path.startswith("/api/"):
        response = jsonify(error=error.description)
    else:
        response = make_response(render_template("error.html", error=error, lock=_lock_meant()))
    response.status_code = error.code or 500
    for name, value in original.headers.items():
        if name not in ("Content-Type", "Content-Length"):  # Allow, Location, Retry-After
            response.headers[name] = value
    return response


def _lock_meant() -> str | None:
    """Return the lock that somebody wanted to change, to lead them back to it."""
    if request.blueprint != "writes":
        return None
    return (request.view_args or {}).get("name") or request.args.get("name")


def _build(package: Path, label: ClusterLabel) -> str:
    """Return a digest of what pages have beside what they show: label, templates, static files."""
    digest = blake2b(repr(label).encode(), digest_size=6)
    for folder in ("static", "templates"):
        for path in sorted(filter(Path.is_file, (package / folder).rglob("*"))):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
