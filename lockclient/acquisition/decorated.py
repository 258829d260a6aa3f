"""Functions that hold a lock while they run: which can, and jobs that are skipped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from lockclient.acquisition.base import BaseMutex, log
from lockclient.errors import LockTimeout

Function = TypeVar("Function", bound=Callable[..., Any])
Params = ParamSpec("Params")
Result = TypeVar("Result")


def require_coroutine_function(function: object) -> None:
    """Raise `TypeError` for what is not `async def`."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{function!r} is no `async def` function: use ClusterMutex for it.")


def holding(mutex: AbstractContextManager[object], function: Function) -> Function:
    """See `ClusterMutex.__call__`."""
    _require_function(function)

    def call(*args: Any, **how: Any) -> Any:
        with mutex:
            return _called(function, args, how)

    return cast(Function, wraps(function)(call))


def skipping_if_held(
    mutex: BaseMutex[Any], function: Callable[Params, Result]
) -> Callable[Params, Result | None]:
    """See `ClusterMutex.skip_if_held`."""
    _require_function(function)
    once = _trying_once(mutex)

    @wraps(function)
    def call(*args: Params.args, **how: Params.kwargs) -> Result | None:
        with _Job(function, mutex.name) as job, once:
            job.runs()
            return _called(function, args, how)
        return None

    return call


def skipping_if_held_async(
    mutex: BaseMutex[Any], function: Callable[Params, Coroutine[Any, Any, Result]]
) -> Callable[Params, Coroutine[Any, Any, Result | None]]:
    """See `ClusterMutex.skip_if_held`."""
    require_coroutine_function(function)
    once = _trying_once(mutex)

    @wraps(function)
    async def call(*args: Params.args, **how: Params.kwargs) -> Result | None:
        with _Job(function, mutex.name) as job:
            async with once:
                job.runs()
                return await function(*args, **how)
        return None

    return call


def _require_function(function: Callable[..., object]) -> None:
    if any(_runs_later(part) for part in (function, inspect.unwrap(function))):
        raise _unprotected(function)


def _runs_later(function: Any) -> bool:
    """Tell whether the body of a function runs after its call has returned, as far as it shows."""
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    called = type(function).__call__
    return any(kind(part) for kind in kinds for part in (function, called))


def _unprotected(function: object) -> TypeError:
    return TypeError(
        f"{function!r} runs after its call has returned, when the lock would be released already: "
        "use `with` inside it, or AsyncClusterMutex for `async def`."
    )


def _called(
    function: Callable[..., Result], args: tuple[Any, ...], how: Mapping[str, Any]
) -> Result:
    result = function(*args, **how)
    if inspect.iscoroutine(result):
        result.close()
        raise _unprotected(function)
    return result


def _trying_once(mutex: BaseMutex[Any]) -> Any:
    """Return a twin that knows of the same acquisitions, and waits for nothing.

    So a job takes its lock by `with`: an interrupt between `acquire()` and that would leave it.
    """
    twin = type(mutex).__new__(type(mutex))
    twin.__dict__.update(mutex.__dict__, _timeout=0.0)
    return twin


class _Job:
    """A call that runs, or is skipped where its lock is held; the log says which."""

    def __init__(self, function: Callable[..., object], lock: str) -> None:
        self._name = getattr(function, "__qualname__", None) or repr(function)
        self._lock = lock
        self._runs = False

    def __enter__(self) -> _Job:
        return self

    def runs(self) -> None:
        """Say that it has the lock: from here on all that is raised is its own."""
        self._runs = True
        log.info("Running %s with the lock %r.", self._name, self._lock, extra=self._extra)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._runs or not isinstance(error, LockTimeout):
            return False
        log.info("Skipping %s: %s", self._name, error, extra=self._extra)
        return True

    @property
    def _extra(self) -> dict[str, str]:
        return {"lock": self._lock}
