"""What the unlocker serves by HTTP: is it alive, is it of use, and its figures."""

from __future__ import annotations

from flask import Flask, Response
from prometheus_client import make_wsgi_app
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from unlocker.service import Unlocker


def create_app(unlocker: Unlocker) -> Flask:
    """Return the WSGI application of one unlocker."""
    app = Flask("unlocker", static_folder=None)
    # With compression and the format negotiated, as Prometheus asks for it.
    metrics = make_wsgi_app(unlocker.metrics.registry)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/metrics": metrics})  # type: ignore[method-assign]  # as Flask has it

    @app.get("/")
    def index() -> Response:
        return _text("This is unlocker: see /healthz, /readyz, /metrics.")

    @app.get("/healthz")
    def healthz() -> Response:
        return _text("alive")

    @app.get("/readyz")
    def readyz() -> Response:
        reason = unlocker.unready()
        return _text("ready") if reason is None else _text(reason, status=503)

    return app


def _text(line: str, *, status: int = 200) -> Response:
    return Response(f"{line}\n", status=status, mimetype="text/plain")
