"""What stores share that have no watch and no calls of asyncio's own: looking, and threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome, Position
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import GetPosition, Push, Request, RequestState, Unlock, Withdraw
from lockclient.threads import scheduler
from lockclient.threads.scheduler import WorkerPool

POLL = 2.0
"""Seconds between two looks whether a lock is still its holder's: nobody tells it. Each is one
request, of the cheap kind, for as long as a lock is held."""


class PollWatch:
    """A watch on who has a lock, by looking from time to time; it tells what it finds changed.

    Args:
        ask: asks the store.
        target: the lock.
        notify: see `MutexStore.watch`.
        crew: the threads that look.
    """

    def __init__(
        self,
        ask: Callable[[Request, Deadline], Outcome],
        target: WatchTarget,
        notify: Callable[[WatchEvent], None],
        crew: WorkerPool,
    ) -> None:
        self._ask = ask
        self._look = GetPosition(target.name, "", 0)
        self._notify = notify
        self._crew = crew
        self._told: tuple[str | None] | None = None
        self._under_way = False
        self._closed = False
        self._task = scheduler.shared.after(POLL, self._due)

    def _due(self) -> float | None:
        if self._closed:
            return None
        if not self._under_way:
            self._under_way = True
            self._crew.submit(self._see)
        return POLL

    def _see(self) -> None:
        try:
            found = self._ask(self._look, Deadline.after(POLL))
        except ClusterMutexError:
            return  # the next look tells; that the time runs out is the holder's own to notice
        finally:
            self._under_way = False
        if isinstance(found, Position) and not self._closed and self._told != (found.holder,):
            self._told = (found.holder,)
            self._notify(WatchEvent(found.revision, found.holder))

    def close(self) -> None:
        self._closed = True
        self._task.cancel()


AT_ONCE = 32
"""Requests of event loops that are under way at once: each takes a thread for as long."""
OF_ONE_NAME = 8
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
        self._getting = WorkerPool(name, AT_ONCE)
        self._having = WorkerPool(f"{name}-having", AT_ONCE)
        self._at_it: Counter[str] = Counter()
        self._behind: defaultdict[str, deque[Callable[[], object]]] = defaultdict(deque)
        self._lock = threading.Lock()

    async def send(self, sending: RequestState, work: Callable[[], Outcome]) -> Outcome:
        """Have a request sent by a thread, which a cancellation leaves to its end; see below."""
        request = sending.request
        if isinstance(request, Push | Unlock | Withdraw):
            return await by_thread(self._having.submit, sending, work)
        name = getattr(request, "name", "") or request.holder.name  # type: ignore[union-attr]
        return await by_thread(partial(self._get, name), sending, work)

    def _get(self, name: str, work: Callable[[], object]) -> None:
        with self._lock:
            if self._at_it[name] >= OF_ONE_NAME:
                self._behind[name].append(work)
                return
            self._at_it[name] += 1
        self._getting.submit(partial(self._do, name, work))

    def _do(self, name: str, work: Callable[[], object]) -> None:
        try:
            work()
        finally:
            with self._lock:
                behind = self._behind.get(name)
                after = behind.popleft() if behind else None
                if after is None:
                    self._behind.pop(name, None)
                    self._at_it[name] -= 1
                    if not self._at_it[name]:
                        del self._at_it[name]
            if after is not None:  # behind those of other names that wait for a thread, too
                self._getting.submit(partial(self._do, name, after))

    def close(self) -> None:
        """Let the threads end when they are done with what there is."""
        self._getting.close()
        self._having.close()


async def by_thread(
    do_it: Callable[[Callable[[], object]], object],
    sending: RequestState,
    work: Callable[[], Outcome],
) -> Outcome:
    """Have a request sent by a thread that `do_it` finds, which a cancellation leaves to its end.

    What it may still send is then told by `sending`, as of any other caller who has gone: it is
    given up, so that no new try begins, and one is under way until somebody has heard of it.
    """
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Outcome] = loop.create_future()

    def tell(outcome: Outcome | None, error: Exception | None) -> None:
        if heard.done():  # cancelled
            return
        if error is not None:
            heard.set_exception(error)
        elif outcome is not None:
            heard.set_result(outcome)

    def do() -> None:
        outcome, failure = None, None
        try:
            outcome = work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            failure = error
        with suppress(RuntimeError):  # the loop is over: nobody awaits it
            loop.call_soon_threadsafe(tell, outcome, failure)

    # Before it is handed over: from now on a thread may begin at any moment.
    sending.in_flight = True
    do_it(do)
    return await heard
