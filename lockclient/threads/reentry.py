"""Reentry: whether the running code was called on top of this library's own code.

The garbage collector runs finalizers in whichever thread allocates, and a signal handler runs
between any two steps of the main thread. A generator that is collected there releases the lock of
its `with`. If that release waited, it might wait for a lock that its own thread holds. So a release
on top of our own code hands over to the background and returns at once.

The mark is a context variable, set in `Context.run`: one C call, after which an interrupt can't
leave it set.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

_inside: ContextVar[bool] = ContextVar("clustermutex_inside", default=False)

LOCK_TIMEOUT_S = 0.5
"""Seconds after which a caller of `briefly` goes on without the lock."""

is_inside = _inside.get
"""Tell whether our own code runs below the caller, in its thread."""


@contextmanager
def briefly(lock: Lock) -> Iterator[None]:
    """Hold a lock for steps that wait for nothing.

    A signal handler or a finalizer on top of these very steps can't get it, and goes on without it.
    """
    is_mine = lock.acquire(timeout=LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


def run_inside(work: Callable[..., Result], *args: Any) -> Result:
    """Call our own code, marked as such."""
    context = copy_context()
    context.run(_inside.set, True)
    return context.run(work, *args)


def run_outside(work: Callable[..., Result], *args: Any) -> Result:
    """Call the program's code from ours: it may wait."""
    context = copy_context()
    context.run(_inside.set, False)
    return context.run(work, *args)


def mark_thread() -> None:
    """Mark all that the calling thread runs, one of this library."""
    _inside.set(True)


class AwaitInside(Generic[Result]):
    """Awaits a coroutine of ours, marked while it runs and not while it is suspended."""

    __slots__ = ("_work",)

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Result]:
        work, context = self._work, copy_context()
        context.run(_inside.set, True)
        step, given = work.send, None
        try:
            while True:
                waits_for = context.run(step, given)
                try:
                    step, given = work.send, (yield waits_for)
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is the coroutine's
                    step, given = work.throw, error
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            work.close()
