"""Location of an etcd cluster: its URL, etcdctl's variables, TLS files and user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar
from urllib.parse import unquote

from lockclient.stores.location import Servers
from lockclient.text.url import check_no_user, named_source, split_url

EXAMPLE = "etcd://host1:2379,host2:2379/clustermutex"
DEFAULT_ENDPOINT = "127.0.0.1:2379"
DEFAULT_ROOT = "/clustermutex"


@dataclass(frozen=True, slots=True)
class EtcdLocation(Servers):
    """The members of a cluster, the root of all keys, and the credentials.

    `root` begins with a slash. A `cacert` means TLS; `tls` without one means TLS with gRPC's list
    of public authorities.
    """

    endpoints: tuple[str, ...] = (DEFAULT_ENDPOINT,)
    root: str = DEFAULT_ROOT

    VARIABLES: ClassVar[str] = "ETCDCTL"
    PORT: ClassVar[int] = 2379

    def __post_init__(self) -> None:
        Servers.__post_init__(self)  # `super()` does not know a class with slots
        if not self.endpoints:
            raise ValueError(f"At least one etcd endpoint is needed, like {DEFAULT_ENDPOINT}.")
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root):
            raise ValueError(
                f"The root {self.root!r} must look like /clustermutex: segments of letters, "
                "digits and ._~- that each begin with a slash."
            )
        if self.user is None and (self.password, self.password_file) != (None, None):
            raise ValueError("A password was given without a user (ETCDCTL_USER).")

    @property
    def secure(self) -> bool:
        """True if the connections use TLS."""
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
        check_no_user(url, cls.user_variables())  # first: errors below quote parts of it
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
        """Read etcdctl's variables; without them it is this machine's etcd.

        Raises:
            ValueError: a variable is malformed; the text names it.
        """
        with named_source("ETCDCTL_ENDPOINTS"):
            listed = environ.get("ETCDCTL_ENDPOINTS", DEFAULT_ENDPOINT).split(",")
            location = cls().at_endpoints([endpoint.strip() for endpoint in listed])
        with named_source("ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY"):
            location = replace(location, **cls.read_variables(environ, "cacert", "cert", "key"))
        with named_source(cls.user_variables()):
            given = cls.read_variables(environ, "password", "password_file")
            user, colon, password = environ.get("ETCDCTL_USER", "").partition(":")
            if colon and given["password"] is None:
                given["password"] = password
            return replace(location, user=user or None, **given)

    def at_endpoints(self, endpoints: Sequence[str]) -> EtcdLocation:
        """Return this location with other endpoints, `https://` in front of each for TLS.

        Raises:
            ValueError: one is malformed, or some are for TLS and some are not.
        """
        listed = ",".join(endpoints)
        check_no_user(listed, self.user_variables())
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
