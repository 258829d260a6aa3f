"""`AsyncClusterMutex`: `ClusterMutex` for asyncio, by the same engine and the same steps.

Requests go over grpc.aio on the event loop that awaits them. What goes on beside them, the watch
stream, the lease of the tickets, loss detection, clean-up, is the process's own, on its background
thread: it goes on when a loop is blocked, and clean-up after a cancellation outlives the loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AsyncContextDecorator, suppress
from types import TracebackType
from typing import Any, TypeVar, cast

from lockclient.acquisition.base import Handle, held_by
from lockclient.acquisition.holding import Holding
from lockclient.acquisition.steps import Hear, Result, Steps
from lockclient.errors import ClusterMutexError, LockLost
from lockclient.model.clocks import Now, monotonic
from lockclient.model.holder import Holder
from lockclient.model.process_identity import task_actor, this_thread
from lockclient.model.ticket import Ticket
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import AsyncMutexStore, MutexStore, WatchEvent
from lockclient.threads import scheduler

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


def _this_task() -> tuple[str, str]:
    """Return the thread's name, and the actor that the running task is: all of a loop have one
    thread, and one that waits keeps no other from letting go."""
    (thread, actor), task = this_thread(), asyncio.current_task()
    return thread, actor if task is None else task_actor(task, task.get_name())


class LoopInbox:
    """Where events arrive from any thread, for one task of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[WatchEvent] = deque()
        self._waker: asyncio.Future[None] | None = None

    @property
    def waiters(self) -> Hashable:
        """See `Inbox`: all tasks of a loop wait together while it is blocked."""
        return self._loop

    def prove(self, tell: Callable[[], object]) -> None:
        """See `Inbox`."""
        self._loop.call_soon_threadsafe(tell)

    def put(self, event: WatchEvent) -> None:
        """See `Inbox`."""
        self._events.append(event)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._wake)

    async def get(self, timeout: float) -> WatchEvent | None:
        """Return the next event, None if there is none for `timeout` seconds.

        (Not `asyncio.wait_for`: before Python 3.12 it may swallow a cancellation.)
        """
        until = self._loop.time() + timeout
        # In a loop: what wakes may belong to an event that was fetched before the waking came.
        while not self._events and self._loop.time() < until:
            self._waker = self._loop.create_future()
            alarm = self._loop.call_at(until, self._wake)
            try:
                await self._waker
            finally:
                alarm.cancel()
                self._waker = None
        return self._events.popleft() if self._events else None

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)


async def drive_async(steps: Steps[Result], store: AsyncMutexStore) -> Result:
    """Do what the steps want on this event loop; return their result, or raise what they raise.

    A cancellation is not thrown into them: they are closed, and let go of whatever they hold.
    """
    try:
        want = steps.send(None)
        while True:
            try:
                if isinstance(want, Hear):
                    answer: Outcome | WatchEvent | None = await want.inbox.get(want.timeout)
                else:
                    answer = await store.send_async(*want)
            except Exception as error:  # noqa: BLE001 - it is theirs
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()


class AsyncHolding(Holding):
    """A lock that is held by a task."""

    def __init__(self, *args: Any, **how: Any) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(*args, **how)

    def _call(self, on_lost: Callable[[LockLost], object], lost: LockLost) -> None:
        """Call back on the loop, or in a thread when that is over."""

        def call() -> None:
            result = on_lost(lost)
            if inspect.iscoroutine(result):
                task = self._loop.create_task(result)
                _running.add(task)  # a loop alone does not keep its tasks
                task.add_done_callback(_running.discard)

        def call_without_it(lost: LockLost) -> None:
            result = on_lost(lost)
            if inspect.iscoroutine(result):
                asyncio.run(result)

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            super()._call(call_without_it, lost)


_running: set[asyncio.Task[Any]] = set()


class AsyncClusterMutex(Handle, AsyncContextDecorator):
    """A distributed lock that people can see, for asyncio.

        async with AsyncClusterMutex("nightly-report", expected_runtime=300) as m:
            async for item in items:
                await work(item)
                await m.alive()

    Arguments, promises and errors are those of `ClusterMutex`, and so is `setup`. One object may
    be shared by tasks, which then contend for it. Cancelling a task at any `await` leaves no lock
    and no ticket behind: what has to be cleaned up is, in the background, even if the loop ends.
    `on_lost` is called on the event loop and may be a coroutine function.
    """

    _holding_type: type[Holding] = AsyncHolding
    _caller = staticmethod(_this_task)

    # ------------------------------------------------------------ asyncio.Lock

    async def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; wait for it in line unless `blocking` is False.

        Args, returns, errors: see `ClusterMutex.acquire`.
        """
        blocking, deadline = self._limit(blocking, timeout)
        now = Now.read()
        attempt = self._attempt(blocking, now, LoopInbox, asyncio.get_running_loop())
        if scheduler.shared.missing:  # nobody would push, nor tell of a loss
            attempt.store.background.ready()
        try:
            if not await drive_async(attempt.steps(now, deadline), _async(attempt.store)):
                return False
            self._adopt(attempt.holding)
            return True
        except BaseException:
            attempt.let_go()
            raise

    async def release(self) -> None:
        """Give the lock back: what the running task took, or else what this object holds.

        Errors: see `ClusterMutex.release`.
        """
        holding = self._held("release()")
        if not holding.end():
            raise self._not_held("release()")
        try:
            if self._holding is holding:
                self._holding = None
            await drive_async(holding.releasing(), _async(holding.store))
        except BaseException:
            holding.let_go()
            raise

    async def __aenter__(self) -> AsyncClusterMutex:
        if not await self.acquire():
            raise await drive_async(self._timed_out(), _async(self._store()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except ClusterMutexError as failure:
            self._left(failure, error)

    def __call__(self, function: Function) -> Function:
        """Use the mutex as a decorator: each call of the coroutine function holds the lock."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function!r} is no `async def` function: use ClusterMutex for it.")
        return cast(Function, super().__call__(function))

    # ------------------------------------------------------------ signs of life

    async def alive(self, *, force: bool = False) -> None:
        """Say that the work goes on; see `ClusterMutex.alive`."""
        holding = self._held("alive()")
        acquisition = holding.acquisition
        if not force and acquisition.loss is None and monotonic() < acquisition.quiet_until:
            return
        await drive_async(holding.pushing(force=force), _async(holding.store))

    # ------------------------------------------------------------ asking the store

    async def holder(self) -> Holder | None:
        """Ask the store who has the lock now; None: nobody."""
        return held_by(await drive_async(self._reading(), _async(self._store())))

    async def waiters(self) -> list[Ticket]:
        """Ask the store who is in line for the lock; see `ClusterMutex.waiters`."""
        self._need_line()
        seen = await drive_async(self._reading(waiters=True), _async(self._store()))
        return list(seen.waiters)


def _async(store: MutexStore) -> AsyncMutexStore:
    return cast(AsyncMutexStore, store)
