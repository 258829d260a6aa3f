"""Reentry: whether the running code was called on top of this library's own code.

The garbage collector runs finalizers in whichever thread allocates, and a signal handler runs
between any two steps of the main thread. A generator that is collected there releases the lock of
its `with`. If that release waited, it might wait for a lock that its own thread holds. So a release
on top of our own code hands over to the background and returns at once.

A finalizer in one of this library's own threads would delay that thread's work, or wait for it. So
there a call that would wait (`acquire`, `alive`) raises an error at once.

The mark of our own code is a context variable, set in `Context.run`: one C call, after which an
interrupt can't leave it set. The mark of a thread is the thread's own: a callback on an event loop
runs in a copy of the context of the thread that scheduled it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock, local
from typing import Any, Generic, TypeVar

from lockclient.errors import ClusterMutexError

Result = TypeVar("Result")

_inside: ContextVar[bool] = ContextVar("clustermutex_inside", default=False)
_this_thread = local()

this_deputy = local()
"""`call`: the `DeputyCall` of a thread that sends requests for the main thread."""

LOCK_TIMEOUT_S = 0.5
"""Seconds after which a caller of `briefly` continues without the lock."""

is_inside = _inside.get
"""Tell whether our own code runs below the caller, in its thread."""


class DeputyCall:
    """A call that a deputy makes for the main thread, as the main thread sees it."""

    until = math.inf
    """The monotonic deadline of the request in flight, or of the beginning of the first one."""
    thread = 0
    """The deputy's id."""


def is_own_thread() -> bool:
    """Return whether the calling thread is one of this library; it may run the program's code."""
    return hasattr(_this_thread, "is_own")


def own_thread_error() -> ClusterMutexError:
    """Return the error of a call that would wait, in a finalizer in a thread of this library."""
    return ClusterMutexError(
        "The garbage collector runs this finalizer in a thread of ClusterMutex, where a call that "
        "waits for the store would delay other locks, or wait for itself. Call it in a thread of "
        "the program's; release() works here, too: the background carries it out."
    )


@contextmanager
def briefly(lock: Lock) -> Iterator[None]:
    """Hold a lock for steps that do not wait.

    A signal handler or a finalizer on top of these steps can't get it, and continues without it.
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
    """Mark the calling thread as one of this library, for its whole life."""
    _inside.set(True)
    _this_thread.is_own = True


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
