"""`AsyncClusterMutex` over a real etcd: cancellations, crowds, outages, loops, forks, exits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, Settings
from lockclient.cli.local import Etcd
from lockclient.etcd.store import EtcdStore
from tests.certificates import Authority, TlsEtcd
from tests.etcds import Etcdctl, etcdctl_of, frozen, served
from tests.processes import Figure, wait_until

Main = Coroutine[Any, Any, None]


async def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition without standing in the loop's way."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited {seconds} s in vain for {what}"
        await asyncio.sleep(0.02)


def run(main: Main, seconds: float = 60) -> None:
    """Run it on a loop of its own, with asyncio's debug mode, for a limited time."""
    asyncio.run(asyncio.wait_for(main, seconds), debug=True)


def left_over(etcdctl: Etcdctl, store: EtcdStore) -> str:
    """Return what stands in the store of locks and tickets."""
    root = store.settings.root
    return "".join(etcdctl("get", "--prefix", f"{root}/{kind}/") for kind in ("locks", "queue"))


class Stall:
    """The longest time for which a loop stood still, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def measure(self) -> None:
        """Tick until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.monotonic() - before - 0.01)


@contextlib.asynccontextmanager
async def stall_measured() -> AsyncIterator[Stall]:
    """Measure for the time of the block."""
    stall = Stall()
    task = asyncio.create_task(stall.measure())
    yield stall
    task.cancel()


class TestCancelling:
    def test_at_random_moments_it_leaves_nothing(
        self, store: EtcdStore, etcdctl: Etcdctl, figure: Figure
    ) -> None:
        """Free, held and contended locks, by `cancel()` and by `wait_for`, hundreds of times."""
        choose = random.Random(11)
        cancelled = [0]

        async def cycle() -> None:
            async with AsyncClusterMutex("x", store=store) as mutex:
                await mutex.alive(force=True)

        async def cycles() -> None:
            for number in range(60):
                task = asyncio.create_task(cycle())
                if number % 3 == 0:
                    task = asyncio.create_task(asyncio.wait_for(task, choose.uniform(0, 0.01)))
                await asyncio.sleep(choose.uniform(0, 0.01))
                task.cancel()
                try:
                    await task
                except (asyncio.CancelledError, asyncio.TimeoutError):
                    cancelled[0] += 1

        async def main() -> None:
            await asyncio.gather(*[cycles() for _ in range(5)])
            async with AsyncClusterMutex("x", store=store, timeout=30):
                pass

        run(main())
        wait_until(lambda: left_over(etcdctl, store) == "", what="the end of all traces")
        wait_until(lambda: not len(store._watcher._watches), what="the end of all watches")
        figure(f"{cancelled[0]} of 300 cycles were cancelled, and left nothing")
        assert cancelled[0] > 100

    def test_the_clean_up_outlives_the_loop(
        self, store: EtcdStore, etcdctl: Etcdctl
    ) -> None:
        """`asyncio.run` returns at once after the cancellation; the ticket goes all the same."""

        async def main() -> None:
            await AsyncClusterMutex("x", store=store).acquire()

        with ClusterMutex("x", store=store) as held:
            for _ in range(10):
                with pytest.raises(asyncio.TimeoutError):
                    asyncio.run(asyncio.wait_for(main(), 0.05))
            wait_until(lambda: not held.waiters(), what="the tickets to go")
        assert left_over(etcdctl, store) == ""


class TestCrowd:
    def test_a_thousand_tasks_on_one_loop(
        self, own_etcd: Etcd, own_store: EtcdStore, own_etcdctl: Etcdctl, figure: Figure
    ) -> None:
        """Each gets it once, in the order of the line, one at a time; nothing is left."""
        got: list[str] = []
        inside = [0]

        async def work() -> None:
            mutex = AsyncClusterMutex("x", store=own_store, capture_backtrace=False)
            async with mutex:
                inside[0] += 1
                assert inside[0] == 1
                got.append(mutex.uuid)
                await asyncio.sleep(0)
                inside[0] -= 1

        async def main() -> None:
            async with stall_measured() as stall:
                first = AsyncClusterMutex("x", store=own_store)
                await first.acquire()
                tasks = [asyncio.create_task(work()) for _ in range(1000)]
                while len(line := await first.waiters()) < 1000:
                    await asyncio.sleep(0.1)
                threads = threading.active_count()
                before, began = served(own_etcd)["Txn"], time.monotonic()
                await first.release()
                await asyncio.gather(*tasks)
                seconds = time.monotonic() - began
                requests = served(own_etcd)["Txn"] - before
            assert got == [each.uuid for each in line]
            assert threads < 20
            assert requests < 4 * 1000
            figure(
                f"1000 tasks in {seconds:.1f} s, {requests / 1000:.2f} transactions a hand-over, "
                f"{threads} threads, the loop stood still for {stall.longest * 1000:.0f} ms at most"
            )

        asyncio.run(asyncio.wait_for(main(), 120))
        assert left_over(own_etcdctl, own_store) == ""


class TestOutage:
    def test_a_frozen_etcd_is_a_pause(
        self, own_etcd: Etcd, own_store: EtcdStore, figure: Figure
    ) -> None:
        """To a waiter, a holder and who comes meanwhile; the loop goes on, and so do others."""

        async def main() -> None:
            held = AsyncClusterMutex("x", store=own_store)
            waiting = AsyncClusterMutex("x", store=own_store)
            coming = AsyncClusterMutex("y", store=own_store, timeout=60)
            await held.acquire()
            waiter = asyncio.create_task(waiting.acquire())
            while not await held.waiters():
                await asyncio.sleep(0.02)
            async with stall_measured() as stall:
                with await asyncio.to_thread(frozen(own_etcd).__enter__) or contextlib.nullcontext():
                    pass
            figure(f"the loop stood still for {stall.longest * 1000:.0f} ms at most")
            del waiter, coming

        run(main())
