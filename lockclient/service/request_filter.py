"""The request filter of both services: refuses requests that a web page may have forged.

A browser is the way in for strangers: it stands inside the network, and does for any web page what
that page asks. Two of its ways are shut here, before any work is done for a request.

- **DNS rebinding.** A page's own name is made to resolve to our address, and what it then reads is
  of its own origin to the browser. But the browser says which host it means. A page from elsewhere
  has a name in the DNS, with a dot: so an address, or a name without a dot (`localhost`, a service
  of compose, a host of the own network), is never its own, and any other has to be told by a flag.
- **Questions across sites.** A page may have the browser ask us, and can't read the answer, but
  can measure how long it took. Browsers say that it was another site's page (`Sec-Fetch-Site`, by
  HTTPS and on loopback); only that a person follows a link from there is welcome.
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
"""Paths that machines ask for."""

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+", re.ASCII)
_WITHOUT_DOT = re.compile(r"[a-z0-9_-]+", re.ASCII)
_LOGGED = 10
"""Refused hosts that are told in the log: whoever asks chooses them."""


def is_safe_host(host: str) -> bool:
    """Tell whether no web page from elsewhere can have this host for its own."""
    if _WITHOUT_DOT.fullmatch(host):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def read_hosts(text: str | None) -> frozenset[str]:
    """Read a list of host names, commas between.

    Raises:
        ValueError: one is none, or has a port.
    """
    names = [host.strip().lower() for host in (text or "").split(",") if host.strip()]
    for name in names:
        if not _HOST.fullmatch(name):
            raise ValueError(f"--allowed-host must be host names without port, not {name!r}.")
    return frozenset(names)


def foreign_host(
    said: str | None, known: Container[str], also: Callable[[str], bool] = is_safe_host
) -> str | None:
    """Return the host that a request names, if it is none of ours, by the header `Host`.

    Args:
        known: our names.
        also: tells of others that they are welcome.
    """
    if said is None:  # HTTP/1.0, so no browser
        return None
    try:
        # With any of these it is no host, and another program may read another one out of it.
        host = said if set(said) & set("/?#@\\") else urlsplit(f"//{said}").hostname or ""
    except ValueError:
        host = ""
    return None if host in known or also(host) else host


def is_from_another_site(environ: Mapping[str, Any]) -> bool:
    """Tell whether a page of another site asks, without that a person followed a link from there.

    Another port of the same host is the same site, and no more ours than any other.
    """
    if environ.get("HTTP_SEC_FETCH_SITE", "none") in ("none", "same-origin"):
        return False
    followed = (
        environ.get("REQUEST_METHOD") in ("GET", "HEAD")
        and environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
        and "HTTP_SEC_PURPOSE" not in environ  # fetched ahead, with nobody looking
    )
    return not followed


@dataclass(eq=False)
class Door:
    """Stands before a WSGI application, and itself answers what is not to come in.

    Attributes:
        hosts: names by which it is reached, besides those that are safe.
        open_to_all: paths of probes, which may name any host, and are told nothing worth hiding.
    """

    app: Any
    hosts: Collection[str]
    open_to_all: Container[str]
    _told: set[str] = field(default_factory=set)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request, or have it answered."""
        status, why = "", ""
        if environ.get("PATH_INFO") not in self.open_to_all:
            host = foreign_host(environ.get("HTTP_HOST"), self.hosts)
            if host is not None:
                status, why = "421 Misdirected Request", self._tell(host)
            elif is_from_another_site(environ):
                status, why = "403 Forbidden", "A page of another site has no business here."
        if status:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why}\n".encode()]
        found: Iterable[bytes] = self.app(environ, start_response)
        return found

    def _tell(self, host: str) -> str:
        why = (
            f"Nothing here answers to the host {host[:255]!r}. Ask by an address, by a name "
            "without a dot, or by one that is given by --allowed-host."
        )
        if len(self._told) < _LOGGED and host not in self._told:
            self._told.add(host)
            log.warning("A request was refused. %s", why)
        return why
