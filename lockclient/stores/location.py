"""Protocol of a store's location: which servers, and below which prefix."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from lockclient.text.url import split_url

_OF_LOCKS: Final = {"code", "locks", "queue", "released", "removed", "withdrawn"}
_OF_SERVICES: Final = {"locks-unlockers", "notifications", "server", "unlockers"}
FOLDERS: Final = frozenset(_OF_LOCKS | _OF_SERVICES)
"""Segments that follow a root in the keys of any store."""


class Location(Protocol):
    """What the URL of a store says, and the environment beside it; frozen, as keys are."""

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""

    def url(self) -> str:
        """Return it as a URL, without users, passwords and certificates."""


@dataclass(frozen=True, slots=True)
class UrlLocation:
    """The location of a store of somebody else's: a URL that means something to that store alone.

    Attributes:
        given: the URL as it was given, with all that it holds.
    """

    given: str = field(repr=False)

    def __post_init__(self) -> None:
        make_texts_exact(self)

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""
        return self.url()

    def url(self) -> str:
        """Return it without user, password and query."""
        parts = split_url(self.given)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def make_texts_exact(location: Any) -> None:
    """Replace each text of a location, before it is shared, by an exact `str` of its value.

    A subclass may format as another text, as a member of an Enum does: other keys come of that.
    """
    for part in fields(location):
        value = getattr(location, part.name)
        if isinstance(value, str):
            object.__setattr__(location, part.name, str.__str__(value))
        elif isinstance(value, tuple):
            object.__setattr__(location, part.name, tuple(map(str.__str__, value)))


def refuse_nested_root(root: str) -> None:
    """Raise ValueError for a root that lies among the keys of a root above it.

    Its locks would be in the ranges that a release or an unlocker deletes there. Every key below
    a root `/a` begins with `/a/` and one of `FOLDERS`, so `/a/b` shares no key with it otherwise.
    """
    for segment in root.strip("/").split("/")[1:]:
        if segment in FOLDERS:
            raise ValueError(
                f"The prefix {root!r} must not have {segment!r} after its first segment: there a "
                "prefix above it keeps its own keys. Use another word in its place."
            )
