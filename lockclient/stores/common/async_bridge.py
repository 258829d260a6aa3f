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
from lockclient.stores.request_types import PRIORITY, Request, delivery_of
from lockclient.threads.pool import Work, WorkerPool

Result = TypeVar("Result")

MAX_IN_FLIGHT_PER_LOCK = 8
"""Takes of one lock that are in flight at the same time: only one of them can succeed."""


class AsyncBridge:
    """Has threads send the requests of event loops.

    Requests that extend or end a lock have threads of their own, so they never wait behind takes.
    Of the takes of one lock at most `MAX_IN_FLIGHT_PER_LOCK` use a thread at the same time.

    An event loop's thread takes no lock here: the pool's threads do.
    """

    def __init__(self, urgent: WorkerPool, patient: WorkerPool) -> None:
        self._urgent = urgent
        self._patient = patient
        self._in_flight: Counter[str] = Counter()
        self._queued: defaultdict[str, deque[Work]] = defaultdict(deque)
        self._lock = threading.Lock()  # of the two above; only the pool's threads take it

    async def send(self, request: Request, work: Callable[[], Outcome]) -> Outcome:
        """Have a thread send a request; a cancellation does not end the thread's work.

        The request's `Delivery` says whether a take of a cancelled caller may still arrive.
        """
        # Set before the thread has the request, which may begin at any moment then.
        delivery_of(request).in_flight = True
        if isinstance(request, PRIORITY):
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
            if after is not None:  # queued behind takes of other locks
                self._patient.submit(partial(self._do, name, after))


async def by_thread(
    submit: Callable[[Callable[[], object]], object], work: Callable[[], Result]
) -> Result:
    """Return the result of a thread's work; a cancellation does not end that work."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], value: object) -> None:
        if not future.done():  # else cancelled
            set_outcome(value)

    def do() -> None:
        outcome: tuple[Callable[[Any], None], object]
        try:
            outcome = future.set_result, work()
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    submit(do)
    return await future
