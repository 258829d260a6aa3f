"""WSGI middleware: the URL prefix, and `X-Forwarded-…` of trusted proxies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from werkzeug.exceptions import BadRequest, NotFound
from werkzeug.middleware.proxy_fix import ProxyFix

from lockclient.service.request_filter import ALIVE, METRICS, READY
from mutexdash.security.access_rules import Access
from mutexdash.security.client_addresses import address_of
from mutexdash.security.login import ASKED_HOST, PEER

_PROBES = (ALIVE, READY, METRICS)
_HOST: Final = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", re.IGNORECASE)
_VALID: Final[Mapping[str, Callable[[str], object]]] = {
    "HTTP_X_FORWARDED_FOR": address_of,
    "HTTP_X_FORWARDED_PROTO": re.compile("https?", re.IGNORECASE).fullmatch,
    "HTTP_X_FORWARDED_HOST": _HOST.fullmatch,
}
"""The check of each header's values."""


def mounted(app: Any, access: Access) -> Any:
    app = _Below(app, access.prefix) if access.prefix else app
    return _Behind(app, access)


class _Below:
    """Answers below the prefix only; probes, which do not pass the proxy, also without it."""

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
    """Applies `X-Forwarded-…` of the trusted proxies, of exactly so many."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app = app
        self._proxies = access.proxies
        self._hops = hops = access.hops
        self._fixed = ProxyFix(app, x_for=hops, x_proto=hops, x_host=hops)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer = environ[PEER] = environ.get("REMOTE_ADDR", "")
        environ[ASKED_HOST] = environ.get("HTTP_HOST")
        app: Any = self._app
        if self._hops and peer in self._proxies:
            app = self._fixed
            if (header := self._malformed_header(environ)) is not None:
                name = header.removeprefix("HTTP_").replace("_", "-").title()
                app = BadRequest(f"What the proxy adds to {name} is malformed.")
        found: Iterable[bytes] = app(environ, start_response)
        return found

    def _malformed_header(self, environ: dict[str, Any]) -> str | None:
        """Keep of each header only what our proxies have added; return one with a malformed value.

        A proxy adds its value on the right. The values before ours are the client's: any text, and
        Werkzeug's releases parse quotes in it differently, so they are dropped. If there are fewer
        values than our proxies add, none counts.
        """
        for header, valid in _VALID.items():
            added = [
                value.strip(" \t") for value in environ.pop(header, "").rsplit(",", self._hops)
            ]
            added = added[-self._hops :] if self._hops else []
            if added == [""] or len(added) < self._hops or not added:
                continue
            if not all(map(valid, added)):
                return header
            environ[header] = ", ".join(added)
        return None
