"""What any store is from its opening to its end: connected, anew in a fork's child, and settled."""

from __future__ import annotations

import atexit
import os
from typing import Any
from weakref import WeakSet

from lockclient.model.clocks import Deadline
from lockclient.stores.common.background import AT_EXIT_S, Background
from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import Request, RequestState


class OpenedStore:
    """A base of stores: `_connect` makes all that a fork's child must not share."""

    background: Background

    def __init__(self) -> None:
        self._connect()
        _stores.add(self)

    # ------------------------------------------------------------ what each store does

    def _connect(self) -> None:
        """Make all connections and threads, none of which begins before it is needed."""
        raise NotImplementedError

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
    """Give what is to be cleaned up a moment; then let all stores go while threads still run."""
    until = Deadline.after(AT_EXIT_S)
    for store in list(_stores):
        store.settle(until.remaining())
    for store in list(_stores):
        store._let_go()  # here: from Python 3.12 on no thread can be started any more


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_at_exit)
