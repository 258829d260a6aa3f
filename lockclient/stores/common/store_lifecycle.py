"""Store lifecycle: connect, reconnect after a fork, close."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.common.background import Background
from lockclient.stores.location import Location
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, Unlock, Withdraw
from lockclient.threads import ending

CLEAN_UP_TIMEOUT_S: Final = 0.4
"""Seconds that closing a store waits for clean-ups."""


def closed(location: Location, *, unknown: bool = False) -> StoreClosed:
    """Return the error of a request to a store that this program has closed."""
    return StoreClosed(f"The connection to {location.url()} was closed.", unknown=unknown)


class OpenedStore:
    """A base of stores."""

    location: Location
    background: Background

    def __init__(self, location: Location) -> None:
        self.location = location
        self._connect()
        _stores.add(self)
        ending.stores.add(self)

    def _connect(self) -> None:
        """Make all connections and threads, which a fork's child must not share. None starts."""
        self._closing = False

    def _disconnect(self) -> None:
        """Close the connections and threads of `_connect`, except `background`."""

    def parts(self) -> list[ending.Part]:
        return self.background.parts()

    def close_streams(self) -> None:
        """Close all watches: the interpreter's teardown of an open stream can hang."""

    def revoke_tickets(self) -> None:
        """Have the background end all tickets; a later waiter gets a new lease."""

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        raise NotImplementedError

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        return self.background.run_shielded(self.send, request, deadline)

    def settle(self, seconds: float) -> None:
        """Wait until all clean-ups are done, at most for `seconds`."""
        self.background.settle(seconds)

    def _check_open(self, request: Request) -> None:
        """Raise `StoreClosed` if the store is closing, unless the request is a clean-up."""
        if self._closing and not isinstance(request, Withdraw | Unlock):
            raise closed(self.location)

    def close(self) -> None:
        self._closing = True
        limit = Deadline.after(CLEAN_UP_TIMEOUT_S)
        ending.end([self], limit, closed(self.location))
        self.background.close()
        self.background.run_shielded(self._disconnect)

    def endpoints(self) -> tuple[str, ...]:
        return (self.location.url(),)

    def votes(self) -> Mapping[str, str]:
        return {}

    def thin_locks(self) -> Mapping[str, int]:
        return {}

    def warnings_for_display(self) -> Sequence[str]:
        return ()


_stores: WeakSet[OpenedStore] = WeakSet()
_inherited: list[dict[str, Any]] = []


def _start_afresh() -> None:
    """After fork, in the child: connect again.

    The child neither uses nor closes nor collects the parent's connections: it has none of the
    parent's threads, so even destroying a channel can hang.
    """
    for store in list(_stores):
        _inherited.append(dict(vars(store)))
        store._connect()


os.register_at_fork(after_in_child=_start_afresh)
