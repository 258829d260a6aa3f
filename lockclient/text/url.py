"""URLs with several hosts, `host:port` endpoints, and errors that name where a value came from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from lockclient.text.escaping import HAS_AT


def split_url(url: str) -> SplitResult:
    """Return a URL's parts; its hosts, with commas between, are checked later.

    The standard library refuses such a list where a bracket of IPv6 is not at its begin.
    """
    scheme, separator, rest = url.partition("://")
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}{separator}{rest[len(hosts) :]}")._replace(netloc=hosts)


def check_endpoint(endpoint: str, what: str, port: int) -> None:
    """Raise ValueError unless `endpoint` is `host:port`, `[v6]:port` included."""
    host, _, number = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    sound = re.fullmatch(r"\[[0-9A-Fa-f:.%]+\]" if bracketed else r"[A-Za-z0-9._-]+", host)
    # Five digits at most: Python refuses to read thousands of them in another way.
    if not sound or not re.fullmatch("[0-9]{1,5}", number) or not 0 < int(number) < 65536:
        raise ValueError(
            f"The {what} {endpoint!r} must be host:port, like 127.0.0.1:{port}, "
            "several of them with commas between."
        )


def check_no_user(text: str, variables: str) -> None:
    """Refuse what may hold a password, before any of it can be quoted."""
    if HAS_AT(text):
        raise ValueError(
            f"It holds a user: give that in {variables} instead, where it is not shown to every "
            "`ps`."
        )


def check_readable(path: str | None, what: str) -> None:
    """Raise ValueError if a PEM file is given and can't be read."""
    if path is not None and not os.access(path, os.R_OK):
        raise ValueError(f"The {what} file {path!r} can't be read.")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`, an address or a name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def named_source(source: str) -> Iterator[None]:
    """Put the source of a malformed value in front of the error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
