"""Gives each `with` statement an `__exit__` of its own.

It serves two promises, and a reader who takes them for granted can skip this file: a block releases
what its own `__enter__` acquired, and no interrupt skips the release.

CPython runs signal handlers as a Python function begins, and raises there what the handler raises.
So a Ctrl-C during the last operation of a block is raised *instead of* `__exit__`, where no `try`
can see it. But a statement looks up its `__exit__` before it calls `__enter__`, and keeps the
result until the call is over. So each statement gets an object of its own here. When that object
is garbage-collected and the lock is still held, the background releases the lock.

An `ExitStack` looks up `__exit__` first, too, by the class. The background does not release its
lock: a stack may be garbage while its lock is still in use.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any, cast

from lockclient.acquisition.held_lock import BaseHeldLock
from lockclient.threads import scheduler

Where = tuple[int, CodeType]
"""The frame in which a statement stands, by its id, and the frame's code."""


class Statement(weakref.ref["partial[Any]"]):
    """A weak reference to a statement's exit: what it acquired, and whether the block has ended."""

    __slots__ = ("done", "held", "owner", "where")

    held: BaseHeldLock | None
    owner: object
    done: bool
    where: Where

    def let_go(self) -> None:
        """Called after the exit was garbage-collected: release the lock if the exit did not."""
        if self.held is not None and not self.done:
            self.held._abandon()


class Exit:
    """A descriptor that gives each `with` statement an `__exit__` of its own.

    Args:
        leave: the method to be called: `leave(self, statement, kind, error, trace)`, with the
            statement in a list of one, which it may replace by `LEFT`.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave
        self.__doc__ = leave.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Callable[..., Any]:
        taken: list[Statement] = []
        if owner is None:
            leave = partial(_leave_by_class, self._leave, taken)
            statement = Statement(leave)
            statement.owner = kind
        else:
            # Not a bound method: that would stand in the frame of what it calls, and with it in
            # the traceback of the very interrupt.
            leave = partial(self._leave, owner, taken)
            # The callback, with the statement, runs in C: no signal handler interrupts it.
            statement = Statement(leave, scheduler.shared.undo)
            statement.owner = owner
        statement.held, statement.done = None, False
        # The frame that looks it up; a reference to it would keep its variables alive.
        frame = sys._getframe(1)
        statement.where = id(frame), frame.f_code
        taken.append(statement)
        _latest.statement = statement
        return leave


def _leave_by_class(
    leave: Callable[..., Any], taken: list[Statement], owner: object, *how: object
) -> Any:
    return leave(owner, taken, *how)


def entering(owner: object) -> Statement | None:
    """Return the statement whose `__enter__` this is; None: it is called by hand.

    The statement's frame looked up the exit. The exit looked up last may be another's: of another
    task in this thread, or without an entry (`ExitStack.push`).
    """
    statement: Statement | None = getattr(_latest, "statement", None)
    _latest.statement = None
    if statement is None or statement() is None:
        return None
    if statement.owner is not owner and statement.owner is not type(owner):
        return None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if (id(frame), frame.f_code) == statement.where:
            return statement
        frame = frame.f_back
    return None


LEFT = [Statement(cast("partial[Any]", entering))]
"""In place of a statement that has ended: its exit, when collected, notifies no thread."""
LEFT[0].held, LEFT[0].done = None, True
_MOST_FRAMES = 8
"""Frames between the statement and the entry: subclasses that call `super().__enter__()`."""
_latest = threading.local()
