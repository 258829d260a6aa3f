"""The request filter of both services: refuses requests that a web page may have forged.

A browser inside the network sends requests for any web page that it shows. Two attacks are refused
here, before any work is done for a request.

- **DNS rebinding.** The page's own host name is made to resolve to our address, so that the browser
  lets the page read our answers. But the `Host` header has the page's host, which is a name in the
  DNS, with a dot. So an address, or a name without a dot (`localhost`, a service of compose, a host
  of the local network), is accepted; any other name must be allowed by a flag.
- **Requests across sites.** A page may make the browser send us a request. It can't read the
  answer, but can measure its time. Browsers mark such a request (`Sec-Fetch-Site`, by HTTPS and on
  loopback); it is refused unless a person follows a link.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

ALIVE, READY, METRICS = "/healthz", "/readyz", "/metrics"
"""Paths for probes and Prometheus."""

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.ASCII)
_WITHOUT_DOT = re.compile(r"[a-z0-9_-]+", re.ASCII)
_MAX_LOGGED = 10
"""Refused hosts that are logged: clients choose them, so there may be any number."""


def is_safe_host(host: str) -> bool:
    """Return whether no web page from elsewhere can have this host name."""
    if _WITHOUT_DOT.fullmatch(host):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def read_hosts(text: str | None) -> frozenset[str]:
    """Return the host names in a list with commas.

    Raises:
        ValueError: one is not a host name, or has a port.
    """
    names = [host.strip().lower() for host in (text or "").split(",") if host.strip()]
    for name in names:
        if not _HOST.fullmatch(name):
            raise ValueError(f"--allowed-host must be host names without port, not {name!r}.")
    return frozenset(names)


def foreign_host(
    header: str | None, known: Container[str], also: Callable[[str], bool] = is_safe_host
) -> str | None:
    """Return the host in a request's header `Host` if it is not accepted, else None.

    Args:
        header: the header's value; None: the request has none.
        known: accepted names.
        also: returns whether another name is accepted.
    """
    if header is None:  # HTTP/1.0, so no browser
        return None
    try:
        # With any of these it is not a host, and other programs may parse another host from it.
        host = header if set(header) & set("/?#@\\") else urlsplit(f"//{header}").hostname or ""
    except ValueError:
        host = ""
    return None if host in known or also(host) else host


def is_from_another_site(environ: Mapping[str, Any]) -> bool:
    """Return whether a page of another site sent the request, other than by a link.

    Another port of the same host counts as another site.
    """
    if environ.get("HTTP_SEC_FETCH_SITE", "none") in ("none", "same-origin"):
        return False
    followed = (
        environ.get("REQUEST_METHOD") in ("GET", "HEAD")
        and environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
        and "HTTP_SEC_PURPOSE" not in environ  # a prefetch
    )
    return not followed


@dataclass(eq=False)
class Door:
    """Wraps a WSGI application and refuses forged requests.

    Attributes:
        hosts: accepted host names in addition to the safe ones.
        open_to_all: paths of probes, which may come with any host and get no secrets.
    """

    app: Any
    hosts: Collection[str]
    open_to_all: Container[str]
    _logged: set[str] = field(default_factory=set)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Refuse a request, or pass it to the application."""
        status, why = "", ""
        if environ.get("PATH_INFO") not in self.open_to_all:
            host = foreign_host(environ.get("HTTP_HOST"), self.hosts)
            if host is not None:
                status, why = "421 Misdirected Request", self._refusal_of(host)
            elif is_from_another_site(environ):
                status, why = "403 Forbidden", "A page of another site has no business here."
        if status:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why}\n".encode()]
        found: Iterable[bytes] = self.app(environ, start_response)
        return found

    def _refusal_of(self, host: str) -> str:
        why = (
            f"Nothing here answers to the host {host[:255]!r}. Ask by an address, by a name "
            "without a dot, or by one that is given by --allowed-host."
        )
        if len(self._logged) < _MAX_LOGGED and host not in self._logged:
            self._logged.add(host)
            log.warning("A request was refused. %s", why)
        return why
