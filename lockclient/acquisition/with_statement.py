"""Gives each `with` statement an `__exit__` of its own.

This file guarantees: a block releases what its own `__enter__` acquired, and no interrupt skips
the release.

CPython runs signal handlers as a Python function begins, and raises there what the handler raises.
After a Ctrl-C inside its body a statement calls `__exit__`. But a Ctrl-C as `__exit__` begins is
raised before the first line of `__exit__`, where no `try` can see it. A statement looks up its
`__exit__` before it calls `__enter__`, and keeps the result on its stack until `__exit__` returns.
So each statement gets an object of its own here. When that object is garbage-collected and the lock
is still held, the background releases the lock.

An `ExitStack` looks up `__exit__` first, too, but by the class. The background does not release its
lock, because a stack may be garbage while its lock is still in use. So an interrupt as the exit of
an `ExitStack` begins leaves the lock held.
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
"""The id of a statement's frame, and the frame's code."""

_MOST_FRAMES = 8
"""Frames between the statement and the entry: subclasses that call `super().__enter__()`."""
_latest = threading.local()
"""This thread's last looked-up Statement."""


class Statement(weakref.ref["partial[Any]"]):
    """A weak reference to a statement's exit; `held`: the block's lock."""

    __slots__ = ("held", "is_placeholder", "owner", "where")

    held: BaseHeldLock | None
    owner: object
    is_placeholder: bool
    where: Where

    def clean_up(self) -> None:
        """Called after the exit was garbage-collected: release the lock if the exit did not."""
        if self.held is not None and not self.is_placeholder:
            self.held._release_in_background()


class Exit:
    """A descriptor that gives each `with` statement an `__exit__` of its own.

    Args:
        leave: called as `leave(self, slot, kind, error, trace)`. The slot is a list of one
            Statement (the partial exists before it does), which `leave` may replace by `LEFT`.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave
        self.__doc__ = leave.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> Callable[..., Any]:
        slot: list[Statement] = []
        if owner is None:
            leave = partial(_leave_by_class, self._leave, slot)
            statement = Statement(leave)
            statement.owner = kind
        else:
            # A method's frame would hold the exit by `self`, and an interrupt's traceback holds the
            # frame: the exit would not be collected.
            leave = partial(self._leave, owner, slot)
            # The weak reference's callback is one C call: no signal handler interrupts it.
            statement = Statement(leave, scheduler.shared.clean_up)
            statement.owner = owner
        statement.held, statement.is_placeholder = None, False
        # The frame's id, because a reference would keep its variables alive.
        frame = sys._getframe(1)
        statement.where = id(frame), frame.f_code
        slot.append(statement)
        _latest.statement = statement
        return leave


def _leave_by_class(
    leave: Callable[..., Any], slot: list[Statement], owner: object, *exc_info: object
) -> Any:
    return leave(owner, slot, *exc_info)


def entering(owner: object) -> Statement | None:
    """Return the statement whose `__enter__` this is; None: a manual call.

    The last exit looked up in this thread may belong to another statement: of another task, or
    without an entry (`ExitStack.push`). So compare frames: a statement's frame looked up its exit.
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
"""Replaces an ended Statement; its weak reference has no callback."""
LEFT[0].held, LEFT[0].is_placeholder = None, True
