"""Protocol of a store's location: which servers, and below which prefix."""

from __future__ import annotations

from typing import Protocol


class Location(Protocol):
    """What the URL of a store says, and the environment beside it; frozen, as keys are."""

    @property
    def where(self) -> str:
        """The locks' place in few words, for titles."""

    def url(self) -> str:
        """Return it as a URL, without users, passwords and certificates."""
