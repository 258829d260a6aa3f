"""Functions that hold a lock while they run, and jobs that are skipped where it is held."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, NoReturn, TypeVar

from lockclient.acquisition.base import BaseMutex, log
from lockclient.errors import LockTimeout

Result = TypeVar("Result")


def holding(mutex: BaseMutex[Any], function: Any, *, skip: bool = False) -> Any:
    """Return a function that holds the lock; with `skip` it returns None where that is held."""
    if any(inspect.iscoroutinefunction(part) for part in _parts(function)):
        _refuse(function)
    entered: Any = _trying_once(mutex) if skip else mutex

    @wraps(function)
    def call(*args: Any, **how: Any) -> Any:
        runs = False
        try:
            with entered:
                runs = True
                _log_run(function, mutex.name, skip)
                return _finished(function, function(*args, **how))
        except LockTimeout as error:
            if runs or not skip:
                raise
            _log_skip(function, mutex.name, error)
        return None

    return call


def holding_async(mutex: BaseMutex[Any], function: Any, *, skip: bool = False) -> Any:
    """Return a coroutine function that holds the lock, see `holding`."""
    if not any(inspect.iscoroutinefunction(part) for part in _parts(function)):
        raise TypeError(f"{function!r} is no `async def` function: use ClusterMutex for it.")
    entered: Any = _trying_once(mutex) if skip else mutex

    @wraps(function)
    async def call(*args: Any, **how: Any) -> Any:
        runs = False
        try:
            async with entered:
                runs = True
                _log_run(function, mutex.name, skip)
                return _finished(function, await function(*args, **how))
        except LockTimeout as error:
            if runs or not skip:
                raise
            _log_skip(function, mutex.name, error)
        return None

    return call


def _parts(function: Any) -> tuple[Any, ...]:
    """Return what shows a function's kind; raise `TypeError` for methods' marks and generators."""
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
    """Return the result of a call, unless the function's work would be done after the release."""
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
    """Return a twin with the same acquisitions and no wait.

    So a job takes its lock by `with`: an interrupt between `acquire()` and that would leave it.
    """
    twin = type(mutex).__new__(type(mutex))
    twin.__dict__.update(mutex.__dict__, _timeout=0.0)
    return twin


def _log_run(function: object, lock: str, skip: bool) -> None:
    if skip:
        log.info("Running %s with the lock %r.", _name(function), lock, extra={"lock": lock})


def _log_skip(function: object, lock: str, error: LockTimeout) -> None:
    log.info("Skipping %s: %s", _name(function), error, extra={"lock": lock})


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
