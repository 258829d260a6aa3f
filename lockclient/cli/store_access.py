"""Opens the store for a command, checks that it is reachable, finds similar names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockclient.default_store import open_store
from lockclient.model.clocks import Deadline

if TYPE_CHECKING:
    from lockclient.stores.service_store import ServiceStore
    from lockclient.stores.settings import Settings

ANSWER_TIMEOUT_S = 5.0
"""Seconds for a request that a person waits for."""
READ_ALL_TIMEOUT_S = 60.0
"""Seconds to read everything: a million keys."""
MAX_NAMES = 200
"""Names that a shell gets for a completion."""
_MAX_SUGGESTIONS = 3


@contextmanager
def opened_store(settings: Settings) -> Iterator[ServiceStore]:
    """Open a store, and close it in the end."""
    store = open_store(settings)
    try:
        yield store
    finally:
        store.close()


def check_reachable(store: ServiceStore) -> None:
    """Check by a small request that the store answers this user.

    Raises:
        StoreUnavailable, StoreError: it does not.
    """
    store.names("", 1, Deadline.after(ANSWER_TIMEOUT_S))


def suggestion_for(store: ServiceStore, name: str) -> str:
    """Return a question with the names of held locks that are like this one; empty: none.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    from difflib import get_close_matches

    deadline = Deadline.after(ANSWER_TIMEOUT_S)
    found = store.names(name, _MAX_SUGGESTIONS, deadline)
    if not found:
        found = get_close_matches(name, store.names("", MAX_NAMES, deadline), _MAX_SUGGESTIONS)
    meant = " or ".join(map(repr, found))
    return f" Did you mean {meant}?" if meant else ""
