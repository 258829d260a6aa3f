"""The HTTP endpoints of the unlocker: /healthz, /readyz, /metrics."""

from __future__ import annotations

from collections.abc import Collection

from flask import Flask, Response
from prometheus_client import make_wsgi_app
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from lockclient.service.request_filter import ALIVE, METRICS, READY, Door
from lockclient.text.escaping import plain
from unlocker.unlocker import Unlocker


def create_app(unlocker: Unlocker, hosts: Collection[str] = ()) -> Flask:
    """Return the WSGI application of one unlocker.

    Args:
        hosts: host names by which clients reach it, see `Door`.
    """
    app = Flask("unlocker", static_folder=None)
    # This app negotiates compression and format with Prometheus.
    metrics = make_wsgi_app(unlocker.metrics.registry)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {METRICS: metrics})  # type: ignore[method-assign]  # as Flask has it

    # Metrics name locks and hosts, so the Host header is checked. Probes come with any host name
    # and get only a sentence.
    app.wsgi_app = Door(app.wsgi_app, hosts, (ALIVE, READY))  # type: ignore[method-assign]

    @app.get("/")
    def index() -> Response:
        return _text("This is unlocker: see /healthz, /readyz, /metrics.")

    def probed(well: str, trouble: str | None) -> Response:
        return _text(well) if trouble is None else _text(trouble, status=503)

    def ready() -> str:
        warning = unlocker.warning()
        return f"ready. {warning}" if warning else "ready"

    app.add_url_rule(ALIVE, "healthz", lambda: probed("alive", unlocker.is_live()))
    app.add_url_rule(READY, "readyz", lambda: probed(ready(), unlocker.is_ready()))

    return app


def _text(line: str, *, status: int = 200) -> Response:
    return Response(f"{plain(line)}\n", status=status, mimetype="text/plain")
