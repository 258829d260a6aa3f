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
from lockclient.threads.pool import Work, WorkerPool

Result = TypeVar("Result")

MAX_IN_FLIGHT_PER_LOCK = 8
"""Requests under way at once of those that want the same lock, of which one can have it."""


class AsyncBridge:
    """Has threads send the requests of event loops.

    A request that keeps or ends a lock never waits behind one that wants a lock: these have threads
    of their own, and at most `MAX_IN_FLIGHT_PER_LOCK` of these for one lock, however many want it.

    Args:
        urgent, patient: the threads.
    """

    def __init__(self, urgent: WorkerPool, patient: WorkerPool) -> None:
        self._urgent = urgent
        self._patient = patient
        self._in_flight: Counter[str] = Counter()
        self._queued: defaultdict[str, deque[Work]] = defaultdict(deque)
        self._lock = threading.Lock()  # taken by threads of the pool alone

    async def send(self, request: Request, work: Callable[[], Outcome]) -> Outcome:
        """Have a request sent by a thread, which a cancellation leaves to its end.

        What it may still send is then told by its `Delivery`, as of any other caller who has gone:
        no new try begins, and one is under way until somebody has heard of it.
        """
        # Before it is handed over: from now on a thread may begin at any moment.
        delivery_of(request).in_flight = True
        if isinstance(request, KEEPING):
            return await by_thread(self._urgent.submit, work)
        name = getattr(request, "name", "") or request.holder.name  # type: ignore[union-attr]
        return await by_thread(
            lambda do: self._patient.submit(partial(self._begin, name, do)), work
        )

    def _begin(self, name: str, work: Work) -> None:
        with self._lock:
            if self._in_flight[name] >= MAX_IN_FLIGHT_PER_LOCK:
                self._queued[name].append(work)
                return
            self._in_flight[name] += 1
        self._do(name, work)

    def _do(self, name: str, work: Work) -> None:
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
                self._patient.submit(partial(self._do, name, after))


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
