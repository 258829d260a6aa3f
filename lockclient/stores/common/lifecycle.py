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
from lockclient.stores.requests import Request, RequestState, Unlock, Withdraw
from lockclient.threads.at_exit import Order, calls

CLEAN_UP_TIMEOUT_S: Final = 0.4
"""Seconds that closing waits for what is to be cleaned up."""


def closed(location: Location, *, unknown: bool = False) -> StoreClosed:
    """Return the exception for who asks a store that this program has closed."""
    return StoreClosed(f"The connection to {location.url()} was closed.", unknown=unknown)


class OpenedStore:
    """A base of stores: `_connect` makes all that a fork's child must not share.

    Args:
        location: where it is.
    """

    location: Location
    background: Background

    def __init__(self, location: Location) -> None:
        self.location = location
        self._connect()
        _stores.add(self)

    # ------------------------------------------------------------ what each store does

    def _connect(self) -> None:
        """Make all connections and threads, none of which begins before it is needed."""
        self._closing = False

    def _disconnect(self) -> None:
        """End what `_connect` has made besides, when nothing is asked any more."""

    def _let_go(self) -> None:
        """End, at the interpreter's own end, what must not be left to that."""

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        raise NotImplementedError

    # ------------------------------------------------------------ what all do

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        return self.background.run_shielded(lambda: self.send(RequestState(request), deadline))

    def settle(self, seconds: float) -> None:
        """Wait until nothing is left that is to be taken back, but not longer than that."""
        self.background.settle(seconds)

    def _check_open(self, request: Request) -> None:
        """As it closes, what takes back is asked still, and all else not any more."""
        if self._closing and not isinstance(request, Withdraw | Unlock):
            raise closed(self.location)

    def close(self) -> None:
        self._closing = True
        self.background.close(CLEAN_UP_TIMEOUT_S)
        self._disconnect()

    def endpoints(self) -> tuple[str, ...]:
        """See `ServiceStore.endpoints`: one address for all, unless there are several."""
        return (self.location.url(),)

    def votes(self) -> Mapping[str, str]:
        """See `ServiceStore.votes`: who answers speaks for all."""
        return {}

    def thin_locks(self) -> Mapping[str, int]:
        """See `ServiceStore.thin_locks`: who answers has them all."""
        return {}

    def warnings_for_display(self) -> Sequence[str]:
        """See `ServiceStore.warnings_for_display`: who answers is one, and says all there is."""
        return ()


_stores: WeakSet[OpenedStore] = WeakSet()
_inherited: list[dict[str, Any]] = []


def _start_afresh() -> None:
    """After fork: connect anew, in the child only.

    What the parent's store had is neither used nor closed nor collected here. Its connections are
    the parent's, and threads did not come along, so that even destroying a channel can hang.
    """
    for store in list(_stores):
        _inherited.append(dict(vars(store)))
        store._connect()


def _at_exit() -> None:
    """Give clean-ups a moment; then end what must end while threads still run."""
    until = Deadline.after(AT_EXIT_S)
    for store in list(_stores):
        store.settle(until.remaining())
    for store in list(_stores):
        store._let_go()


os.register_at_fork(after_in_child=_start_afresh)
calls[Order.CLEAN_UP] = _at_exit
