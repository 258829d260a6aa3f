"""Both drivers (threads, asyncio) behind one interface, so that one suite tests both."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

from lockclient import AsyncClusterMutex, AsyncHeldLock, ClusterMutex
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket

T = TypeVar("T")
PATIENCE = 60.0


class Mutex(Protocol):
    """The calls of both mutexes; `facts` has the rest: `healthy`, `uuid`, `check_health()`, …"""

    @property
    def facts(self) -> Any: ...
    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any: ...
    def release(self) -> None: ...
    def release_held(self) -> None:
        """Release what was acquired last, from whichever thread."""

    def alive(self, *, force: bool = False) -> None: ...
    def holder(self) -> Holder | None: ...
    def waiters(self) -> list[Ticket]: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *how: Any) -> None: ...
    def __call__(self, function: Callable[..., T]) -> Callable[..., T]: ...
    def skip_if_held(self, function: Callable[..., T]) -> Callable[..., T | None]: ...


Make = Callable[..., Mutex]


class InThreads(ClusterMutex):
    """`ClusterMutex` as it is, but that a block gives the mutex again."""

    @property
    def facts(self) -> ClusterMutex:
        return self

    def __enter__(self) -> Any:
        super().__enter__()
        return self

    def release_held(self) -> None:
        self.release()


class OnALoop:
    """`AsyncClusterMutex`: each call is a task of its own on an event loop in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *args: Any, **how: Any) -> None:
        self.facts: Any = AsyncClusterMutex(*args, **how)
        self._loop = loop
        self._held: AsyncHeldLock | None = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> AsyncHeldLock | None:
        self._held = self._run(self.facts.acquire(blocking, timeout))
        return self._held

    def release(self) -> None:
        self._run(self.facts.release())

    def release_held(self) -> None:
        assert self._held is not None
        self._run(self._held.release())

    def alive(self, *, force: bool = False) -> None:
        self._run(self.facts.alive(force=force))

    def holder(self) -> Holder | None:
        return cast("Holder | None", self._run(self.facts.holder()))

    def waiters(self) -> list[Ticket]:
        return self._run(self.facts.waiters())

    def locked(self) -> bool:
        return bool(self.facts.locked())

    def __enter__(self) -> OnALoop:
        self._run(self.facts.__aenter__())
        return self

    def __exit__(self, *how: Any) -> None:
        self._run(self.facts.__aexit__(*how))

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        return self._decorated(self.facts, function)

    def skip_if_held(self, function: Callable[..., T]) -> Callable[..., T | None]:
        return self._decorated(self.facts.skip_if_held, function)

    def _decorated(self, decorate: Any, function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        async def asynchronous(*args: Any, **how: Any) -> T:
            return function(*args, **how)

        wrapped: Callable[..., Coroutine[Any, Any, T]] = decorate(asynchronous)

        @functools.wraps(wrapped)
        def call(*args: Any, **how: Any) -> T:
            return self._run(wrapped(*args, **how))

        return call


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own for the time of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="the-loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()
