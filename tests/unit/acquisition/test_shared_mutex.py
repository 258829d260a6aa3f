"""Calls on a shared mutex mean the caller's newest acquisition, else the only one."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, LockNotHeld
from tests.contract.drivers import running_loop
from tests.support.memory_store import MemoryStore

NAME = "x"
OWNERS = 4
GENEROUS = 60.0


class Thread:
    """An owner that is a thread: what it is asked to do it does there, one after the other."""

    def __init__(self) -> None:
        self._todo: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def do(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._todo.put((work, done))
        return done.result(GENEROUS)

    def end(self) -> None:
        self._todo.put(None)

    def _work(self) -> None:
        while (asked := self._todo.get()) is not None:
            work, done = asked
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - it is the asker's
                done.set_exception(error)


class Task:
    """An owner that is a task; all are tasks of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._todo: asyncio.Queue[tuple[Callable[[], Any], Future[Any]] | None] = asyncio.Queue()
        self._ended = asyncio.run_coroutine_threadsafe(self._work(), loop)

    def do(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._todo.put_nowait, (work, done))
        return done.result(GENEROUS)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._todo.put_nowait, None)
        self._ended.result(GENEROUS)

    async def _work(self) -> None:
        while (asked := await self._todo.get()) is not None:
            work, done = asked
            try:
                result = work()
                done.set_result(await result if asyncio.iscoroutine(result) else result)
            except Exception as error:  # noqa: BLE001 - it is the asker's
                done.set_exception(error)


@dataclass
class Acquired:
    """The model of one acquisition."""

    owner: int
    held: Any
    leave: Callable[[], Any] | None
    """Ends the block that took it."""
    by_hand: bool = False
    """True: the block's end knows the object only."""
    lost: bool = False
    released: bool = False
    over: bool = False
    """Released, or its owner has gone on to another one."""


class Owners(RuleBasedStateMachine):
    """Two to four owners, one mutex, losses and releases in any order."""

    asynchronous: bool

    def __init__(self) -> None:
        super().__init__()
        self.around = ExitStack()
        self.store = MemoryStore()
        kind: Any = AsyncClusterMutex if self.asynchronous else ClusterMutex
        self.mutex = kind(NAME, store=self.store)
        self.owners: list[Any] = [Thread() for _ in range(OWNERS)]
        if self.asynchronous:
            loop = self.around.enter_context(running_loop())
            self.owners = [Task(loop) for _ in range(OWNERS)]
        self.all: list[Acquired] = []

    def teardown(self) -> None:
        current = self.current()
        if current is not None:
            self.owners[0].do(current.held.release)
        for owner in self.owners:
            owner.end()
        assert self.store.model.lock(NAME).holder is None
        self.around.close()

    def current(self) -> Acquired | None:
        """Return the holder in the store."""
        uuid = self.store.model.lock(NAME).uuid()
        return next((one for one in self.all if one.held.uuid == uuid), None)

    def unreleased(self) -> list[Acquired]:
        return [one for one in self.all if not one.over]

    def meant(self, owner: int) -> Acquired | None:
        """Return whose lock a call of this owner on the mutex means; None: it is refused."""
        unreleased = self.unreleased()
        mine = [one for one in unreleased if one.owner == owner]
        if mine:
            return mine[-1]
        return unreleased[0] if len(unreleased) == 1 else None

    @rule(owner=st.integers(0, OWNERS - 1), how=st.sampled_from(["bare", "stack", "hand"]))
    def acquire(self, owner: int, how: str) -> None:
        """It succeeds if the lock is free; then the owner's own lost ones are forgotten."""
        if self.current() is not None:
            assert self.owners[owner].do(lambda: self.mutex.acquire(False)) is None
            return
        leave: Callable[[], Any] | None = None
        if how == "bare":
            held = self.owners[owner].do(lambda: self.mutex.acquire(False))
        elif how == "stack":
            stack: Any = AsyncExitStack() if self.asynchronous else ExitStack()
            enter = stack.enter_async_context if self.asynchronous else stack.enter_context
            held = self.owners[owner].do(lambda: enter(self.mutex))
            leave = stack.aclose if self.asynchronous else stack.close
        elif self.asynchronous:
            held = self.owners[owner].do(lambda: self.mutex.__aenter__())
            leave = lambda: self.mutex.__aexit__(None, None, None)  # noqa: E731
        else:
            held = self.owners[owner].do(lambda: self.mutex.__enter__())
            leave = lambda: self.mutex.__exit__(None, None, None)  # noqa: E731
        assert held is not None
        for earlier in self.unreleased():
            assert earlier.lost
            earlier.over |= earlier.owner == owner
        self.all.append(Acquired(owner, held, leave, how == "hand"))

    @precondition(lambda self: self.current() is not None)
    @rule()
    def lose(self) -> None:
        """An unlocker removes it, and its holder learns of it."""
        current = self.current()
        assert current is not None
        current.lost = True
        self.store.model.remove_holder(NAME)
        with pytest.raises(LockLost):
            self.owners[current.owner].do(lambda: current.held.alive(force=True))

    @rule(owner=st.integers(0, OWNERS - 1))
    def ask(self, owner: int) -> None:
        """An owner gets its own lock, or nothing."""
        meant = self.meant(owner)
        alive = lambda: self.mutex.alive(force=True)  # noqa: E731
        if meant is None:
            with pytest.raises(LockNotHeld):
                self.owners[owner].do(alive)
            with pytest.raises(LockNotHeld):
                self.owners[owner].do(lambda: self.mutex.uuid)
            assert not self.owners[owner].do(lambda: self.mutex.healthy)
            return
        assert self.owners[owner].do(lambda: self.mutex.uuid) == meant.held.uuid
        if meant.lost:
            with pytest.raises(LockLost):
                self.owners[owner].do(alive)
            assert not self.owners[owner].do(lambda: self.mutex.healthy)
        else:
            self.owners[owner].do(alive)

    @rule(owner=st.integers(0, OWNERS - 1))
    def release_by_mutex(self, owner: int) -> None:
        """It ends what is meant, and nothing else."""
        self.release(self.meant(owner), owner, lambda: self.mutex.release())

    @precondition(lambda self: self.all)
    @rule(owner=st.integers(0, OWNERS - 1), data=st.data())
    def release_by_held(self, owner: int, data: st.DataObject) -> None:
        """By anybody, whatever has become of it."""
        acquired = data.draw(st.sampled_from(self.all))
        if acquired.released and not acquired.lost:
            with pytest.raises(LockNotHeld):
                self.owners[owner].do(acquired.held.release)
            return
        self.release(acquired, owner, acquired.held.release)

    @precondition(lambda self: any(one.leave for one in self.all))
    @rule(owner=st.integers(0, OWNERS - 1), data=st.data())
    def leave(self, owner: int, data: st.DataObject) -> None:
        """A block ends, in whichever thread: what it took is released, or nothing."""
        acquired = data.draw(st.sampled_from([one for one in self.all if one.leave]))
        ends: Acquired | None = acquired
        if acquired.by_hand:
            opened = [one for one in self.unreleased() if one.by_hand]
            mine = [one for one in opened if one.owner == owner]
            if len(opened) > 1 and not mine:
                with pytest.raises(LockNotHeld):
                    self.owners[owner].do(acquired.leave)
                return
            ends = next(reversed(mine or opened), None)
        leave, acquired.leave = acquired.leave, None
        assert leave is not None
        if ends is None or ends.released:
            before = self.current()
            self.owners[owner].do(leave)
            assert self.current() is before
        else:
            self.release(ends, owner, leave)

    def release(self, acquired: Acquired | None, owner: int, call: Callable[[], Any]) -> None:
        before = self.current()
        try:
            self.owners[owner].do(call)
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


class OwnersAsThreads(Owners):
    asynchronous = False


class OwnersAsTasks(Owners):
    asynchronous = True


TestThreads = OwnersAsThreads.TestCase
TestTasks = OwnersAsTasks.TestCase
for case in (TestThreads, TestTasks):
    case.settings = settings(max_examples=40, stateful_step_count=20, phases=(Phase.generate,))
