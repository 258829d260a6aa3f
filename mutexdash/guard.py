"""Who may see the dashboard, and what a browser may do with its pages.

There is no login yet, so that the loopback interface is the fence, unless the operator says that
another one stands. Pages load nothing from elsewhere and run no code but `static/`.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from flask import Flask, Response, abort, request

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
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`, an address or a name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def protect(app: Flask, *, local_only: bool) -> None:
    """Add the headers, and with `local_only` refuse requests that were meant for another host.

    Without the second, a web page from anywhere could have its own name resolve to 127.0.0.1 and
    read, in the browser of whoever looks at it, all that the dashboard shows (DNS rebinding).
    """
    if local_only:
        app.before_request(_require_local_host)
    app.after_request(_add_headers)


def _require_local_host() -> None:
    named = request.environ.get("HTTP_HOST")
    if named is None:  # HTTP/1.0, so no browser
        return
    try:
        host = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        abort(
            421,
            "This dashboard answers only to localhost and loopback addresses. "
            "Open it by one of them, or start it with --no-auth to answer to any name.",
        )


def _add_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers[name] = value
    # Static files carry an ETag and are asked for again; what a lock says is not left on disks.
    response.headers["Cache-Control"] = "no-cache" if request.endpoint == "static" else "no-store"
    return response
