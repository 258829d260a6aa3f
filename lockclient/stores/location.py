"""Location of a store: its servers and the prefix of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Protocol

from lockclient.errors import StoreError
from lockclient.text.url import check_endpoint, check_no_user, check_readable, split_url

_OF_LOCKS: Final = {"code", "locks", "queue", "released", "removed", "withdrawn"}
_OF_SERVICES: Final = {"locks-unlockers", "notifications", "server", "unlockers"}
FOLDERS: Final = frozenset(_OF_LOCKS | _OF_SERVICES)
"""Segments that follow a root in the keys of any store."""


class Location(Protocol):
    """The place of a store, by its URL and the environment; frozen and hashable."""

    @property
    def where(self) -> str:
        """A short text for titles."""

    def url(self) -> str:
        """Return it as a URL, without users, passwords and certificates."""


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """The location of another package's store, which reads the URL itself."""

    given: str = field(repr=False)

    def __post_init__(self) -> None:
        make_texts_exact(self)

    @property
    def where(self) -> str:
        """A short text for titles."""
        return self.url()

    def url(self) -> str:
        """Return it without user, password and query."""
        parts = split_url(self.given)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that are named one by one, the prefix of all keys, and the credentials.

    Attributes:
        endpoints: `host:port` of each server.
        root: the keys' prefix, without a slash at its end.
        cacert, cert, key: paths of PEM files.
        tls: whether to talk TLS.
        user, password: for the servers' own authentication.
        password_file: path of a file with the password, in place of `password`. It is read each
            time that the password is needed, so that a new one needs no restart.
    """

    endpoints: tuple[str, ...]
    root: str
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None

    VARIABLES: ClassVar[str]
    """The first part of the names of the environment's variables."""
    PORT: ClassVar[int]

    def __post_init__(self) -> None:
        make_texts_exact(self)
        for endpoint in self.endpoints:
            check_no_user(endpoint, self.user_variables())
            check_endpoint(endpoint, "endpoint", self.PORT)
        refuse_nested_root(self.root)
        if (self.cert is None) != (self.key is None):
            raise ValueError("A client certificate and its key go together: give both or none.")
        for what in ("cacert", "cert", "key"):
            check_readable(getattr(self, what), what)
        variable = f"{self.VARIABLES}_PASSWORD"
        if self.password is not None and self.password_file is not None:
            raise ValueError(f"Give {variable} or {variable}_FILE, not both.")
        if self.password_file is not None:
            self._read_file(self.password_file)
        elif self.user is not None and self.password is None:
            raise ValueError(f"A user was given without a password ({variable}).")

    @classmethod
    def user_variables(cls) -> str:
        """Return the names of the variables with user and password."""
        return f"{cls.VARIABLES}_USER and {cls.VARIABLES}_PASSWORD"

    @classmethod
    def read_variables(cls, environ: Mapping[str, str], *names: str) -> dict[str, Any]:
        """Return these fields by their variables; an empty one counts as missing."""
        return {name: environ.get(f"{cls.VARIABLES}_{name.upper()}") or None for name in names}

    @property
    def password_source(self) -> str:
        """The variable with the password, and its file, for a message that it is refused."""
        variable = f"{self.VARIABLES}_PASSWORD"
        return variable if self.password_file is None else f"{variable}_FILE ({self.password_file})"

    def current_password(self) -> str | None:
        """Return the password, as its file has it now.

        Raises:
            StoreError: the file can't be used.
        """
        if self.password_file is None:
            return self.password
        try:
            return self._read_file(self.password_file)
        except ValueError as error:
            raise StoreError(f"{self.VARIABLES}_PASSWORD_FILE: {error}", passing=True) from None

    @staticmethod
    def _read_file(path: str) -> str:
        from lockclient.stores.password_file import read_password  # few programs have one

        return read_password(path)


def make_texts_exact(location: Any) -> None:
    """Replace each text of a location by an exact `str` of its value.

    A subclass may format as another text, as an Enum's member does: that would make other keys.
    """
    for part in fields(location):
        value = getattr(location, part.name)
        if isinstance(value, str):
            object.__setattr__(location, part.name, str.__str__(value))
        elif isinstance(value, tuple):
            object.__setattr__(location, part.name, tuple(map(str.__str__, value)))


def refuse_nested_root(root: str) -> None:
    """Raise ValueError for a root among the keys of a root above it.

    A release or an unlocker there would delete its locks. Every key below a root `/a` begins with
    `/a/` and one of `FOLDERS`, so without such a segment `/a/b` shares no key with it.
    """
    for segment in root.strip("/").split("/")[1:]:
        if segment in FOLDERS:
            raise ValueError(
                f"The prefix {root!r} must not have {segment!r} after its first segment: there a "
                "prefix above it keeps its own keys. Use another word in its place."
            )
