"""From a URL and the environment to frozen settings.

Precedence: what the program says, then `CLUSTERMUTEX_URL`, then etcdctl's own variables, then
`127.0.0.1:2379`. A malformed value is an error, never a default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import unquote, urlsplit

DEFAULT_ENDPOINT = "127.0.0.1:2379"
DEFAULT_ROOT = "/clustermutex"


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the store is and how to talk to it.

    Attributes:
        endpoints: `host:port` of each member.
        root: the prefix of all keys, from `/` on, without one at the end.
        cacert, cert, key: paths of PEM files; a `cacert` or `tls` makes it TLS.
        tls: TLS even without `cacert`: with the public authorities that gRPC brings along.
        user, password: for etcd's own authentication.
    """

    endpoints: tuple[str, ...] = (DEFAULT_ENDPOINT,)
    root: str = DEFAULT_ROOT
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("At least one etcd endpoint is needed, like 127.0.0.1:2379.")
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root):
            raise ValueError(
                f"The root {self.root!r} must look like /clustermutex: segments of letters, "
                "digits and ._~- that each begin with a slash."
            )
        if (self.cert is None) != (self.key is None):
            raise ValueError("A client certificate and its key go together: give both or none.")
        if self.password is not None and self.user is None:
            raise ValueError("A password was given without a user (ETCDCTL_USER).")
        if self.user is not None and self.password is None:
            raise ValueError("A user was given without a password (ETCDCTL_PASSWORD).")
        for what in ("cacert", "cert", "key"):
            path = getattr(self, what)
            if path is not None and not os.access(path, os.R_OK):
                raise ValueError(f"The {what} file {path!r} can't be read.")

    @property
    def secure(self) -> bool:
        """Whether to talk TLS."""
        return self.tls or self.cacert is not None or self.cert is not None

    @classmethod
    def load(cls, url: str | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from a URL (else `CLUSTERMUTEX_URL`) and etcdctl's variables.

        Raises:
            ValueError: a value is malformed; the text names it and says what it should be.
        """
        settings = cls._from_etcdctl(environ)
        source = "The URL"
        if url is None and "CLUSTERMUTEX_URL" in environ:
            url, source = environ["CLUSTERMUTEX_URL"], "CLUSTERMUTEX_URL"
        if url is None:
            return settings
        with _said_in(f"{source} {_hidden(url)!r}"):
            return settings._at(url)

    @classmethod
    def _from_etcdctl(cls, environ: Mapping[str, str]) -> Settings:
        with _said_in("ETCDCTL_ENDPOINTS"):
            listed = environ.get("ETCDCTL_ENDPOINTS", DEFAULT_ENDPOINT).split(",")
            endpoints, tls = _strip_schemes([each.strip() for each in listed])
            settings = cls(endpoints=endpoints, tls=tls)
        with _said_in("ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY"):
            settings = replace(
                settings,
                cacert=environ.get("ETCDCTL_CACERT") or None,
                cert=environ.get("ETCDCTL_CERT") or None,
                key=environ.get("ETCDCTL_KEY") or None,
            )
        with _said_in("ETCDCTL_USER and ETCDCTL_PASSWORD"):
            user, colon, password = environ.get("ETCDCTL_USER", "").partition(":")
            secret = environ.get("ETCDCTL_PASSWORD") or (password if colon else None)
            return replace(settings, user=user or None, password=secret)

    def _at(self, url: str) -> Settings:
        example = "etcd://host1:2379,host2:2379/clustermutex"
        parts = urlsplit(url)
        if parts.scheme not in ("etcd", "etcds"):
            raise ValueError(f"It must begin with etcd:// (or etcds:// for TLS), like {example}.")
        if "@" in url:
            raise ValueError(
                "It holds a user: give that in ETCDCTL_USER and ETCDCTL_PASSWORD instead, where it "
                "is not shown to every `ps`."
            )
        if parts.query or parts.fragment:
            raise ValueError(f"It has a query or fragment; it takes none: {example}.")
        return replace(
            self,
            endpoints=tuple(parts.netloc.split(",")),
            root=unquote(parts.path.rstrip("/")) or DEFAULT_ROOT,
            tls=parts.scheme == "etcds",
        )

    def url(self) -> str:
        """Return the settings as a URL, without certificates and password."""
        scheme = "etcds" if self.secure else "etcd"
        return f"{scheme}://{','.join(self.endpoints)}{self.root}"


def made_of(
    url: str | None, endpoints: Sequence[str] | None, others: Mapping[str, Any]
) -> Settings:
    """Return the settings of a URL or endpoints and other fields, the rest from the environment.

    Raises:
        ValueError: a value is malformed, a field unknown, or both URL and endpoints are given.
    """
    if url is not None and endpoints is not None:
        raise ValueError("Give the URL or the endpoints, not both.")
    known = [each.name for each in fields(Settings) if each.name != "endpoints"]
    for name in others:
        if name not in known:
            raise ValueError(f"There is no setting {name!r}; there are: {', '.join(known)}.")
    settings = Settings.load(url)
    if endpoints is not None:
        if isinstance(endpoints, str):
            raise ValueError(f"endpoints must be a list of texts, not the text {endpoints!r}.")
        bare, tls = _strip_schemes(list(endpoints))
        settings = replace(settings, endpoints=bare, tls=tls)
    return replace(settings, **others)


def check_endpoint(endpoint: str) -> None:
    """Raise ValueError unless `endpoint` is `host:port`, `[v6]:port` included."""
    host, _, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    sound = re.fullmatch(r"\[[0-9A-Fa-f:.%]+\]" if bracketed else r"[A-Za-z0-9._-]+", host)
    # Five digits at most: Python refuses to read thousands of them in another way.
    if not sound or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(
            f"The etcd endpoint {endpoint!r} must be host:port, like 127.0.0.1:2379, "
            "several of them with commas between."
        )


def _strip_schemes(listed: list[str]) -> tuple[tuple[str, ...], bool]:
    bare: list[str] = []
    secure: set[bool] = set()
    for each in listed:
        scheme, separator, rest = each.partition("://")
        if separator and scheme not in ("http", "https"):
            raise ValueError(
                f"The etcd endpoint {each!r} must be host:port or http(s)://host:port."
            )
        bare.append((rest if separator else each).rstrip("/"))
        secure.add(separator != "" and scheme == "https")
    if len(secure) > 1:
        raise ValueError(f"The etcd endpoints {','.join(listed)!r} mix https:// with plain ones.")
    return tuple(bare), True in secure


@contextmanager
def _said_in(source: str) -> Iterator[None]:
    """Name the source of a malformed value in the error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _hidden(url: str) -> str:
    """Return the URL without what may be a password."""
    return re.sub(r"//.*@", "//…@", url, flags=re.DOTALL)
