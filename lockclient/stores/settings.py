"""Settings: where the locks are, from a URL, keyword arguments and the environment.

Precedence: the program's arguments, then `CLUSTERMUTEX_URL`, then etcdctl's variables, then
`127.0.0.1:2379`. A malformed value is an error, never a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from lockclient.stores.registry import DEFAULT_LOCATION, read_location
from lockclient.text.escaping import hidden
from lockclient.text.url import named_source

if TYPE_CHECKING:
    from lockclient.stores.location import Location


@dataclass(frozen=True, slots=True, init=False)
class Settings:
    """A store's servers, and how to connect to them.

    For etcd, each argument is an attribute, too, and so is `secure`: whether TLS is used.

    Args:
        endpoints: `host:port` of each member of an etcd cluster.
        root: the prefix of all keys, from `/` on, without one at the end.
        cacert, cert, key: paths of PEM files; a `cacert` or `tls` makes it TLS.
        tls: TLS even without `cacert`: with the public authorities that gRPC brings along.
        user, password: for etcd's own authentication.
        password_file: path of a file with the password, read again for each token.
        location: where the locks are; replaces all arguments above, which are for etcd.
    """

    location: Location

    def __init__(
        self,
        endpoints: tuple[str, ...] = DEFAULT_LOCATION.endpoints,
        root: str = DEFAULT_LOCATION.root,
        cacert: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        tls: bool = False,
        user: str | None = None,
        password: str | None = None,
        password_file: str | None = None,
        location: Location | None = None,
    ) -> None:
        etcd = type(DEFAULT_LOCATION)(
            endpoints, root, cacert, cert, key, tls, user, password, password_file
        )
        # `dataclasses.replace` passes a location together with other arguments.
        location = etcd if location is None else _changed(location, asdict(etcd))
        object.__setattr__(self, "location", location)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "location":  # while `copy` or `pickle` makes the object
            raise AttributeError(name)
        return getattr(self.location, name)

    @classmethod
    def load(cls, url: str | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read the settings from a URL (else `CLUSTERMUTEX_URL`) and the store's own variables.

        Raises:
            ValueError: a value is malformed; the text names it and says what it should be.
        """
        source = "The URL"
        if url is None and "CLUSTERMUTEX_URL" in environ:
            url, source = environ["CLUSTERMUTEX_URL"], "CLUSTERMUTEX_URL"
        if url is None:
            if environ.get("ETCDCTL_DISCOVERY_SRV"):
                raise ValueError(
                    "ETCDCTL_DISCOVERY_SRV: members that only the DNS lists are not supported: "
                    "unset it, or name the members in CLUSTERMUTEX_URL."
                )
            return cls(location=DEFAULT_LOCATION.from_environment(environ))
        with named_source(f"{source} {hidden(url)!r}"):
            return cls(location=read_location(url, environ))

    def url(self) -> str:
        """Return the settings as a URL, without certificates and password."""
        return self.location.url()

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""
        return self.location.where


_NO_PASSWORD = {"password": None, "password_file": None}
_ETCD_DEFAULTS = {known.name: known.default for known in fields(DEFAULT_LOCATION)}


def made_of(
    url: str | None,
    endpoints: Sequence[str] | None,
    others: Mapping[str, Any],
    *,
    with_client: bool = False,
) -> Settings:
    """Return the settings of a URL or endpoints and other fields, the rest from the environment.

    With an etcd3 client, which has its own token, user and password of the environment don't count.

    Raises:
        ValueError: a value is malformed, a field unknown, or both URL and endpoints are given.
    """
    if url is not None and endpoints is not None:
        raise ValueError("Give the URL or the endpoints, not both.")
    known = [name for name in _ETCD_DEFAULTS if name != "endpoints"]
    for name in others:
        if name not in known:
            raise ValueError(f"There is no setting {name!r}; there are: {', '.join(known)}.")
    listed = endpoints is not None and "CLUSTERMUTEX_URL" not in os.environ
    location = DEFAULT_LOCATION.from_environment() if listed else Settings.load(url).location
    if endpoints is not None:
        if isinstance(endpoints, str):
            raise ValueError(
                f"endpoints must be a list of texts, not the text {hidden(endpoints)!r}."
            )
        if not isinstance(location, type(DEFAULT_LOCATION)):  # endpoints mean an etcd
            location = DEFAULT_LOCATION.from_environment()
        location = location.at_endpoints(endpoints)
    if with_client:
        others = {"user": None, **_NO_PASSWORD, **others}
    elif others.keys() & _NO_PASSWORD.keys():
        others = {**others, **(_NO_PASSWORD | dict(others))}
    if isinstance(location, type(DEFAULT_LOCATION)):
        return Settings(location=replace(location, **others))
    return Settings(location=_changed(location, others))


def _changed(location: Location, fields_of_etcd: Mapping[str, Any]) -> Location:
    """Return a location with those of etcd's fields that are not at their defaults.

    Raises:
        ValueError: there are such fields, and the location is another store's.
    """
    changed = fields_of_etcd.items()
    given = {name: value for name, value in changed if value != _ETCD_DEFAULTS[name]}
    if isinstance(location, type(DEFAULT_LOCATION)):
        return replace(location, **given)
    if not given:
        return location
    raise ValueError(
        f"{', '.join(given)}: that is for etcd and means nothing at {location.url()}. Leave it out."
    )
