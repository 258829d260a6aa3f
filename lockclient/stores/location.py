"""Protocol of a store's location: which servers, and below which prefix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lockclient.text.url import split_url


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

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""
        return self.url()

    def url(self) -> str:
        """Return it without user, password and query."""
        parts = split_url(self.given)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
