"""Store lifecycle: connect, reconnect after a fork, clean up at exit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakSet

from lockclient.errors import StoreClosed
from lockclient.model.clocks import Deadline
from lockclient.stores.common.background import AT_EXIT_S, Background
from lockclient.stores.location import Location
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, Unlock, Withdraw
from lockclient.threads.at_exit import Order, calls

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

    def _connect(self) -> None:
        """Make all connections and threads, which a fork's child must not share. None starts."""
        self._closing = False

    def _disconnect(self) -> None:
        """Close the connections and threads of `_connect`, except `background`."""

    def _close_streams(self) -> None:
        """Called in `atexit`: the interpreter's teardown of an open stream can hang."""

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
        self.background.close(CLEAN_UP_TIMEOUT_S)
        self._disconnect()

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


def _at_exit() -> None:
    until = Deadline.after(AT_EXIT_S)
    for store in list(_stores):
        store.settle(until.remaining())
    for store in list(_stores):
        store._close_streams()


os.register_at_fork(after_in_child=_start_afresh)
calls[Order.CLEAN_UP] = _at_exit
