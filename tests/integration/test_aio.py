"""`AsyncClusterMutex` over a real etcd: cancellations, many tasks, outages, loops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lockclient import AsyncClusterMutex, ClusterMutex, Settings, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores import timeouts
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl, frozen, served
from tests.support.etcd_store import etcd_store
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking

Main = Coroutine[Any, Any, None]


def run(main: Main, seconds: float = 60) -> None:
    """Run it on a loop of its own, with asyncio's debug mode, for a limited time."""
    asyncio.run(asyncio.wait_for(main, seconds), debug=True)


def left_over(etcdctl: Etcdctl, root: str) -> str:
    """Return what stands in the store of locks and tickets."""
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
    def test_a_request_on_its_way_leaves_no_tombstone(
        self, store: ServiceStore, root: str, etcdctl: Etcdctl, figure: Figure
    ) -> None:
        """It is answered in a moment, as it is in threads, and then nothing can come late."""
        cancelled = [0]

        async def give_up() -> None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(AsyncClusterMutex("x", store=store).acquire(), 0.002)
                return
            cancelled[0] += 1

        async def main() -> None:
            async with AsyncClusterMutex("x", store=store):
                for _ in range(20):
                    await asyncio.gather(*(give_up() for _ in range(3)))
                # As long as they have patience, and all that is cleaned up needs.
                await asyncio.sleep(0.6)

        run(main())
        wait_until(lambda: left_over(etcdctl, root) == "", what="the end of all traces")
        wait_until(lambda: not store.background.unfinished(), what="the end of the clean-up")
        kept = etcdctl("get", "--prefix", "--keys-only", f"{root}/withdrawn/").split()
        figure(f"{cancelled[0]} tries were cancelled: {len(kept)} tombstones")
        # A machine that stands still for as long as the patience lasts, leaves one.
        assert cancelled[0] > 30
        assert len(kept) < cancelled[0] / 4


class TestManyWaiters:
    @pytest.mark.parametrize("crowd", [200, *soaking(1000)])
    def test_many_tasks_on_one_loop_get_the_lock_in_order(
        self,
        crowd: int,
        own_etcd: Etcd,
        own_store: ServiceStore,
        own_etcdctl: Etcdctl,
        monkeypatch: pytest.MonkeyPatch,
        figure: Figure,
    ) -> None:
        monkeypatch.setattr(timeouts, "STORE_TIMEOUT_S", 60.0)  # so many by one busy thread
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
            others = threading.active_count()
            async with stall_measured() as stall:
                first = AsyncClusterMutex("x", store=own_store)
                await first.acquire()
                tasks = [asyncio.create_task(work()) for _ in range(crowd)]
                while len(line := await first.waiters()) < crowd:
                    await asyncio.sleep(0.1)
                threads = threading.active_count() - others
                before, began = served(own_etcd)["Txn"], time.monotonic()
                await first.release()
                await asyncio.gather(*tasks)
                seconds = time.monotonic() - began
                requests = served(own_etcd)["Txn"] - before
            assert got == [ticket.uuid for ticket in line]
            assert threads < 20
            assert requests < 4 * crowd
            figure(
                f"{crowd} tasks in {seconds:.1f} s, {requests / crowd:.2f} transactions each, "
                f"{threads} threads, the loop stood still for {stall.longest * 1000:.0f} ms"
            )

        asyncio.run(asyncio.wait_for(main(), 300))
        assert left_over(own_etcdctl, "/clustermutex") == ""


class TestOutage:
    def test_a_frozen_etcd_is_a_pause(
        self,
        own_etcd: Etcd,
        own_store: ServiceStore,
        own_etcdctl: Etcdctl,
        figure: Figure,
    ) -> None:
        async def main() -> None:
            held = AsyncClusterMutex("x", store=own_store)
            waiting = AsyncClusterMutex("x", store=own_store)
            coming = AsyncClusterMutex("y", store=own_store, timeout=50)
            await held.acquire()
            waiter = asyncio.create_task(waiting.acquire())
            while not await held.waiters():
                await asyncio.sleep(0.02)
            with frozen(own_etcd):
                async with stall_measured() as stall:
                    comer = asyncio.create_task(coming.acquire())
                    await asyncio.sleep(2)
                    await held.alive()  # no answer: no error before the deadline
                    assert held.healthy
            assert await comer
            await held.alive(force=True)
            await held.release()
            assert await waiter
            await waiting.release()
            await coming.release()
            figure(f"the loop stood still for {stall.longest * 1000:.0f} ms at most")
            assert stall.longest < 2  # as long as nobody answers

        run(main())
        assert left_over(own_etcdctl, "/clustermutex") == ""

    def test_each_task_ends_at_its_own_timeout(
        self,
        own_etcd: Etcd,
        own_store: ServiceStore,
        figure: Figure,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def main() -> None:
            async def work() -> None:
                with pytest.raises(StoreUnavailable):
                    await AsyncClusterMutex("x", store=own_store).acquire(timeout=1)

            holder = AsyncClusterMutex("x", store=own_store)
            await holder.acquire()
            monkeypatch.setattr(
                own_store, "has_ticket_lease", lambda _: True
            )  # it has just run out
            began = time.monotonic()
            with frozen(own_etcd):
                patient = asyncio.create_task(AsyncClusterMutex("x", store=own_store).acquire())
                await asyncio.sleep(0)
                await asyncio.gather(*[work() for _ in range(100)])
                seconds = time.monotonic() - began
                patient.cancel()
            figure(f"100 tasks with a limit of 1 s were told after {seconds:.1f} s at most")
            assert seconds < timeouts.STORE_TIMEOUT_S  # the patient one asks for ten seconds
            await holder.release()

        run(main())


def test_a_hundred_tasks_share_one_token(
    own_etcd: Etcd, own_etcdctl: Etcdctl, figure: Figure
) -> None:
    own_etcdctl("user", "add", "root:secret")
    own_etcdctl("auth", "enable")
    store = etcd_store(Settings((own_etcd.endpoint,), user="root", password="secret"))

    async def work(number: int) -> None:
        async with AsyncClusterMutex(f"x{number}", store=store):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[work(number) for number in range(100)])
        first = served(own_etcd)["Authenticate"]
        own_etcdctl("--user=root:secret", "auth", "disable")  # which ends all tokens
        own_etcdctl("auth", "enable")
        before = served(own_etcd)["Authenticate"]
        await asyncio.gather(*[work(number) for number in range(100)])
        second = served(own_etcd)["Authenticate"] - before
        figure(f"200 tasks authenticated {first} times, and {second} times for a new token")
        # Not one for each task; on a busy machine a late token is requested again.
        assert 1 <= first <= 10
        assert 1 <= second <= 10

    run(main())
    store.close()


async def two_in_turn(store: ServiceStore, name: str, rounds: int = 1) -> None:
    """Hold a lock, wait for it, hold it again."""

    async def work() -> None:
        for _ in range(rounds):
            async with AsyncClusterMutex(name, store=store, timeout=50) as mutex:
                await mutex.alive(force=True)

    await asyncio.gather(work(), work())


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


class TestLoops:
    def test_event_loops_one_after_the_other(self, store: ServiceStore) -> None:
        run(two_in_turn(store, "x"))
        before = open_files()
        for _ in range(8):
            run(two_in_turn(store, "x"))
        wait_until(lambda: open_files() <= before + 4, what="the end of the old ones")

    def test_two_at_once(self, store: ServiceStore, root: str, etcdctl: Etcdctl) -> None:
        """In two threads, for one lock, beside a thread that uses `ClusterMutex`."""

        def work() -> None:
            for _ in range(40):
                with ClusterMutex("x", store=store, timeout=50):
                    pass

        mains = [lambda: run(two_in_turn(store, "x", 20))] * 2
        together = [threading.Thread(target=each) for each in (*mains, work)]
        for each in together:
            each.start()
        for each in together:
            each.join(60)
            assert not each.is_alive()
        assert left_over(etcdctl, root) == ""

    def test_the_connection_of_an_etcd3_client_serves_a_loop(self, etcd: Etcd, root: str) -> None:
        import etcd3

        client = etcd3.client(port=etcd.port)
        store = etcd_store(Settings(root=root), client)
        run(two_in_turn(store, "x", 5))
        store.close()
        client.close()

    def test_on_uvloop(self, store: ServiceStore, root: str, etcdctl: Etcdctl) -> None:
        """Another loop, the same promises."""

        async def main() -> None:
            await two_in_turn(store, "x", 5)
            async with AsyncClusterMutex("x", store=store) as held:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(AsyncClusterMutex("x", store=store).acquire(), 0.2)
                assert not await AsyncClusterMutex("x", store=store).acquire(timeout=0.2)
                while await held.waiters():
                    await asyncio.sleep(0.02)

        loop = uvloop.new_event_loop()
        try:
            loop.run_until_complete(asyncio.wait_for(main(), 60))
        finally:
            loop.close()
        assert left_over(etcdctl, root) == ""
