"""Held locks: garbage-collected ones, their blocks, exits elsewhere, callbacks."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from lockclient import (
    AsyncClusterMutex,
    AsyncHeldLock,
    ClusterMutex,
    HeldLock,
    LockLost,
    LockNotHeld,
)
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

NAME = "x"
NOT_LOST: Any = {"expected_runtime": 0.4, "auto_unlock_after": 900}
"""Pushed often by `keepalive`, and not lost where a machine stands still."""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


def taken(store: MemoryStore, name: str = NAME) -> str | None:
    return store.model.lock(name).uuid()


class TestOneAcquisition:
    def test_a_held_lock_never_means_another_acquisition(self, store: MemoryStore) -> None:
        mutex = ClusterMutex(NAME, store=store)
        lost = mutex.acquire()
        assert lost is not None
        store.model.remove_holder(NAME)
        released = mutex.acquire()
        assert released is not None
        released.release()
        with mutex as held:
            with pytest.raises(LockLost):
                lost.alive(force=True)
            losses = []
            why = f"'x' was removed from this holder. It is now held by this process ({held.uuid})"
            for call in (lost.alive, lost.check_health, lost.release, lost.release):
                with pytest.raises(LockLost, match=re.escape(why)) as caught:
                    call()
                losses.append(caught.value)
            assert len(set(map(id, losses))) == 4, "each with a traceback of its own"
            for call in (released.alive, released.check_health, released.release):
                with pytest.raises(LockNotHeld, match="was released before"):
                    call()
            assert (lost.healthy, released.healthy, held.healthy) == (False, False, True)
            assert lost.uuid != held.uuid
            assert taken(store) == held.uuid

    def test_a_block_of_its_own(self, store: MemoryStore) -> None:
        """Once, and not where a block releases it already."""
        if held := ClusterMutex(NAME, store=store).acquire(False):
            with held as same:
                assert same is held
                with pytest.raises(RuntimeError, match="in a block already"), held:
                    pytest.fail("it has one")
            assert taken(store) is None
            with pytest.raises(LockNotHeld), held:
                pytest.fail("it was released")
        with (
            ClusterMutex(NAME, store=store) as held,
            pytest.raises(RuntimeError, match="in a block already"),
            held,
        ):
            pytest.fail("its block releases it")

    def test_a_refused_release_stops_no_heartbeats(self, store: MemoryStore) -> None:
        mutex = ClusterMutex(NAME, store=store, keepalive=True, **NOT_LOST)
        lost = in_thread(mutex.acquire)
        store.model.remove_holder(NAME)
        with pytest.raises(LockLost):
            lost.alive(force=True)
        with mutex as held:
            with pytest.raises(LockNotHeld, match="Several acquisitions"):
                in_thread(mutex.release)
            assert not in_thread(lambda: mutex.healthy)
            assert in_thread(mutex.locked)
            first = held.record.alive_at
            assert first is not None
            wait_until(lambda: (held.record.alive_at or 0) > first + 0.1, what="pushes")

    def test_a_manual_exit_ends_only_the_acquisition_of_its_enter(self, store: MemoryStore) -> None:
        mutex = ClusterMutex(NAME, store=store)
        mutex.__enter__()
        mutex.release()
        held = mutex.acquire()
        assert held is not None
        mutex.__exit__(None, None, None)
        assert taken(store) == held.uuid
        held.release()

    @pytest.mark.parametrize("calls", [1, 2])
    def test_a_late_release_inside_on_lost_ends_nothing(
        self, store: MemoryStore, calls: int
    ) -> None:
        """The caller has acquired again meanwhile, so the mutex has forgotten the lost lock."""
        begun, acquired = threading.Event(), threading.Event()
        raised: list[type[BaseException]] = []

        def on_lost(_: LockLost) -> None:
            begun.set()
            acquired.wait(60)
            for _turn in range(calls):
                try:
                    mutex.release()
                except (LockLost, LockNotHeld) as error:
                    raised.append(type(error))

        mutex = ClusterMutex(NAME, store=store, on_lost=on_lost)
        first = mutex.acquire()  # the program keeps it
        store.model.remove_holder(NAME)
        begun.wait(60)
        held = mutex.acquire()
        assert first is not None
        assert held is not None
        acquired.set()
        wait_until(lambda: len(raised) == calls, what="the refusals")
        held.check_health()
        held.release()

    def test_release_inside_on_lost_ends_nothing(self, store: MemoryStore) -> None:
        """The next one's lock is not the callback's."""
        told: list[type[Exception]] = []
        go_on = threading.Event()

        def on_lost(_: LockLost) -> None:
            go_on.wait(60)
            try:
                mutex.release()
            except LockLost as error:
                told.append(type(error))

        mutex = ClusterMutex(NAME, store=store, on_lost=on_lost)
        first = mutex.acquire()
        assert first is not None
        store.model.remove_holder(NAME)
        next_one = mutex.acquire()
        assert next_one is not None
        go_on.set()
        wait_until(lambda: told == [LockLost], what="the callback")
        assert taken(store) == next_one.uuid
        next_one.release()


class TestAsyncio:
    def test_the_caller_is_fixed_when_the_method_is_called(self, store: MemoryStore) -> None:
        mutex = AsyncClusterMutex(NAME, store=store)

        async def main() -> None:
            for run in (
                lambda it: it,
                lambda it: asyncio.wait_for(it, 5),
                asyncio.create_task,
                asyncio.gather,
                lambda it: asyncio.shield(asyncio.ensure_future(it)),
            ):
                await run(mutex.acquire())
                assert mutex.healthy
                await run(mutex.alive(force=True))
                await run(mutex.release())
                assert taken(store) is None

        asyncio.run(main())

    @pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
    def test_another_task_may_release_what_an_ended_task_acquired(
        self, store: MemoryStore, kind: Any
    ) -> None:
        mutex = kind(NAME, store=store)

        async def cell(call: Callable[[], Any]) -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        async def main() -> None:
            held = await asyncio.create_task(cell(mutex.acquire))
            await end_of_last_task()
            assert mutex.locked()
            assert mutex.healthy
            assert mutex.uuid == held.uuid
            await asyncio.create_task(cell(lambda: mutex.alive(force=True)))
            await asyncio.create_task(cell(mutex.release))
            assert taken(store) is None

        asyncio.run(main())

    @pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
    def test_a_block_stays_open_when_the_task_that_began_it_has_ended(
        self, store: MemoryStore, kind: Any
    ) -> None:
        mutex = kind(NAME, store=store)

        async def fixture() -> AsyncIterator[None]:
            if kind is AsyncClusterMutex:
                async with mutex:
                    yield
            else:
                with mutex:
                    yield

        async def step(fixture: AsyncIterator[None]) -> None:
            await anext(fixture, None)

        async def main() -> None:
            opened = fixture()
            await asyncio.create_task(step(opened))
            await end_of_last_task()
            assert mutex.locked()
            assert mutex.uuid == taken(store)
            await asyncio.create_task(step(opened))
            assert taken(store) is None

        asyncio.run(main())

    def test_on_lost_of_an_ended_task_means_its_lock(self, store: MemoryStore) -> None:
        async def main() -> None:
            told: asyncio.Future[type[Exception] | None] = asyncio.Future()
            go_on = asyncio.Event()

            async def on_lost(_: LockLost) -> None:
                await go_on.wait()
                try:
                    await mutex.release()
                except LockLost as error:
                    told.set_result(type(error))
                else:
                    told.set_result(None)

            mutex = AsyncClusterMutex(NAME, store=store, on_lost=on_lost)

            async def job() -> AsyncHeldLock | None:
                return await mutex.acquire()

            lost = await asyncio.create_task(job())
            assert lost is not None
            await end_of_last_task()
            store.model.remove_holder(NAME)
            async with mutex as held:
                go_on.set()
                assert await asyncio.wait_for(told, 60) is LockLost
                assert taken(store) == held.uuid

        asyncio.run(main())

    def test_the_lock_of_an_ended_task_is_forgotten(
        self, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        mutex = AsyncClusterMutex(NAME, store=store)

        async def job() -> None:
            await mutex.acquire()

        async def main() -> None:
            await asyncio.create_task(job())
            await end_of_last_task()
            assert not mutex.locked()
            with pytest.raises(LockNotHeld, match="is not held by this object"):
                await mutex.release()

        asyncio.run(main())
        wait_until(
            lambda: "was garbage-collected without being released" in caplog.text, what="a warning"
        )


async def end_of_last_task() -> None:
    """Return when the last awaited task is garbage-collected."""
    await asyncio.sleep(0)  # the loop itself refers to it until then
    gc.collect()


class TestGarbageCollected:
    @pytest.mark.parametrize("keeps", ["mutex", "nothing"])
    def test_a_garbage_collected_lock_gets_no_more_heartbeats(
        self, store: MemoryStore, keeps: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        mutex: Any = ClusterMutex(NAME, store=store, keepalive=True, **NOT_LOST)
        uuid = mutex.acquire().uuid
        if keeps == "nothing":
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del mutex
                gc.collect()
                wait_until(lambda: caught, what="the warning")
            assert caught[0].category is ResourceWarning
            assert caught[0].filename == __file__
            assert caplog.text.count("was garbage-collected without being released") == 1
            asked = len(store.asked)
            time.sleep(0.3)
            assert len(store.asked) <= asked + 1, "but for a push that was under way"
            assert taken(store) == uuid
        else:
            gc.collect()
            first = mutex.record.alive_at
            wait_until(lambda: mutex.record.alive_at > first + 0.1, what="pushes")
            mutex.release()
            assert "dropped" not in caplog.text

    def test_a_finalizer_may_release_its_lock(
        self, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Job:
            def __init__(self) -> None:
                self.mutex = ClusterMutex(NAME, store=store)
                self.mutex.acquire()
                self.itself = self

            def __del__(self) -> None:
                self.mutex.release()

        Job()
        gc.collect()
        assert taken(store) is None
        assert "dropped" not in caplog.text

    def test_ended_acquisitions_are_forgotten(self, store: MemoryStore) -> None:
        mutex = ClusterMutex(NAME, store=store)

        def lose() -> None:
            mutex.acquire()
            store.model.remove_holder(NAME)

        for _ in range(40):
            thread = threading.Thread(target=lose)
            thread.start()
            thread.join()
        wait_until(lambda: not mutex.locked(), what="the losses to be noticed")
        with mutex:
            pass
        wait_until(lambda: len(unfinished()) <= 18, what="the bound")
        with pytest.raises(LockNotHeld, match="Several acquisitions"):
            mutex.alive()


def unfinished() -> list[HeldLock]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, HeldLock)]


class TestLost:
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError, None])
    def test_a_loss_is_raised_once_beside_other_exceptions(
        self, store: MemoryStore, kind: type[BaseException] | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        losses: list[LockLost] = []

        @ClusterMutex(NAME, store=store, on_lost=losses.append)
        def lose_it() -> None:
            store.model.remove_holder(NAME)
            if kind is not None:
                raise kind

        passes = kind is not None and not issubclass(kind, Exception)
        with pytest.raises(kind if passes and kind else LockLost):
            lose_it()
        wait_until(lambda: losses, what="on_lost")
        assert len([each for each in caplog.records if each.levelno == logging.ERROR]) == 1
        assert len(losses) == 1

    def test_no_chain_of_exceptions_bites_its_tail(self, store: MemoryStore) -> None:
        """The block caught the loss and raised something else: following the causes ends."""

        def block() -> None:
            with ClusterMutex(NAME, store=store) as held:
                store.model.remove_holder(NAME)
                try:
                    held.alive(force=True)
                except LockLost as loss:
                    raise RuntimeError("the work is spoilt") from loss

        with pytest.raises(LockLost) as caught:
            block()
        seen: list[BaseException] = []
        error: BaseException | None = caught.value
        while error is not None:
            assert error not in seen
            seen.append(error)
            error = error.__cause__ or error.__context__
        # The runner itself may be handling an exception of its own, which then ends the chain.
        assert [type(met) for met in seen[:3]] == [LockLost, RuntimeError, LockLost]


class Later:
    async def __call__(self) -> None:
        pytest.fail("it must not run")


def unprotected() -> Callable[[], Any]:
    async def body() -> None:
        pytest.fail("it must not run")

    return lambda: body()


def generator() -> Iterator[None]:
    yield


async def asynchronous() -> AsyncIterator[None]:
    yield


class Awaitable:
    def __await__(self) -> Iterator[None]:
        return iter(())


class TestDecorator:
    @pytest.mark.parametrize("function", [generator, asynchronous, unprotected(), Awaitable])
    def test_a_deferred_result_is_refused(
        self, store: MemoryStore, function: Callable[[], Any]
    ) -> None:
        mutex, tasks = ClusterMutex(NAME, store=store), AsyncClusterMutex(NAME, store=store)

        async def returns() -> Any:
            return function()

        for decorate in (mutex, mutex.skip_if_held):
            with pytest.raises(TypeError, match="runs after its call"):
                decorate(lambda: function())()
        for decorate_async in (tasks, tasks.skip_if_held):
            with pytest.raises(TypeError, match="runs after its call"):
                asyncio.run(decorate_async(returns)())
        assert taken(store) is None

    def test_misplaced_decorators_are_named(self, store: MemoryStore) -> None:
        mutex: Any
        for mutex in (ClusterMutex(NAME, store=store), AsyncClusterMutex(NAME, store=store)):
            for decorate in (mutex, mutex.skip_if_held):
                with pytest.raises(TypeError, match="below `@classmethod`"):
                    decorate(classmethod(lambda _: None))
                with pytest.raises(TypeError, match="runs after its call"):
                    decorate(asynchronous)

    def test_functions_that_run_after_their_call_are_refused(self, store: MemoryStore) -> None:
        mutex = ClusterMutex(NAME, store=store)

        async def coroutine() -> None:
            pytest.fail("it must not run")

        for function in (Later(), coroutine, generator, asynchronous):
            with pytest.raises(TypeError, match="use `with` inside it"):
                mutex(function)
        with pytest.raises(TypeError, match="use `with` inside it"):
            mutex(unprotected())()
        assert taken(store) is None


def test_a_negative_timeout_is_refused(store: MemoryStore) -> None:
    mutex = ClusterMutex(NAME, store=store, timeout=0)
    with pytest.raises(ValueError, match="non-negative"):
        mutex.acquire(timeout=timedelta(seconds=-1))
    with mutex, ThreadPoolExecutor(1) as pool:
        assert mutex.acquire() is None
        waiting = pool.submit(mutex.acquire, timeout=None)
        wait_until(lambda: len(mutex.waiters()) == 1, what="a waiter")
        mutex.release()
        held = waiting.result(60)
    assert held is not None
    held.release()


def test_common_mistakes_say_what_to_use(store: MemoryStore) -> None:
    async def wrong() -> None:
        async with ClusterMutex(NAME, store=store):  # type: ignore[attr-defined]
            pytest.fail("it is for threads")

    with pytest.raises(TypeError, match="use AsyncClusterMutex for `async with`"):
        asyncio.run(wrong())
    with pytest.raises(TypeError, match="use ClusterMutex for `with`"), AsyncClusterMutex(NAME):  # type: ignore[attr-defined]
        pytest.fail("it is for tasks")
    with pytest.raises(RuntimeError, match="is for asyncio"):  # trio's loop, say
        AsyncClusterMutex(NAME, store=store).acquire().send(None)
    with pytest.raises(TypeError, match=r"^ClusterMutex\.__init__\(\) got an unexpected"):
        ClusterMutex(NAME, timout=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^AsyncClusterMutex\.__init__\(\) got an unexpected"):
        AsyncClusterMutex(NAME, timout=3)  # type: ignore[call-arg]


def test_an_import_without_fork_names_linux() -> None:
    program = "import os; del os.fork, os.register_at_fork; import lockclient"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: ClusterMutex needs Linux" in done.stderr


def test_keepalive_may_be_limited(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    """By a duration, after which only `alive()` pushes."""
    limit = timedelta(seconds=0.3)
    with ClusterMutex(NAME, store=store, expected_runtime="200s", keepalive=limit):
        wait_until(lambda: "the background stops pushing" in caplog.text, what="the end of it")


@pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
def test_a_lock_kept_alive_beyond_its_thread_is_warned_about_once(
    kind: Any, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread of a pool lives on between two jobs: no warning."""
    mutex = kind(NAME, store=store, keepalive=True, **NOT_LOST)

    def acquire() -> Any:
        held = mutex.acquire()
        return asyncio.run(held) if asyncio.iscoroutine(held) else held

    def wait_for_pushes() -> None:
        pushed = held.record.alive_at
        wait_until(lambda: held.record.alive_at > pushed + 0.2, what="pushes")

    def warnings_of_it() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "has ended" in record.getMessage()]

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(acquire).result(60)
        wait_for_pushes()
        assert not warnings_of_it()
    wait_until(warnings_of_it, what="a warning")
    wait_for_pushes()
    (record,) = warnings_of_it()
    assert vars(record)["lock"] == NAME
    store.model.remove_holder(NAME)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
def test_mutexes_and_held_locks_can_not_be_copied(
    store: MemoryStore, kind: type[ClusterMutex], how: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match="make another one with the same name, 'x'"):
        how(kind(NAME, store=store))


@pytest.mark.parametrize("kind", ["thread", "callback", "coroutine"])
def test_a_failing_on_lost_is_logged_with_the_name_of_the_lock(
    kind: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: LockLost) -> None:
        raise RuntimeError("a bug")

    async def fails_later(lost: LockLost) -> None:
        fails(lost)

    async def main() -> None:
        on_lost: Any = fails if kind == "callback" else fails_later
        held = await AsyncClusterMutex(NAME, store=store, on_lost=on_lost).acquire()
        assert held is not None
        store.model.remove_holder(NAME)
        with pytest.raises(LockLost):
            await held.alive(force=True)
        await asyncio.sleep(0.5)

    if kind == "thread":
        held = ClusterMutex(NAME, store=store, on_lost=fails).acquire()
        assert held is not None
        store.model.remove_holder(NAME)
        with pytest.raises(LockLost):
            held.alive(force=True)
    else:
        asyncio.run(main())

    def logged() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "on_lost of" in record.getMessage()]

    wait_until(logged, what="the record")
    (record,) = logged()
    assert vars(record)["lock"] == NAME
    assert record.exc_info is not None
