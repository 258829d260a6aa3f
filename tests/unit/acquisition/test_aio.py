"""`AsyncClusterMutex` on a memory store: cancelled at each await."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from enum import Enum
from typing import Any

import pytest

from lockclient import AsyncClusterMutex, AsyncHeldLock, ClusterMutex, LockLost, LockNotHeld
from lockclient.aio import LoopInbox
from lockclient.stores.mutex_store import WatchEvent
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

NAME = "x"


class End(Enum):
    """The ways in which a waiting task ends."""

    AWAY = "cancelled while it waits"
    BACK = "cancelled when what it waits for has come, before it goes on"
    NEVER = "closed without a word, as a task that is left over when its loop is gone"


class Ended:
    """Runs a coroutine up to the `number`-th time that it or its deputy waits, and ends it there.

    It hands what the coroutine waits for on to the task: `asyncio` takes it for the task's own.
    """

    def __init__(self, number: int, how: End) -> None:
        self.number = number
        self.how = how
        self.reached = False
        self._end: Callable[[], object] = bool

    async def run(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._end = work.close if self.how is End.NEVER else task.cancel
        asyncio.get_running_loop().set_task_factory(self._make_task)
        await self._counted(work)

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> Any:
        deputy = work.__name__ == "drive_async"
        return asyncio.Task(self._deputy(work) if deputy else work, loop=loop, **how)

    async def _deputy(self, work: Coroutine[Any, Any, object]) -> object:
        return await self._counted(work)

    @types.coroutine
    def _counted(self, work: Coroutine[Any, Any, object]) -> Generator[Any, None, object]:
        error: BaseException | None = None
        while True:
            try:
                awaited: Any = work.send(None) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            self.number -= 1
            if self.number == 0:
                self.reached = True
                if self.how is End.NEVER:
                    for _ in range(2):  # it may await in a `finally`
                        for left in (work.close, self._end):
                            with suppress(RuntimeError):
                                left()
                    return None
                if self.how is End.AWAY or awaited is None:
                    self._end()
                else:
                    awaited.add_done_callback(lambda _: self._end())
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - it is the coroutine's
                error = thrown
            if self.reached and self.how is End.NEVER:
                return None


Work = Callable[[AsyncClusterMutex], Awaitable[object]]
Beside = Callable[[MemoryStore], Coroutine[Any, Any, None]]


def end_everywhere(how: End, beside: Beside, work: Work) -> int:
    """End the work at each of its awaits in turn; look at what it leaves, when its loop is over."""
    store = MemoryStore()
    lock = store.model.lock(NAME)
    number = 0
    while True:
        number += 1
        mutex, kept = AsyncClusterMutex(NAME, store=store), list[AsyncHeldLock]()
        mutex._held_type = functools.partial(make_kept, kept)  # type: ignore[assignment]
        ended = Ended(number, how)

        async def main(mutex: AsyncClusterMutex = mutex, ended: Ended = ended) -> None:
            other = asyncio.create_task(beside(store))
            await asyncio.sleep(0)
            coroutine = work(mutex)
            assert inspect.iscoroutine(coroutine)
            try:
                await ended.run(coroutine)
            finally:
                over.set()
                await other

        over.clear()
        with suppress(asyncio.CancelledError):
            asyncio.run(main())
        for held in kept:
            with suppress(LockNotHeld):
                asyncio.run(held.release())
            with pytest.raises(LockNotHeld):
                asyncio.run(held.release())
        wait_until(
            lambda: lock.holder is None and not lock.tickets and not store.watching(),
            timeout=10,
            what=f"the end of all traces of one {how.value} at its await {number}",
        )
        if not ended.reached:
            return number - 1


def make_kept(kept: list[AsyncHeldLock], *how: Any) -> AsyncHeldLock:
    """Make a held lock that is not dropped when its task is gone."""
    kept.append(AsyncHeldLock(*how))
    return kept[-1]


over = threading.Event()
"""Set when the work is over: asked by tasks of the same loop, never waited for."""


async def nobody(store: MemoryStore) -> None:
    """Nobody else wants the lock."""


async def somebody(store: MemoryStore) -> None:
    """Another client has the lock all the time."""
    with ClusterMutex(NAME, store=store):
        while not over.is_set():
            await asyncio.sleep(0)


async def somebody_for_a_moment(store: MemoryStore) -> None:
    """Another client has the lock until there is a waiter."""
    with ClusterMutex(NAME, store=store):
        while not over.is_set() and not store.model.lock(NAME).tickets:
            await asyncio.sleep(0)


async def acquire(mutex: AsyncClusterMutex) -> None:
    assert await mutex.acquire()


async def acquire_in_vain(mutex: AsyncClusterMutex) -> None:
    assert not await mutex.acquire(timeout=0.02)


async def live(mutex: AsyncClusterMutex) -> None:
    async with mutex:
        await mutex.alive(force=True)
        await asyncio.sleep(0)
        await mutex.holder()


async def acquire_and_release(mutex: AsyncClusterMutex) -> None:
    await mutex.acquire()
    try:
        await mutex.waiters()
    finally:
        await mutex.release()


async def limited(mutex: AsyncClusterMutex) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(mutex.acquire(), 0.02)


@pytest.fixture
def _quiet() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("how", End)
@pytest.mark.parametrize(
    ("beside", "work", "awaits"),
    [
        (nobody, acquire, 2),
        (nobody, acquire_and_release, 6),
        (nobody, live, 9),
        (somebody_for_a_moment, acquire, 6),
        (somebody_for_a_moment, live, 12),
        (somebody, acquire_in_vain, 3),
        (somebody, limited, 1),
    ],
)
def test_an_end_at_any_await_leaves_nothing(
    how: End, beside: Beside, work: Work, awaits: int
) -> None:
    assert end_everywhere(how, beside, work) >= awaits


def test_a_late_waking_is_no_event() -> None:
    async def main() -> LoopInbox:
        inbox = LoopInbox()
        inbox.put(WatchEvent(1))
        assert await inbox.get(10) == WatchEvent(1)
        asyncio.get_running_loop().call_later(0.05, inbox.put, WatchEvent(2))
        assert await inbox.get(10) == WatchEvent(2)
        assert await inbox.get(0.01) is None
        return inbox

    asyncio.run(main()).put(WatchEvent(3))


async def lose(store: MemoryStore, mutex: AsyncClusterMutex) -> None:
    """Have the lock removed, notice, and release it: else it would stay unreleased."""
    await mutex.acquire()
    store.model.remove_holder(NAME)
    with pytest.raises(LockLost):
        await mutex.alive(force=True)
    with pytest.raises(LockLost):
        await mutex.release()


class TestOnLost:
    def test_on_lost_runs_on_the_loop(self) -> None:
        told: list[object] = []
        reported: list[dict[str, Any]] = []

        async def on_lost(lost: LockLost) -> None:
            await asyncio.sleep(0.01)
            told.extend((asyncio.get_running_loop(), lost.name))

        def fail(_: LockLost) -> None:
            raise ValueError("mine")

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reported.append(context))
            for each in (on_lost, fail):
                store = MemoryStore()
                await lose(store, AsyncClusterMutex(NAME, store=store, on_lost=each))
            while not told or not reported:
                await asyncio.sleep(0.01)
            assert told == [loop, NAME]

        asyncio.run(asyncio.wait_for(main(), 20))
        assert str(reported[0]["exception"]) == "mine"

    @pytest.mark.parametrize("asynchronous", [True, False])
    def test_on_lost_is_called_after_its_loop_has_ended(self, asynchronous: bool) -> None:
        told: list[str | None] = []

        async def later(lost: LockLost) -> None:
            await asyncio.sleep(0)
            told.append(lost.name)

        def at_once(lost: LockLost) -> None:
            told.append(lost.name)

        mutex = AsyncClusterMutex(
            NAME,
            store=MemoryStore(),
            expected_runtime=0.1,
            auto_unlock_after=0.2,
            on_lost=later if asynchronous else at_once,
        )
        held = asyncio.run(mutex.acquire())
        wait_until(lambda: told == [NAME], what="on_lost")
        assert held is not None
        assert not held.healthy
        assert not mutex.healthy

    def test_a_task_started_by_on_lost_may_acquire_again(
        self,
    ) -> None:
        store = MemoryStore()

        async def main() -> None:
            led = asyncio.get_running_loop().create_future()
            released = asyncio.Event()

            async def lead() -> None:
                await released.wait()
                async with mutex as held:
                    led.set_result(await asyncio.create_task(sees()) == (True, held.uuid))

            async def sees() -> tuple[bool, str]:
                return mutex.healthy, mutex.uuid

            async def on_lost(_lost: LockLost) -> None:
                tasks.append(asyncio.create_task(lead()))

            tasks: list[asyncio.Task[None]] = []
            mutex = AsyncClusterMutex(NAME, store=store, on_lost=on_lost)
            await asyncio.create_task(lose(store, mutex))
            released.set()
            assert await asyncio.wait_for(led, 30)
            await asyncio.gather(*tasks)

        asyncio.run(main())


def test_only_coroutine_functions_are_decorated() -> None:
    """Any other would run when nobody holds the lock."""
    mutex: Any = AsyncClusterMutex(NAME, store=MemoryStore())
    with pytest.raises(TypeError, match="use ClusterMutex for it"):
        mutex(lambda: None)


def test_alive_in_a_hot_loop_asks_nothing() -> None:
    """Within a second of the last push it only looks at a flag, and does not even suspend."""

    async def main() -> None:
        store = MemoryStore()
        async with AsyncClusterMutex(NAME, store=store) as mutex:
            asked = len(store.asked)
            for _ in range(1000):
                with pytest.raises(StopIteration):
                    mutex.alive().send(None)
            assert len(store.asked) == asked

    asyncio.run(main())
