"""WSGI middleware: the URL prefix, and `X-Forwarded-…` of trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from werkzeug.exceptions import NotFound
from werkzeug.middleware.proxy_fix import ProxyFix

from lockclient.service.request_filter import ALIVE, METRICS, READY
from mutexdash.security.access import Access
from mutexdash.security.login import ASKED_HOST, PEER

_PROBES = (ALIVE, READY, METRICS)


def mounted(app: Any, access: Access) -> Any:
    """Return the application as the server is to run it."""
    app = _Below(app, access.prefix) if access.prefix else app
    return _Behind(app, access)


class _Below:
    """Answers only below a prefix, and probes, which come past the proxy, also without it."""

    def __init__(self, app: Any, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + self._prefix
            environ["PATH_INFO"] = path[len(self._prefix) :]
        elif path not in _PROBES:
            missing = NotFound(f"The dashboard is at {self._prefix}/.")
            answer: Iterable[bytes] = missing(environ, start_response)
            return answer
        found: Iterable[bytes] = self._app(environ, start_response)
        return found


class _Behind:
    """Believes `X-Forwarded-…` of as many proxies as there are, and from them only."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._proxies = access.proxies
        hops = access.hops
        self._fixed = ProxyFix(app, x_for=hops, x_proto=hops, x_host=hops)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer = environ[PEER] = environ.get("REMOTE_ADDR", "")
        environ[ASKED_HOST] = environ.get("HTTP_HOST")
        app = self._fixed if peer in self._proxies else self._app
        found: Iterable[bytes] = app(environ, start_response)
        return found
