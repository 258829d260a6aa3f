"""Calls on a shared mutex mean the caller's newest acquisition, else the only one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import count
from typing import Any
from weakref import ref

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, LockNotHeld
from lockclient.acquisition.heartbeat_and_loss import Holding, held_by_process
from lockclient.acquisition.thread_driver import drive
from tests.contract.drivers import running_loop
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

NAME = "x"
OWNERS = 4
GENEROUS = 60.0

Asked = tuple[Callable[[], Any], "Way", "Future[Any]"]


class Way(Enum):
    """An owner's way to make a call; by the last three a new caller makes it, which then ends."""

    ITSELF = auto()
    COPIED_CONTEXT = auto()
    AWAITED_BY_TASK = auto()
    """The owner makes the call, and a new task awaits the result, as in `asyncio.wait_for`."""
    NEW_TASK = auto()
    NEW_THREAD = auto()
    RESULT_OF_TASK = auto()
    """The new task returns what is to be awaited, and ends; then the owner awaits it."""


WAYS = st.sampled_from(Way)


def in_new_thread(work: Callable[[], Any]) -> Any:
    """Call it as `asyncio.to_thread` does, but in a thread that is new and ends."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(copy_context().run, work).result(GENEROUS)


async def settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


class Thread:
    """An owner that is a thread: it makes one call after the other."""

    def __init__(self, _loop: object) -> None:
        self._todo: queue.Queue[Asked | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], Any], way: Way = Way.ITSELF) -> Any:
        done: Future[Any] = Future()
        self._todo.put((work, way, done))
        return result_of(done)

    def end(self) -> None:
        self._todo.put(None)
        self._thread.join(GENEROUS)

    def _work(self) -> None:
        while (asked := self._todo.get()) is not None:
            self._call(*asked)
            del asked

    def _call(self, work: Callable[[], Any], way: Way, done: Future[Any]) -> None:
        async def call() -> Any:
            return work()

        try:
            if way is Way.COPIED_CONTEXT:
                done.set_result(copy_context().run(work))
            elif way in (Way.NEW_TASK, Way.RESULT_OF_TASK):
                done.set_result(asyncio.run(call()))
            else:
                done.set_result(in_new_thread(work) if way is Way.NEW_THREAD else work())
        except Exception as error:  # noqa: BLE001 - it is the asker's
            done.set_exception(error)
        finally:
            del done  # else its error's traceback would refer to it in a circle


class Task:
    """An owner that is a task; all are tasks of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._todo: asyncio.Queue[Asked | None] = asyncio.Queue()
        self._ended = threading.Event()
        self._task: Callable[[], object] = lambda: self
        asyncio.run_coroutine_threadsafe(self._work(), loop)
        self.do(lambda: None)

    def do(self, work: Callable[[], Any], way: Way = Way.ITSELF) -> Any:
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._todo.put_nowait, (work, way, done))
        return result_of(done)

    def end(self) -> None:
        """Return when the task has ended and is garbage-collected."""
        self._loop.call_soon_threadsafe(self._todo.put_nowait, None)
        self._ended.wait(GENEROUS)
        wait_until_collected(self._task)

    async def _work(self) -> None:
        self._task = ref(asyncio.current_task())
        while (asked := await self._todo.get()) is not None:
            await self._call(*asked)
            del asked
        self._loop.call_soon(self._loop.call_soon, self._ended.set)

    async def _call(self, work: Callable[[], Any], way: Way, done: Future[Any]) -> None:
        async def make() -> Any:
            return work()

        async def call() -> Any:
            return await settled(work())

        try:
            if way is Way.COPIED_CONTEXT:
                done.set_result(await settled(copy_context().run(work)))
            elif way is Way.AWAITED_BY_TASK:
                done.set_result(await asyncio.create_task(settled(work())))
            elif way is Way.NEW_TASK:
                done.set_result(await asyncio.create_task(call()))
            elif way is Way.RESULT_OF_TASK:
                done.set_result(await settled(await asyncio.create_task(make())))
            elif way is Way.NEW_THREAD:
                done.set_result(await settled(in_new_thread(work)))
            else:
                done.set_result(await settled(work()))
        except Exception as error:  # noqa: BLE001 - it is the asker's
            done.set_exception(error)
        finally:
            del done


def result_of(done: Future[Any]) -> Any:
    try:
        return done.result(GENEROUS)
    finally:
        del done


def wait_until_collected(reference: Callable[[], object]) -> None:
    def is_collected() -> bool:
        for generation in range(3):
            if reference() is None:
                return True
            gc.collect(generation)
        return reference() is None

    wait_until(is_collected, 20, what="the garbage collector")


def block_of(mutex: Any) -> Iterator[Any]:
    with mutex as held:
        yield held


async def async_block_of(mutex: Any) -> AsyncIterator[Any]:
    async with mutex as held:
        yield held


@dataclass
class Caller:
    """A thread or task of the program."""

    number: int
    is_task: bool
    has_ended: bool = False


@dataclass
class Acquired:
    """The model of one acquisition."""

    owner: Caller
    holding: Holding
    """The background's part, which lives on when the HeldLock is garbage-collected."""
    reference: Callable[[], Any]
    """A weak reference to the HeldLock."""
    held: Any
    """The HeldLock; None: the program does not refer to it."""
    leave: Callable[[], Any] | None
    """Ends the block that took it."""
    by_hand: bool = False
    """True: the block's end knows the object only."""
    lost: bool = False
    released: bool = False
    over: bool = False
    """Released, garbage-collected, or its owner has gone on to another one."""

    @property
    def uuid(self) -> str:
        return self.holding.acquisition.uuid

    def is_garbage(self) -> bool:
        is_in_block = self.leave is not None and not self.by_hand
        kept_by_mutex = not (self.owner.is_task and self.owner.has_ended)
        return self.held is None and not is_in_block and not kept_by_mutex and not self.over


class Owners(RuleBasedStateMachine):
    """Four owners, which end and are replaced; one mutex, losses and releases in any order."""

    asynchronous: bool
    kinds: tuple[type[Thread | Task], ...]

    def __init__(self) -> None:
        super().__init__()
        self.around = ExitStack()
        self.store = MemoryStore()
        kind: Any = AsyncClusterMutex if self.asynchronous else ClusterMutex
        self.mutex = kind(NAME, store=self.store)
        self.loop = self.around.enter_context(running_loop())
        self.numbers = count()
        kinds = [self.kinds[place % len(self.kinds)] for place in range(OWNERS)]
        self.owners: list[Thread | Task] = [kind(self.loop) for kind in kinds]
        self.callers = [Caller(next(self.numbers), kind is Task) for kind in kinds]
        self.all: list[Acquired] = []

    def teardown(self) -> None:
        for one in self.all:
            if one.leave and not one.by_hand:
                with suppress(LockLost):
                    self.owners[0].do(one.leave)
        current = self.current()
        if current is not None and current.holding.claim_release():
            drive(current.holding.releasing(None), self.store)
        for owner in self.owners:
            owner.end()
        assert self.store.model.lock(NAME).holder is None
        self.around.close()

    def current(self) -> Acquired | None:
        """Return the holder in the store."""
        uuid = self.store.model.lock(NAME).uuid()
        return next((one for one in self.all if one.uuid == uuid), None)

    def unreleased(self) -> list[Acquired]:
        return [one for one in self.all if not one.over]

    def caller(self, owner: int, way: Way, *, is_lazy: bool = False) -> Caller:
        """Return the caller; `is_lazy`: a coroutine makes the call as it is awaited."""
        awaited = (Way.NEW_TASK, Way.AWAITED_BY_TASK)
        if way in (awaited if is_lazy else (Way.NEW_TASK, Way.RESULT_OF_TASK)):
            return Caller(next(self.numbers), is_task=True, has_ended=True)
        if way is Way.NEW_THREAD and not is_lazy:
            return Caller(next(self.numbers), is_task=False, has_ended=True)
        return self.callers[owner]

    def meant(self, caller: Caller) -> Acquired | None:
        """Return whose lock this caller's call on the mutex means; None: it is refused."""
        unreleased = self.unreleased()
        mine = [one for one in unreleased if one.owner == caller]
        if mine:
            return mine[-1]
        return unreleased[0] if len(unreleased) == 1 else None

    def collect(self) -> None:
        """Wait until each acquisition that nothing refers to is garbage-collected."""
        for one in self.all:
            if one.is_garbage():
                wait_until_collected(one.reference)
                one.over = True
        for one in self.unreleased():
            assert one.reference() is not None

    @rule(
        owner=st.integers(0, OWNERS - 1),
        way=WAYS,
        how=st.sampled_from(["bare", "stack", "hand", "generator"]),
        after_a_loss=st.booleans(),
    )
    def acquire(self, owner: int, way: Way, how: str, after_a_loss: bool) -> None:
        """It succeeds if the lock is free; then the owner's own lost ones are forgotten."""
        do, mutex = self.owners[owner].do, self.mutex
        if after_a_loss and self.current() is not None:
            self.lose()
        if self.current() is not None:
            assert do(lambda: mutex.acquire(False), way) is None
            return
        leave: Callable[[], Any] | None = None
        if how == "bare":
            held = do(lambda: mutex.acquire(False), way)
        elif how == "stack":
            stack: Any = AsyncExitStack() if self.asynchronous else ExitStack()
            enter = stack.enter_async_context if self.asynchronous else stack.enter_context
            held = do(lambda: enter(mutex), way)
            leave = stack.aclose if self.asynchronous else stack.close
        elif how == "generator":
            block: Any = async_block_of(mutex) if self.asynchronous else block_of(mutex)
            leave = partial(anext if self.asynchronous else next, block, None)
            held = do(leave, way)
        elif self.asynchronous:
            held = do(lambda: mutex.__aenter__(), way)
            leave = lambda: mutex.__aexit__(None, None, None)  # noqa: E731
        else:
            held = do(lambda: mutex.__enter__(), way)
            leave = lambda: mutex.__exit__(None, None, None)  # noqa: E731
        assert held is not None
        is_lazy = self.asynchronous and how in ("stack", "generator")
        caller = self.caller(owner, way, is_lazy=is_lazy)
        for earlier in self.unreleased():
            assert earlier.lost
            earlier.over |= earlier.owner == caller
        holding = held_by_process[held.uuid]
        self.all.append(Acquired(caller, holding, ref(held), held, leave, how == "hand"))

    @precondition(lambda self: self.current() is not None)
    @rule()
    def lose(self) -> None:
        """An unlocker removes it, and its holder learns of it."""
        current = self.current()
        assert current is not None
        current.lost = True
        self.store.model.remove_holder(NAME)
        with pytest.raises(LockLost):
            drive(current.holding.pushing(force=True), self.store)

    @rule(owner=st.integers(0, OWNERS - 1), data=st.data())
    def end(self, owner: int, data: st.DataObject) -> None:
        """An owner ends, and a new one takes its place."""
        kind = data.draw(st.sampled_from(self.kinds))
        self.owners[owner].end()
        self.callers[owner].has_ended = True
        self.owners[owner] = kind(self.loop)
        self.callers[owner] = Caller(next(self.numbers), kind is Task)
        self.collect()

    @precondition(lambda self: any(one.held for one in self.all))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """The program refers to a HeldLock no more; the mutex keeps that of a living owner."""
        data.draw(st.sampled_from([one for one in self.all if one.held])).held = None
        self.collect()

    @rule(owner=st.integers(0, OWNERS - 1), way=WAYS)
    def ask(self, owner: int, way: Way) -> None:
        """An owner gets its own lock, or nothing."""
        meant = self.meant(self.caller(owner, way))

        def do(work: Callable[[], Any]) -> Any:
            return self.owners[owner].do(work, way)

        is_locked = any(not one.lost for one in self.unreleased())
        assert do(lambda: self.mutex.locked()) == is_locked
        assert do(lambda: self.mutex.healthy) == (meant is not None and not meant.lost)
        alive = lambda: self.mutex.alive(force=True)  # noqa: E731
        if meant is None:
            with pytest.raises(LockNotHeld):
                do(alive)
            with pytest.raises(LockNotHeld):
                do(lambda: self.mutex.uuid)
            return
        assert do(lambda: self.mutex.uuid) == meant.uuid
        if meant.lost:
            with pytest.raises(LockLost):
                do(alive)
        else:
            do(alive)

    @rule(owner=st.integers(0, OWNERS - 1), way=WAYS)
    def release_by_mutex(self, owner: int, way: Way) -> None:
        """It ends what is meant, and nothing else."""
        meant = self.meant(self.caller(owner, way))
        self.release(meant, owner, lambda: self.mutex.release(), way)

    @precondition(lambda self: any(one.held for one in self.all))
    @rule(owner=st.integers(0, OWNERS - 1), way=WAYS, data=st.data())
    def release_by_held(self, owner: int, way: Way, data: st.DataObject) -> None:
        """By anybody, whatever has become of it."""
        acquired = data.draw(st.sampled_from([one for one in self.all if one.held]))
        if acquired.released and not acquired.lost:
            with pytest.raises(LockNotHeld):
                self.owners[owner].do(acquired.held.release, way)
            return
        self.release(acquired, owner, acquired.held.release, way)

    @precondition(lambda self: any(one.leave for one in self.all))
    @rule(owner=st.integers(0, OWNERS - 1), way=WAYS, data=st.data())
    def leave(self, owner: int, way: Way, data: st.DataObject) -> None:
        """A block ends, by whichever caller: what it took is released, or nothing."""
        acquired = data.draw(st.sampled_from([one for one in self.all if one.leave]))
        ends: Acquired | None = acquired
        leave = acquired.leave
        assert leave is not None
        if acquired.by_hand:
            caller = self.caller(owner, way)
            opened = [one for one in self.unreleased() if one.by_hand]
            mine = [one for one in opened if one.owner == caller]
            if len(opened) > 1 and not mine:
                with pytest.raises(LockNotHeld):
                    self.owners[owner].do(leave, way)
                return
            ends = next(reversed(mine or opened), None)
        acquired.leave = None
        if ends is None or ends.released:
            before = self.current()
            self.owners[owner].do(leave, way)
            assert self.current() is before
        else:
            self.release(ends, owner, leave, way)

    def release(
        self, acquired: Acquired | None, owner: int, call: Callable[[], Any], way: Way
    ) -> None:
        before = self.current()
        try:
            self.owners[owner].do(call, way)
        except LockNotHeld:
            assert acquired is None
        except LockLost:
            assert acquired is not None
            assert acquired.lost
        else:
            assert acquired is not None
            assert not acquired.lost
        if acquired is not None:
            acquired.over = acquired.released = True
        assert self.current() is (None if before is acquired else before)


class SyncOwners(Owners):
    asynchronous = False
    kinds = (Thread, Task)


class AsyncOwners(Owners):
    asynchronous = True
    kinds = (Task,)


for machine in (SyncOwners, AsyncOwners):
    machine.TestCase.settings = settings(
        max_examples=60, stateful_step_count=30, phases=(Phase.generate,)
    )
TestSync = SyncOwners.TestCase
TestAsync = AsyncOwners.TestCase
