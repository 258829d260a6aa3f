"""The guard of every request: host, site (see `lockclient.service.request_filter`), login, the one
gate in front of all writes, and the headers of answers.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import Flask, Response, abort, g, request

from lockclient.service.request_filter import foreign_host, is_from_another_site
from lockclient.text.url import is_loopback
from mutexdash.security.access_rules import Access, Viewer
from mutexdash.security.login import ASKED_HOST, Basic

_CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers say `Origin: null` when they send a form, even to us.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_READS = ("GET", "HEAD", "OPTIONS")
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_OPEN_TO_ALL = frozenset({"static", "machines.healthz", "machines.readyz", "machines.metrics"})
"""Probes, Prometheus and error pages' styles need no login; they contain no lock's name."""
_PORTS = {"http": 80, "https": 443}
READ_ONLY = "This dashboard is read-only: it was started without --allow-force-unlock."


def protect(app: Flask, access: Access) -> None:
    app.before_request(Guard(access).admit)
    app.after_request(_add_headers)
    app.context_processor(lambda: {"viewer": viewer(), "read_only": READ_ONLY})


def viewer() -> Viewer:
    found: Viewer = g.get("viewer", Viewer())
    return found


class Guard:
    """Admits requests by the access rules."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def admit(self) -> None:
        """Refuse a request, or set `g.viewer`; Flask calls this before each request.

        A page of another site is refused before any work whose time it could measure.
        """
        if request.endpoint in _OPEN_TO_ALL and request.method in _READS:
            return
        access = self._access
        if access.local_only or access.hosts:
            self._check_host()
        if is_from_another_site(request.environ):
            abort(
                403,
                "A page of another site asked for this. Open the dashboard in a tab of its own.",
            )
        user = access.login.user(request) if access.login is not None else None
        in_clear = (
            isinstance(access.login, Basic)
            and not request.is_secure
            and not is_loopback(request.remote_addr or "")
        )
        g.viewer = Viewer(user, access.allow_force_unlock, in_clear)
        if request.method not in _READS and request.routing_exception is None:
            _check_write()

    def _check_host(self) -> None:
        """Refuse requests for a host that is not ours.

        Otherwise a web page could make its own name resolve to this address and read the dashboard
        in a viewer's browser (DNS rebinding). The `Host` of the connection is checked, too: a
        browser on the proxy's machine has the proxy's address, and a page may set any header but
        `Host`. It is the browser's own, or the name by which the proxy knows us, mostly an address.
        """
        access = self._access
        own = is_loopback if access.local_only else _no_other
        header = request.environ.get("HTTP_HOST")
        wrong = foreign_host(header, access.hosts, own)
        if wrong is None and (asked := request.environ.get(ASKED_HOST)) != header:
            wrong = foreign_host(asked, access.hosts)
        if wrong is not None:
            abort(
                421,
                f"This dashboard does not answer to the host name {wrong[:255]!r}. Open it by one "
                "that it knows: "
                + (", ".join(sorted(access.hosts)) or "localhost or a loopback address")
                + ". (More names are given by --allowed-host.)",
            )


def _check_write() -> None:
    """Refuse a write unless the viewer may unlock and the request comes from our own pages.

    A browser adds the login also to requests that another site's page makes, but names the site in
    `Origin`, which the page cannot change. So a form without our own Origin is refused, and with it
    an old browser that sends none. A program may send JSON without one: a browser asks for
    permission before it sends JSON from another site, and this dashboard gives none.
    """
    if not viewer().may_unlock:
        abort(403, READ_ONLY)
    wanted = _JSON if request.path.startswith("/api/") else _FORM
    if request.mimetype != wanted:
        abort(415, f"Send it as {wanted}, not as {request.mimetype or 'nothing'!r}.")
    by_browser = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
    if by_browser or wanted == _FORM:
        _check_origin()


def acting_user() -> str:
    """Return the name of the viewer for a removal record."""
    return viewer().user or f"somebody at {request.remote_addr}"


def _check_origin() -> None:
    header = request.headers.get("Origin", "")
    if _parts(header) is None or _parts(header) != _parts(request.host_url):
        abort(
            403,
            f"This came from {header or 'nowhere'!r}, and not from a page of this dashboard at "
            f"{request.host_url!r}. (If that is not the address in your browser, a proxy stands "
            "between: name it by --trusted-proxy and --proxy-hops.)",
        )


def _parts(url: str) -> tuple[str, str, int | None] | None:
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        return None
    if found.scheme not in _PORTS or not found.hostname:
        return None
    return found.scheme, found.hostname, port or _PORTS[found.scheme]


def _no_other(_host: str) -> bool:
    return False


def _add_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    # Static files have an ETag and are revalidated; the texts of locks are not left on disks.
    response.headers["Cache-Control"] = "no-cache" if request.endpoint == "static" else "no-store"
    return response
