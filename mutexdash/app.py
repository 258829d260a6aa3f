"""The WSGI application (Flask), and the service: application, table and background threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from flask import Flask, Response, jsonify, make_response, render_template, request
from prometheus_client import CollectorRegistry
from werkzeug.exceptions import BadRequest, HTTPException, NotFound

from lockclient.errors import InvalidLockName
from lockclient.model.clocks import monotonic
from lockclient.overview.live_table import Table
from lockclient.service.http_server import HttpServer
from lockclient.service.metrics import ComputedCollector
from lockclient.stores.service_store import ServiceStore
from mutexdash.data.data_age import Probe
from mutexdash.data.history import History
from mutexdash.data.list_parameters import BadParameter
from mutexdash.data.snapshot_refresh import Live
from mutexdash.data.waits import WaiterPoller
from mutexdash.markup.cluster_label import ClusterLabel
from mutexdash.security import request_checks
from mutexdash.security.access_rules import Access
from mutexdash.security.proxy import mounted
from mutexdash.web import exports, force_unlock_routes, json_api, pages, probes_and_metrics
from mutexdash.web.context import Dashboard, Unlocks, attach, dashboard
from mutexdash.web.respond import compress
from mutexdash.web.trace_link import trace_link
from mutexdash.web.urls import LockName

_MAX_REMOVALS: Final = 1000
"""Removals that are shown, the newest ones."""


@dataclass(frozen=True)
class Options:
    """The values of the flags.

    Attributes:
        url: the store's URL for people, without secrets.
        access: the rights of viewers.
        label: the cluster's name and colour.
        prometheus_url, runbook_url: without a slash at the end; "": none.
        trace_url: the address of a trace, with names of a lock's context in braces.
    """

    url: str = ""
    access: Access = field(default_factory=Access)
    label: ClusterLabel = field(default_factory=ClusterLabel)
    prometheus_url: str = ""
    runbook_url: str = ""
    trace_url: str = ""


class Service:
    """The dashboard of a store, which the caller closes.

    Args:
        clock, ticks: the wall clock and the monotonic clock, for tests.
        background: whether threads keep the snapshot up to date; tests call `poll()` instead.
        reuse_factor: see `Live`.
    """

    def __init__(
        self,
        store: ServiceStore,
        options: Options,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = monotonic,
        background: bool = True,
        reuse_factor: float = 2.0,
    ) -> None:
        self._background = background
        history = History(clock=clock)
        self._table = Table(
            store, removals=_MAX_REMOVALS, on_change=history.note, on_removal=history.note_removals
        )
        self._waiting = WaiterPoller(self._table, store)
        probe = Probe(self._table, store) if background else None
        self._live = Live(
            self._table,
            history,
            probe=probe,
            waiting=self._waiting,
            clock=clock,
            reuse_factor=reuse_factor,
        )
        self._is_proxied = bool(options.access.proxies.all)
        self.app = create_app(self._live, store, options, ticks)

    def server(self, listen: tuple[str, int]) -> HttpServer:
        """Return an HTTP server that listens; the caller starts it."""
        return HttpServer(self.app, listen, proxied=self._is_proxied)

    def start(self) -> None:
        self._table.start()
        if self._background:
            self._live.start()

    def stop(self) -> None:
        self._live.stop()
        self._table.stop()

    def is_live(self) -> str | None:
        return self._live.is_live()

    def poll(self) -> int:
        """Read the waiters, as a thread does every few seconds; return the revision that is shown,
        0 before everything was read once."""
        self._waiting.poll()
        return self._table.revision if self._table.ready() else 0


def create_app(
    live: Live, store: ServiceStore, options: Options, ticks: Callable[[], float] = monotonic
) -> Flask:
    """Return the dashboard as a WSGI application; the caller starts and stops `live`."""
    access = options.access
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
    build = _build(Path(app.root_path), options.label)
    attach(app, Dashboard(live, store, registry, options.url, build, unlocks))
    request_checks.protect(app, access)
    app.after_request(compress)
    for part in (pages, json_api, exports, probes_and_metrics, force_unlock_routes):
        app.register_blueprint(part.blueprint)
    shown = {
        "label": options.label,
        "prometheus_url": options.prometheus_url,
        "runbook_url": options.runbook_url,
        "trace_of": partial(trace_link, options.trace_url),
    }
    app.context_processor(lambda: shown)
    app.after_request(_add_age)
    app.wsgi_app = mounted(app.wsgi_app, access)  # type: ignore[method-assign]  # as Flask has it
    app.register_error_handler(HTTPException, _explain)
    for kind in (BadParameter, InvalidLockName):
        app.register_error_handler(kind, lambda error: _explain(BadRequest(str(error))))
    return app


def _add_age(response: Response) -> Response:
    """Add up to when the answer is proven to be complete, to 304s, too: pages count their age."""
    if request.blueprint in ("pages", "api"):
        response.headers["X-Updated-At"] = f"{dashboard().live.updated_at():.3f}"
    return response


def _explain(error: HTTPException) -> Response:
    """Answer an error with the same sentence, as JSON to programs and as a page to people."""
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
    """Return the lock of a request that would change it, for a link back."""
    if request.blueprint != "writes":
        return None
    return (request.view_args or {}).get("name") or request.args.get("name")


def _build(package: Path, label: ClusterLabel) -> str:
    """Return a digest of label, templates and static files: with another one, pages reload."""
    digest = blake2b(repr(label).encode(), digest_size=6)
    for folder in ("static", "templates"):
        for path in sorted(filter(Path.is_file, (package / folder).rglob("*"))):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
