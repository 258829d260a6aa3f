"""One `with` statement, so that no interrupt comes between a lock and its release.

CPython looks whether a signal has come as a function in Python begins, and raises there what the
signal's handler raises. So a Ctrl-C that comes while the last operation of a block runs is raised
*instead of* `__exit__`, where no `try` can see it. But a statement looks up its `__exit__` before
it calls `__enter__`, and keeps what it got until the call is over. So each gets one of its own
here; when that dies, in the same instant, and the lock is still held, it is let go of.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from lockclient.acquisition.holding import Holding
from lockclient.threads import scheduler


class Statement(weakref.ref["partial[None]"]):
    """A statement, known by its exit: what it took."""

    __slots__ = ("holding", "owner")

    holding: Holding | None
    owner: object

    def let_go(self) -> None:
        """See `Undoing`: its exit has died, and it was not called to its end."""
        if self.holding is not None and not self.holding.ended:
            self.holding.let_go()


class Exit:
    """A descriptor that gives each `with` statement an `__exit__` of its own.

    Args:
        leave: the method to be called: `leave(self, statements, kind, error, trace)`, with one
            statement, or none where it is not known.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave
        self.__doc__ = leave.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Callable[..., None]:
        if owner is None:  # by the class, as an ExitStack does: there is no statement
            return self._leave_by_class
        taken: list[Statement] = []
        # Not a bound method: that would stand in the frame of what it calls, and with it in the
        # traceback of the very interrupt.
        leave = partial(self._leave, owner, taken)
        # Called as it dies, with the statement: in C, where no handler of a signal is run.
        statement = Statement(leave, scheduler.shared.undo)
        statement.holding, statement.owner = None, owner
        taken.append(statement)
        _latest.statement = statement
        return leave

    def _leave_by_class(self, owner: object, *how: object) -> None:
        self._leave(owner, [], *how)


def entered(owner: object, holding: Holding | None) -> None:
    """Take note of what the statement took whose `__enter__` this is, if it is one."""
    statement: Statement | None = getattr(_latest, "statement", None)
    _latest.statement = None
    if statement is not None and statement.owner is owner and statement() is not None:
        statement.holding = holding


_latest = threading.local()
