"""Decorator: a function holds a lock while it runs; a job is skipped if another holder has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, TypeVar

from lockclient.acquisition.base_mutex import BaseMutex, log
from lockclient.errors import LockTimeout

Result = TypeVar("Result")


def holding(mutex: BaseMutex[Any], function: Any, *, skip: bool = False) -> Any:
    """Return a function that holds the lock; with `skip` it returns None if the lock is held."""
    if any(inspect.iscoroutinefunction(part) for part in _parts(function)):
        _refuse(function)
    entered: Any = _trying_once(mutex) if skip else mutex

    @wraps(function)
    def call(*args: Any, **how: Any) -> Any:
        with _skipping(function, mutex.name, skip) as begin, entered:
            begin()
            return _finished(function, function(*args, **how))

    return call


def holding_async(mutex: BaseMutex[Any], function: Any, *, skip: bool = False) -> Any:
    """Return a coroutine function that holds the lock, see `holding`."""
    if not any(inspect.iscoroutinefunction(part) for part in _parts(function)):
        raise TypeError(f"{function!r} is no `async def` function: use ClusterMutex for it.")
    entered: Any = _trying_once(mutex) if skip else mutex

    @wraps(function)
    async def call(*args: Any, **how: Any) -> Any:
        with _skipping(function, mutex.name, skip) as begin:
            async with entered:
                begin()
                return _finished(function, await function(*args, **how))

    return call


def _parts(function: Any) -> tuple[Any, ...]:
    """Return the objects that tell if a function is async; TypeError for a generator."""
    if isinstance(function, classmethod | staticmethod) or not callable(function):
        raise TypeError(
            f"{function!r} is no function: write the mutex below `@classmethod` and the like."
        )
    parts = function, inspect.unwrap(function), type(function).__call__
    for runs_later in inspect.isgeneratorfunction, inspect.isasyncgenfunction:
        if any(runs_later(part) for part in parts):
            _refuse(function)
    return parts


def _finished(function: object, result: Result) -> Result:
    """Return a call's result; TypeError: its work would be done after the release."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        for end in "close", "cancel":  # a coroutine, a task
            getattr(result, end, lambda: None)()
        _refuse(function)
    return result


def _refuse(function: object) -> NoReturn:
    raise TypeError(
        f"{function!r} runs after its call has returned, when the lock would be released already: "
        "use `with` inside it, or AsyncClusterMutex for `async def` without `yield`."
    )


def _trying_once(mutex: BaseMutex[Any]) -> Any:
    """Return a copy of the mutex that shares its acquisitions and has timeout 0.

    So `with` acquires a job's lock, and no interrupt leaves the lock held.
    """
    copy = type(mutex).__new__(type(mutex))
    copy.__dict__.update(mutex.__dict__, _timeout=0.0)
    return copy


@contextmanager
def _skipping(function: object, lock: str, skip: bool) -> Iterator[Callable[[], None]]:
    """Catch the LockTimeout before the job began, and log that it is skipped.

    The job calls the yielded function as it begins.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    begun = not skip

    def begin() -> None:
        nonlocal begun
        if skip:
            log.info("Running %s with the lock %r.", name, lock, extra={"lock": lock})
        begun = True

    try:
        yield begin
    except LockTimeout as error:
        if begun:  # the job's own error
            raise
        log.info("Skipping %s: %s", name, error, extra={"lock": lock})
