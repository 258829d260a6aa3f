"""`AsyncClusterMutex`: `ClusterMutex` for asyncio; an event loop drives the steps of `acquisition`.

The event loop that awaits a request sends it, over grpc.aio. Background threads watch keys, renew
the leases of tickets, detect losses and clean up, so a blocked or closed loop stops none of that.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import suppress
from functools import partial, update_wrapper
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

from lockclient.acquisition.base_mutex import BaseMutex, Named, held_by, reading, require_queue
from lockclient.acquisition.decorator import holding_async
from lockclient.acquisition.heartbeat_and_loss import Holding
from lockclient.acquisition.held_lock import BaseHeldLock, Block, OnLost
from lockclient.acquisition.shared_mutex import (
    CallerLocks,
    caller_locks,
    for_on_lost,
    task_actor,
    this_thread,
)
from lockclient.acquisition.thread_driver import NextEvent, Result, Steps
from lockclient.acquisition.with_statement import LEFT, Exit, Statement, entering
from lockclient.default_store import defaults
from lockclient.errors import ClusterMutexError, LockLost
from lockclient.model.backtrace import capture
from lockclient.model.clocks import Duration, require_timeout
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.mutex_store import AsyncMutexStore, MutexStore, WatchEvent
from lockclient.stores.outcomes import Outcome
from lockclient.threads import scheduler
from lockclient.threads.reentrancy import AwaitInside

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
Params = ParamSpec("Params")


def _this_task() -> tuple[str, str]:
    """Return the thread's name and the running task's actor: all tasks of a loop share a thread."""
    (thread, actor), task = this_thread(), asyncio.current_task()
    return thread, actor if task is None else task_actor(task)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "AsyncClusterMutex is for asyncio, which runs no event loop here: elsewhere, as in "
            "trio, use ClusterMutex in a thread."
        ) from None


class LoopInbox:
    """The inbox of a task of the running event loop; any thread may put events into it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[WatchEvent] = deque()
        self._waker: asyncio.Future[None] | None = None

    @property
    def waiter_group(self) -> Hashable:
        """See `Inbox`: a blocked loop stops all of its tasks."""
        return self._loop

    def confirm(self, callback: Callable[[], object]) -> None:
        """See `Inbox`."""
        self._loop.call_soon_threadsafe(callback)

    def put(self, event: WatchEvent) -> None:
        """See `Inbox`."""
        self._events.append(event)
        with suppress(RuntimeError):  # the loop is closed: no task waits
            self._loop.call_soon_threadsafe(self._wake)

    async def get(self, timeout: float) -> WatchEvent | None:
        """Return the next event, None if there is none for `timeout` seconds.

        (Not `asyncio.wait_for`: before Python 3.12 it may swallow a cancellation.)
        """
        until = self._loop.time() + timeout
        # In a loop: a waking may belong to an event that was fetched before it came.
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


async def _drive_steps(steps: Steps[Result], store: AsyncMutexStore) -> Result:
    """Drive the steps, see `drive_async`; a cancellation closes them, and they withdraw."""
    observer = defaults.observer
    try:
        want = steps.send(None)
        while True:
            try:
                if isinstance(want, NextEvent):
                    answer: Outcome | WatchEvent | None = await want.inbox.get(want.timeout)
                else:
                    if observer is None:
                        answer = await store.send_async(*want)
                    else:
                        answer = await observer.send_async(store, *want)
                    if store.background.failed:
                        store.background.retry()
            except Exception as error:  # noqa: BLE001 - it is the steps'
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        steps.close()


_running: set[asyncio.Task[Any]] = set()
"""Coroutines of `on_lost`, and deputies: a loop refers to its tasks weakly."""


async def _by_deputy(work: Coroutine[Any, Any, Result]) -> Result:
    """Await an acquisition in a deputy: a task that continues if the calling one is cancelled.

    A request that is cancelled in flight may take the lock at any time, unless a tombstone disarms
    it. Its answer probably arrives soon, and then no tombstone is needed. So the deputy awaits the
    answer, and the cancelled caller calls `Attempt.withdraw_in_background`.

    If the loop ends first, it either cancels the deputy, which closes the steps, or never runs the
    deputy again; then the scheduler's thread finds no answer. In both cases a tombstone is written.
    """
    loop = asyncio.get_running_loop()
    ended, deputy = loop.create_future(), loop.create_task(work)
    _running.add(deputy)

    def end(deputy: asyncio.Task[Result]) -> None:
        _running.discard(deputy)
        if not ended.done():
            ended.set_result(None)
        elif not deputy.cancelled():
            deputy.exception()  # no caller is left to fetch it, and asyncio would log it

    deputy.add_done_callback(end)
    await ended
    return deputy.result()


class AsksStoreAsync:
    """The methods that read the lock's holder and its waiters from the store."""

    __slots__ = ()

    async def holder(self: Named) -> Holder | None:
        """Read the lock; return its holder, or None if it is free."""
        return held_by(await drive_async(reading(self.name), self._store()))

    async def waiters(self: Named) -> list[Ticket]:
        """Ask the store for the lock's queue; see `HeldLock.waiters`."""
        store = self._store()
        require_queue(store)
        return list((await drive_async(reading(self.name, waiters=True), store)).waiters)


class AsyncHeldLock(BaseHeldLock, AsksStoreAsync):
    """One acquisition of a lock by `AsyncClusterMutex`; see `HeldLock`.

    Any task or callback may use it, also after the task that acquired it has ended. Refer to it as
    long as that: from the end of the task on, the mutex refers to it weakly.
    """

    __slots__ = ("_loop",)

    def __init__(self, holding: Holding, on_lost: OnLost | None, block: Block) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(holding, on_lost, block)

    async def alive(self, *, force: bool = False) -> None:
        """Report progress; see `HeldLock.alive`."""
        if force or self._push_due():
            self._require_held("alive()")
            await drive_async(self._holding.pushing(force=force), self._holding.store)

    async def release(self, timeout: Duration | None = None) -> None:
        """Release the lock; see `HeldLock.release`."""
        holding, seconds = self._holding, require_timeout("timeout", timeout)
        if not holding.claim_release():
            self._require_held("release()")
            return
        try:
            await drive_async(holding.releasing(seconds), holding.store)
        except BaseException:
            holding.release_in_background()
            raise

    async def __aenter__(self) -> AsyncHeldLock:
        self._enter(None)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Release it at the end of its block, unless the block has released it."""
        try:
            if not self._holding.ended or self._holding.is_inherited:
                await self.release()
        except ClusterMutexError as failure:
            self._raise_exit_error(failure, error)

    def _call(self, on_lost: OnLost, lost: LockLost) -> None:
        """Call `on_lost` on the loop, or in this thread if the loop is closed."""

        def call(run: Callable[[Coroutine[Any, Any, object]], object]) -> None:
            result = on_lost(lost)
            if inspect.iscoroutine(result):
                run(result)

        try:
            self._loop.call_soon_threadsafe(for_on_lost(self, partial(call, self._run)))
        except RuntimeError:
            for_on_lost(self, partial(call, asyncio.run))()

    def _run(self, on_lost: Coroutine[Any, Any, object]) -> None:
        async def logged() -> None:
            try:
                await on_lost
            except Exception:
                self._log_failed_call()
                raise

        task = self._loop.create_task(logged())
        _running.add(task)
        task.add_done_callback(_running.discard)


class AsyncClusterMutex(BaseMutex[AsyncHeldLock], AsksStoreAsync):
    """A distributed lock that people can see, for asyncio.

        async with AsyncClusterMutex("nightly-report", expected_runtime=300) as held:
            async for item in items:
                await work(item)
                await held.alive()

    Arguments, promises and errors are those of `ClusterMutex`, and so is `setup`. Tasks may share
    one object, and then contend for it. The caller of a method is the task that calls it, not the
    one that awaits it: `wait_for`, `gather` and `create_task` change nothing.
    Cancelling a task at any `await` leaves no lock and no ticket behind: the background cleans up,
    even if the loop ends. `on_lost` is called on the event loop and may be a coroutine function.
    """

    _held_type = AsyncHeldLock
    _has_loop = True
    _caller = staticmethod(_this_task)

    # ------------------------------------------------------------ asyncio.Lock

    def acquire(
        self, blocking: bool = True, timeout: Duration | None = -1
    ) -> Coroutine[Any, Any, AsyncHeldLock | None]:
        """Acquire the lock, see `ClusterMutex.acquire`."""
        return self._acquire(self._limit(blocking, timeout), *self._from_here(), block=None)

    def _from_here(self) -> tuple[CallerLocks, str | None]:
        """Return the locks and the stack of the caller, not of the task that awaits the result."""
        return caller_locks(), capture() if self._capture_backtrace else None

    async def _acquire(
        self, limit: float, locks: CallerLocks, backtrace: str | None, *, block: Block
    ) -> AsyncHeldLock | None:
        attempt = self._attempt(limit, LoopInbox, _running_loop(), backtrace)
        if scheduler.shared.missing:  # no thread would push, or call `on_lost`
            attempt.store.background.ready()
        try:
            if not await _by_deputy(drive_async(attempt.steps(), attempt.store)):
                return None
            return self._adopt(attempt.holding, locks, block)
        except BaseException:
            attempt.withdraw_in_background()
            raise

    def release(self, timeout: Duration | None = None) -> Coroutine[Any, Any, None]:
        """Release what the calling task acquired; see `ClusterMutex.release`."""
        return self._call_on_own("release()", lambda held: held.release(timeout))

    def alive(self, *, force: bool = False) -> Coroutine[Any, Any, None]:
        """Report progress of what the calling task acquired; see `HeldLock.alive`."""
        return self._call_on_own("alive()", lambda held: held.alive(force=force))

    def _call_on_own(
        self, what: str, call: Callable[[AsyncHeldLock], Coroutine[Any, Any, None]]
    ) -> Coroutine[Any, Any, None]:
        """Find the caller's acquisition now; awaiting the result raises a refusal."""
        try:
            return call(self._acquisitions.require_own(what))
        except ClusterMutexError as refusal:
            return _settled(refusal)

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHeldLock]:
        return self._enter(entering(self), *self._from_here())

    async def _enter(
        self, statement: Statement | None, locks: CallerLocks, backtrace: str | None
    ) -> AsyncHeldLock:
        block: Block = "manual" if statement is None else "statement"
        held = await self._acquire(self._timeout, locks, backtrace, block=block)
        if held is None:
            raise await drive_async(self._timeout_error(), self._store())
        if statement is not None:
            statement.held = held
        return held

    def _leave(
        self,
        slot: list[Statement],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Coroutine[Any, Any, None]:
        """Release what the statement acquired, and nothing else."""
        entered, slot[:] = slot[0], LEFT  # from now on the coroutine releases it
        if entered.is_placeholder:  # called a second time
            return _settled()
        try:
            held = entered.held or self._acquisitions.manual_block()
        except ClusterMutexError as refusal:
            return _settled(refusal)
        if isinstance(held, AsyncHeldLock):
            return held.__aexit__(kind, error, trace)
        return _settled()

    __aexit__ = Exit(_leave)

    def __call__(self, function: Function) -> Function:
        """Use the mutex as a decorator: each call of the coroutine function holds the lock."""
        return holding_async(self, function)  # type: ignore[no-any-return]

    def skip_if_held(
        self, function: Callable[Params, Coroutine[Any, Any, Result]]
    ) -> Callable[Params, Coroutine[Any, Any, Result | None]]:
        """Decorate a job; see `ClusterMutex.skip_if_held`."""
        return holding_async(self, function, skip=True)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            """Raise TypeError."""
            raise TypeError(
                "An AsyncClusterMutex is for `async with`: use ClusterMutex for `with`."
            )

        __exit__ = __enter__


if not TYPE_CHECKING:  # a copy with its own name, for the error of an unknown keyword
    _init = BaseMutex.__init__
    AsyncClusterMutex.__init__ = update_wrapper(
        FunctionType(_init.__code__, _init.__globals__, argdefs=_init.__defaults__), _init
    )
    AsyncClusterMutex.__init__.__kwdefaults__ = _init.__kwdefaults__
    AsyncClusterMutex.__init__.__qualname__ = "AsyncClusterMutex.__init__"


async def _settled(refusal: ClusterMutexError | None = None) -> None:
    if refusal is not None:
        raise refusal


async def drive_async(steps: Steps[Result], store: MutexStore) -> Result:
    """Drive steps on this event loop; return their result, or raise their error."""
    return await AwaitInside(_drive_steps(steps, cast(AsyncMutexStore, store)))
