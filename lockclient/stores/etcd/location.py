"""Location of an etcd cluster: its URL, etcdctl's variables, TLS files and user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from lockclient.stores.location import make_texts_exact, refuse_nested_root
from lockclient.text.url import (
    check_endpoint,
    check_no_user,
    check_readable,
    named_source,
    split_url,
)

EXAMPLE = "etcd://host1:2379,host2:2379/clustermutex"
PORT = 2379
DEFAULT_ENDPOINT = f"127.0.0.1:{PORT}"
DEFAULT_ROOT = "/clustermutex"
USER_VARIABLES = "ETCDCTL_USER and ETCDCTL_PASSWORD"


@dataclass(frozen=True, slots=True)
class EtcdLocation:
    """The members of a cluster, what all keys in it begin with, and how to get in.

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
        make_texts_exact(self)
        if not self.endpoints:
            raise ValueError(f"At least one etcd endpoint is needed, like {DEFAULT_ENDPOINT}.")
        for endpoint in self.endpoints:
            check_no_user(endpoint, USER_VARIABLES)
            check_endpoint(endpoint, "etcd endpoint", PORT)
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root):
            raise ValueError(
                f"The root {self.root!r} must look like /clustermutex: segments of letters, "
                "digits and ._~- that each begin with a slash."
            )
        refuse_nested_root(self.root)
        if (self.cert is None) != (self.key is None):
            raise ValueError("A client certificate and its key go together: give both or none.")
        if self.password is not None and self.user is None:
            raise ValueError("A password was given without a user (ETCDCTL_USER).")
        if self.user is not None and self.password is None:
            raise ValueError("A user was given without a password (ETCDCTL_PASSWORD).")
        for what in ("cacert", "cert", "key"):
            check_readable(getattr(self, what), what)

    @property
    def secure(self) -> bool:
        """Whether to talk TLS."""
        return self.tls or self.cacert is not None or self.cert is not None

    @property
    def where(self) -> str:
        """The keys' prefix: in titles the members are known."""
        return self.root

    def url(self) -> str:
        """Return it as a URL, without user, password and certificates."""
        scheme = "etcds" if self.secure else "etcd"
        return f"{scheme}://{','.join(self.endpoints)}{self.root}"

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> EtcdLocation:
        """Read a URL like `etcd://host1:2379,host2:2379/clustermutex`, the rest as etcdctl does.

        Raises:
            ValueError: it is malformed; the text says what it should be.
        """
        check_no_user(url, USER_VARIABLES)  # first of all: what is said below quotes parts of it
        parts = split_url(url)
        if parts.query or parts.fragment:
            raise ValueError(f"It has a query or fragment; it takes none: {EXAMPLE}.")
        return replace(
            cls.from_environment(environ),
            endpoints=tuple(parts.netloc.split(",")),
            root=unquote(parts.path.rstrip("/")) or DEFAULT_ROOT,
            tls=parts.scheme == "etcds",
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> EtcdLocation:
        """Read etcdctl's own variables; what they don't say is this machine's etcd.

        Raises:
            ValueError: one is malformed; the text names it.
        """
        with named_source("ETCDCTL_ENDPOINTS"):
            listed = environ.get("ETCDCTL_ENDPOINTS", DEFAULT_ENDPOINT).split(",")
            location = cls().at_endpoints([endpoint.strip() for endpoint in listed])
        with named_source("ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY"):
            location = replace(
                location,
                cacert=environ.get("ETCDCTL_CACERT") or None,
                cert=environ.get("ETCDCTL_CERT") or None,
                key=environ.get("ETCDCTL_KEY") or None,
            )
        with named_source(USER_VARIABLES):
            user, colon, password = environ.get("ETCDCTL_USER", "").partition(":")
            secret = environ.get("ETCDCTL_PASSWORD") or (password if colon else None)
            return replace(location, user=user or None, password=secret)

    def at_endpoints(self, endpoints: Sequence[str]) -> EtcdLocation:
        """Return the same at other endpoints, `https://` in front of each for TLS.

        Raises:
            ValueError: they are malformed, or some are for TLS and some are not.
        """
        listed = ",".join(endpoints)
        check_no_user(listed, USER_VARIABLES)
        bare: list[str] = []
        secure: set[bool] = set()
        for endpoint in endpoints:
            scheme, separator, rest = endpoint.partition("://")
            if separator and scheme not in ("http", "https"):
                raise ValueError(
                    f"The etcd endpoint {endpoint!r} must be host:port or http(s)://host:port."
                )
            bare.append((rest if separator else endpoint).rstrip("/"))
            secure.add(separator != "" and scheme == "https")
        if len(secure) > 1:
            raise ValueError(f"The etcd endpoints {listed!r} mix https:// with plain ones.")
        return replace(self, endpoints=tuple(bare), tls=True in secure)
