"""Location of a store: which servers, and below which prefix."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from lockclient.text.url import split_url

_OF_LOCKS: Final = {"code", "locks", "queue", "released", "removed", "withdrawn"}
_OF_SERVICES: Final = {"locks-unlockers", "notifications", "server", "unlockers"}
FOLDERS: Final = frozenset(_OF_LOCKS | _OF_SERVICES)
"""Segments that follow a root in the keys of any store."""


class Location(Protocol):
    """What a store's URL and the environment say; frozen and hashable."""

    @property
    def where(self) -> str:
        """A short text for titles."""

    def url(self) -> str:
        """Return it as a URL, without users, passwords and certificates."""


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """The location of another package's store, which alone knows what its URL means."""

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
    `/a/` and one of `FOLDERS`, so `/a/b` shares no key with it otherwise.
    """
    for segment in root.strip("/").split("/")[1:]:
        if segment in FOLDERS:
            raise ValueError(
                f"The prefix {root!r} must not have {segment!r} after its first segment: there a "
                "prefix above it keeps its own keys. Use another word in its place."
            )
