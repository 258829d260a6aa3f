"""From a URL and the environment to frozen settings.

Precedence: what the program says, then `CLUSTERMUTEX_URL`, then etcdctl's own variables, then
`127.0.0.1:2379`. A malformed value is an error, never a default.

The fields are etcd's. What the URL of another store says is for the folder of that store alone to
know, which is imported when such a URL comes (`STORES`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from lockclient.text.escaping import HAS_AT, hidden

DEFAULT_ENDPOINT = "127.0.0.1:2379"
DEFAULT_ROOT = "/clustermutex"
LIKE: Final = (
    "like etcd://host1:2379,host2:2379/clustermutex, gs://bucket/prefix or "
    "valkey://host1,host2,host3/prefix (redis:// is the same)"
)
"""What a URL looks like, for help texts."""

STORES: Final = {
    "gs": "lockclient.stores.gcs.location",
    **dict.fromkeys(("valkey", "valkeys", "redis", "rediss"), "lockclient.stores.valkey.location"),
}
"""Of each scheme that is not etcd's the module that reads its URLs, by a function
`place_of(url, environ)` that returns a `Place` or raises ValueError."""


class Place(Protocol):
    """Where a store is that is not etcd.

    Attributes:
        extra: what to install for it: `clustermutex[extra]`.
    """

    extra: ClassVar[str]

    def url(self) -> str:
        """Return the place as a URL, without passwords."""

    def setup_script(self, users: Mapping[str, Sequence[str]]) -> str:
        """Return a script for sh that makes these users, with the least rights of each kind.

        Raises:
            ValueError: there are no such users; the text says what there is.
        """

    def opener(self) -> Callable[[Any], Any]:
        """Import the store, and return what opens it: it takes this place, and sends nothing.

        Raises:
            ModuleNotFoundError: what the store needs is not installed.
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the store is and how to talk to it.

    Attributes:
        endpoints: `host:port` of each member.
        root: the prefix of all keys, from `/` on, without one at the end.
        cacert, cert, key: paths of PEM files; a `cacert` or `tls` makes it TLS.
        tls: TLS even without `cacert`: with the public authorities that gRPC brings along.
        user, password: for etcd's own authentication.
        place: where the locks are if that is not etcd; all of the above mean nothing there.
    """

    endpoints: tuple[str, ...] = (DEFAULT_ENDPOINT,)
    root: str = DEFAULT_ROOT
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    place: Place | None = None

    def __post_init__(self) -> None:
        if self.place is not None:
            self._check_alone(self.place)
            return
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

    def _check_alone(self, place: Place) -> None:
        """Refuse what somebody has given and counts on."""
        etcd_s = [each for each in fields(self) if each.name != "place"]
        given = [each.name for each in etcd_s if getattr(self, each.name) != each.default]
        if given:
            raise ValueError(
                f"{', '.join(given)}: that is for etcd and means nothing at {place.url()}. "
                "Leave it out."
            )

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
        source = "The URL"
        if url is None and "CLUSTERMUTEX_URL" in environ:
            url, source = environ["CLUSTERMUTEX_URL"], "CLUSTERMUTEX_URL"
        if url is None:
            return cls._from_etcdctl(environ)
        said_by = f"{source} {hidden(url)!r}"
        if url.partition("://")[0] in STORES:
            with _said_in(said_by):
                return cls(place=_place_of(url, environ))
        settings = cls._from_etcdctl(environ)
        with _said_in(said_by):
            return settings._at(url)

    @classmethod
    def _from_etcdctl(cls, environ: Mapping[str, str]) -> Settings:
        with _said_in("ETCDCTL_ENDPOINTS"):
            listed = environ.get("ETCDCTL_ENDPOINTS", DEFAULT_ENDPOINT)
            _check_secrets(listed)
            endpoints, tls = _strip_schemes([each.strip() for each in listed.split(",")])
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
        _check_secrets(url)  # first of all: what is said below quotes parts of it
        parts = split_url(url)
        if parts.scheme not in ("etcd", "etcds"):
            others = ", ".join(f"{each}://" for each in STORES)
            raise ValueError(
                f"It must begin with etcd:// (or etcds:// for TLS), like {example}, or with one of "
                f"{others}."
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
        if self.place is not None:
            return self.place.url()
        scheme = "etcds" if self.secure else "etcd"
        return f"{scheme}://{','.join(self.endpoints)}{self.root}"

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""
        return self.root if self.place is None else self.place.url()


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL whose hosts may be several, with commas in between.

    Of such a list the standard library's function knows nothing, and newer ones refuse it where a
    bracket of IPv6 is not at its begin. So the hosts are cut out before; each is checked later.
    """
    scheme, separator, rest = url.partition("://")
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}{separator}{rest[len(hosts) :]}")._replace(netloc=hosts)


def _place_of(url: str, environ: Mapping[str, str]) -> Place:
    """Return the place that a URL of another store names, which can be opened.

    Raises:
        ValueError: it is malformed, or what the store needs is not installed.
    """
    scheme = url.partition("://")[0]
    place: Place = import_module(STORES[scheme]).place_of(url, environ)
    try:
        place.opener()  # now, where it can be said, and not in the middle of an `acquire`
    except ModuleNotFoundError as error:
        raise ValueError(
            f"Locks at {scheme}://… need {error.name}, which is not installed: "
            f"pip install 'clustermutex[{place.extra}]'."
        ) from error
    return place


def made_of(
    url: str | None, endpoints: Sequence[str] | None, others: Mapping[str, Any]
) -> Settings:
    """Return the settings of a URL or endpoints and other fields, the rest from the environment.

    Raises:
        ValueError: a value is malformed, a field unknown, or both URL and endpoints are given.
    """
    if url is not None and endpoints is not None:
        raise ValueError("Give the URL or the endpoints, not both.")
    known = [each.name for each in fields(Settings) if each.name not in ("endpoints", "place")]
    for name in others:
        if name not in known:
            raise ValueError(f"There is no setting {name!r}; there are: {', '.join(known)}.")
    settings = Settings.load(url)
    if endpoints is not None:
        if isinstance(endpoints, str):
            raise ValueError(
                f"endpoints must be a list of texts, not the text {hidden(endpoints)!r}."
            )
        bare, tls = _strip_schemes(list(endpoints))
        if settings.place is not None:  # the environment's: the program says that it is etcd
            settings = Settings._from_etcdctl(os.environ)
        settings = replace(settings, endpoints=bare, tls=tls)
    return replace(settings, **others)


def check_endpoint(endpoint: str, what: str = "etcd endpoint", port: int = 2379) -> None:
    """Raise ValueError unless `endpoint` is `host:port`, `[v6]:port` included."""
    _check_secrets(endpoint)
    host, _, number = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    sound = re.fullmatch(r"\[[0-9A-Fa-f:.%]+\]" if bracketed else r"[A-Za-z0-9._-]+", host)
    # Five digits at most: Python refuses to read thousands of them in another way.
    if not sound or not re.fullmatch("[0-9]{1,5}", number) or not 0 < int(number) < 65536:
        raise ValueError(
            f"The {what} {endpoint!r} must be host:port, like 127.0.0.1:{port}, "
            "several of them with commas between."
        )


def _check_secrets(text: str) -> None:
    """Refuse what may hold a password, before any of it can be quoted."""
    if HAS_AT(text):
        raise ValueError(
            "It holds a user: give that in ETCDCTL_USER and ETCDCTL_PASSWORD instead, where it "
            "is not shown to every `ps`."
        )


def _strip_schemes(listed: list[str]) -> tuple[tuple[str, ...], bool]:
    _check_secrets(",".join(listed))
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
