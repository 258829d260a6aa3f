"""The actions of virtual clients with the real `AsyncClusterMutex` and `ClusterMutex`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost
from lockclient.errors import ClusterMutexError
from tests.proof.end_rules import AT_EXIT, RELEASED_AT_EXIT
from tests.proof.history import Line
from tests.simulation.hub import Hub
from tests.simulation.plan import Work
from tests.simulation.virtual_modules import Loop

LOOK_S = 0.25
"""Seconds between two looks of a silent holder whether the lock is still its own."""


class Client:
    """One task or thread, which wants a lock now and then.

    Args:
        work: what it does.
        number: which step of the plan this is; what is drawn depends on it.
        store: of its process.
        write: takes the lines of the history.
        hub: its clock, its chance and the name of its process; None: the virtual ones.
    """

    pace = 1.0
    """By which its pauses are multiplied, but for those that are to be too long."""
    is_at_exit = False
    """True if the thread of `atexit` runs it."""

    def __init__(
        self,
        work: Work,
        number: int,
        store: Any,
        write: Callable[[Line], object],
        hub: Any = None,
    ) -> None:
        self._work, self._number, self._store, self._write = work, number, store, write
        self._hub: Any = hub or Hub.current
        self._process = self._hub.process
        self._calls = 0
        self._drawn = 0
        self._kept_alive = False

    def _draw(self, low: float = 0.0, high: float = 1.0) -> float:
        self._drawn += 1
        drawn: float = self._hub.draw("client", self._number, self._drawn)
        return low + (high - low) * drawn

    def _say(self, what: str, call: int = 0, uuid: str = "", **more: Any) -> None:
        line = Line(
            *(self._hub.now, self._process.name, what, call),
            lock=self._work.lock,
            uuid=uuid,
            **more,
        )
        self._write(line)

    def _begin(self, what: str, uuid: str = "", **more: Any) -> int:
        self._calls += 1
        call = self._number * 100_000 + self._calls
        self._say(what, call, uuid, **more)
        return call

    def _mutex_arguments(self) -> dict[str, Any]:
        work, self._kept_alive = self._work, self._draw() < 0.25
        drawn = self._hub.draw("released at exit", self._number, self._calls)
        self._released_at_exit = drawn < 0.25
        return {
            "store": self._store,
            "expected_runtime": work.expected,
            "auto_unlock_after": work.auto_unlock,
            "identity": work.identity,
            "capture_backtrace": False,
            "keepalive": self._kept_alive,
            "release_at_exit": self._released_at_exit,
            "reason": self._process.name,
            "on_lost": self._on_lost,
        }

    def _on_lost(self, lost: LockLost) -> None:
        self._say("lost", uuid=lost.uuid or "")

    def _acquired(self, call: int, held: Any) -> None:
        kept_alive = 1.0 if self._kept_alive else None
        key = RELEASED_AT_EXIT if self._released_at_exit else ""
        if self.is_at_exit:
            key = AT_EXIT
        token = self._token(held)
        self._say("acquired", call, held.uuid, revision=token, seconds=kept_alive, key=key)

    def _token(self, held: Any) -> int:
        """Return its fencing token, 0 where the store has none."""
        return held.fencing_token if self._store.can.fencing else 0

    def _is_working(self, held: Any) -> bool:
        """Tell whether it is healthy, and note it if so: the time first, then the look."""
        line = Line(
            self._hub.now, self._process.name, "working", lock=self._work.lock, uuid=held.uuid
        )
        if held.healthy:
            self._write(line)
            return True
        return False

    def _looks(self) -> int:
        """Return how often a silent one looks whether it holds the lock still: until after its end,
        or not at all."""
        return int((self._work.auto_unlock + 3) / LOOK_S) if self._draw() < 0.7 else 0

    def _goes_on(self, rounds: int) -> bool:
        """Tell whether it wants the lock again after so many times."""
        return rounds < self._work.rounds

    def _pause(self) -> float:
        return self._draw() * self.pace

    def _use(self, held: Any) -> None:
        """Do what the lock is for."""

    async def _use_on_loop(self, held: Any) -> None:
        """Do what the lock is for."""

    def _timeout(self) -> float | None:
        if self._work.is_patient:
            return None
        kind = self._draw()
        if kind < 0.2:
            return 0.0
        return self._draw(0.2, 6.0) if kind < 0.6 else None

    # ------------------------------------------------------------ in a thread

    def run_in_thread(self) -> None:
        """Do it all."""
        rounds = 0
        while self._goes_on(rounds):
            rounds += 1
            timeout = self._timeout()
            mutex = ClusterMutex(self._work.lock, timeout=timeout, **self._mutex_arguments())
            call = self._begin("acquire", seconds=timeout)
            try:
                held = mutex.acquire()
            except ClusterMutexError:
                held = None
            if held is None:
                self._say("missed", call)
            else:
                self._acquired(call, held)
                self._hold_in_thread(held)
            self._hub.wait(self._pause())

    def _hold_in_thread(self, held: Any) -> None:
        silent = self._draw() < 0.15
        for _ in range(int(self._draw(1, 5))):
            if not self._is_working(held):
                break
            self._use(held)
            self._hub.wait(self._draw(0.0, 3.0 if silent else 0.8 * self.pace))
            if not silent:
                call = self._begin("push", held.uuid)
                with suppress(ClusterMutexError):
                    held.alive(force=True)
                    self._say("pushed", call, held.uuid)
        self._is_working(held)
        for _ in range(self._looks() if silent else 0):
            self._hub.wait(LOOK_S)
            self._is_working(held)
        call = self._begin("release", held.uuid)
        with suppress(ClusterMutexError):
            held.release()
            self._say("released", call, held.uuid)

    # ------------------------------------------------------------ on a loop

    async def run_on_loop(self) -> None:
        """Do it all."""
        await asyncio.sleep(self._draw(0, 0.5))
        rounds = 0
        while self._goes_on(rounds):
            rounds += 1
            timeout = self._timeout()
            mutex = AsyncClusterMutex(self._work.lock, timeout=timeout, **self._mutex_arguments())
            await self._acquire_on_loop(mutex, timeout)
            await asyncio.sleep(self._pause())

    async def _acquire_on_loop(self, mutex: AsyncClusterMutex, timeout: float | None) -> None:
        call = self._begin("acquire", seconds=timeout)
        task = asyncio.ensure_future(mutex.acquire())
        if self._draw() < 0.15 and not self._work.is_patient:
            asyncio.get_running_loop().call_later(self._draw(0.0, 3.0), task.cancel)
        held = None
        with suppress(ClusterMutexError, asyncio.CancelledError):
            held = await task
        if held is None:
            self._say("missed", call)
            return
        self._acquired(call, held)
        await self._hold_on_loop(held)

    async def _hold_on_loop(self, held: Any) -> None:
        silent = self._draw() < 0.15
        for _ in range(int(self._draw(1, 5))):
            if not self._is_working(held):
                break
            await self._use_on_loop(held)
            await asyncio.sleep(self._draw(0.0, 3.0 if silent else 0.8 * self.pace))
            if not silent:
                call = self._begin("push", held.uuid)
                with suppress(ClusterMutexError):
                    await held.alive(force=True)
                    self._say("pushed", call, held.uuid)
        self._is_working(held)
        for _ in range(self._looks() if silent else 0):
            await asyncio.sleep(LOOK_S)
            self._is_working(held)
        call = self._begin("release", held.uuid)
        with suppress(ClusterMutexError):
            await held.release()
            self._say("released", call, held.uuid)


def run_loop(clients: list[tuple[float, Client]]) -> None:
    """Run an event loop with these clients, each from its time on: a thread's whole life."""

    async def begin() -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        for seconds, client in clients:
            start = partial(lambda one: tasks.append(loop.create_task(one.run_on_loop())), client)
            loop.call_later(seconds, start)
        await asyncio.sleep(max((seconds for seconds, _ in clients), default=0.0) + 0.1)
        await asyncio.gather(*tasks)
        await asyncio.Event().wait()  # the loop goes on: what is left of them may need it

    Loop().run_until_complete(begin())
