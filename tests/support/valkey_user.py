"""A connection to a Valkey server as one of its users."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.wire.connection import connected


def as_user(place: ValkeyLocation, endpoint: str, *words: str) -> Any:
    """Send a server one command as the user of a location; return what it answers."""
    with closing(connected(place, endpoint)) as connection:
        return connection.command(*words)
