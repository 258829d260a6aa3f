"""An asyncio bridge: worker threads send the requests of event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import KEEPING, Request, delivery_of
from lockclient.threads.pool import WorkerPool

Result = TypeVar("Result")

MAX_IN_FLIGHT = 32
"""Requests of event loops that are under way at once: each takes a thread for as long."""
MAX_IN_FLIGHT_PER_LOCK = 8
"""Of these, of those that want the same lock, of which one can have it."""


class AsyncBridge:
    """The threads that ask a store for event loops.

    What keeps a lock or gives it back never waits behind what wants one: for that there are threads
    of their own. And who wants one waits behind others that want the same: however many there are,
    and however long their object takes no more, the rest of the threads is for other locks.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._takers = WorkerPool(name, MAX_IN_FLIGHT)
        self._keepers = WorkerPool(f"{name}-having", MAX_IN_FLIGHT)
        self._in_flight: Counter[str] = Counter()
        self._queued: defaultdict[str, deque[Callable[[], object]]] = defaultdict(deque)
        self._lock = threading.Lock()

    async def send(self, request: Request, work: Callable[[], Outcome]) -> Outcome:
        """Have a request sent by a thread, which a cancellation leaves to its end.

        What it may still send is then told by its `Delivery`, as of any other caller who has gone:
        no new try begins, and one is under way until somebody has heard of it.
        """
        # Before it is handed over: from now on a thread may begin at any moment.
        delivery_of(request).in_flight = True
        if isinstance(request, KEEPING):
            return await by_thread(self._keepers.submit, work)
        name = getattr(request, "name", "") or request.holder.name  # type: ignore[union-attr]
        return await by_thread(partial(self._get, name), work)

    def _get(self, name: str, work: Callable[[], object]) -> None:
        with self._lock:
            if self._in_flight[name] >= MAX_IN_FLIGHT_PER_LOCK:
                self._queued[name].append(work)
                return
            self._in_flight[name] += 1
        self._takers.submit(partial(self._do, name, work))

    def _do(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            with self._lock:
                behind = self._queued.get(name)
                after = behind.popleft() if behind else None
                if after is None:
                    self._queued.pop(name, None)
                    self._in_flight[name] -= 1
                    if not self._in_flight[name]:
                        del self._in_flight[name]
            if after is not None:  # behind those of other names that wait for a thread, too
                self._takers.submit(partial(self._do, name, after))

    def close(self) -> None:
        """Let the threads end when they are done with what there is."""
        self._takers.close()
        self._keepers.close()


async def by_thread(
    submit: Callable[[Callable[[], object]], object], work: Callable[[], Result]
) -> Result:
    """Return the result of what a thread does, which a cancellation leaves to its end."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Result] = loop.create_future()

    def settle(settled: Callable[[Any], None], value: object) -> None:
        if not heard.done():  # else cancelled
            settled(value)

    def do() -> None:
        told: tuple[Callable[[Any], None], object]
        try:
            told = heard.set_result, work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            told = heard.set_exception, error
        with suppress(RuntimeError):  # the loop is over: nobody awaits it
            loop.call_soon_threadsafe(settle, *told)

    submit(do)
    return await heard
