"""A request that is late, lost or unanswered, on a real wire: at each request, in every way.

The simulation does that to more requests and lives, and to several at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, Settings, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.mutex_store import MutexStore
from tests.support.locks import read
from tests.support.processes import Figure, wait_until
from tests.support.tcp_proxy import Fault, Proxy

AT_ONCE = 12
"""Lives at the same time: most of their time they wait."""
REQUESTS = {"free": 3, "held": 6}
"""Of a life: take, push and release; and before them, where the lock is held, one more take, a
lease, a ticket and a watch, after which it claims."""

Losses = list[LockLost]
Driver = Callable[[MutexStore, str, Losses], None]


def in_a_thread(store: MutexStore, name: str, losses: Losses) -> None:
    with ClusterMutex(name, store=store, on_lost=losses.append) as held:
        held.alive(force=True)
    wait_until(lambda: not store.background.unfinished(), what="the clean-up")


def on_a_loop(store: MutexStore, name: str, losses: Losses) -> None:
    async def main() -> None:
        async with AsyncClusterMutex(name, store=store, on_lost=losses.append) as held:
            await held.alive(force=True)
        while store.background.unfinished():
            await asyncio.sleep(0.05)

    asyncio.run(main())


@pytest.mark.promise(number=6)
@pytest.mark.promise(number=7)
@pytest.mark.parametrize("driver", [in_a_thread, on_a_loop])
def test_the_caller_and_the_store_agree_in_the_end(
    etcd: Etcd, store: MutexStore, root: str, driver: Driver, figure: Figure
) -> None:
    losses: Losses = []

    def live(life: str, fault: Fault, number: int) -> None:
        name = f"{life}, {fault.name} at request {number}"
        other = ClusterMutex(name, store=store)
        with Proxy(etcd.endpoint) as proxy, ThreadPoolExecutor(1) as thread:
            settings = Settings((proxy.endpoint,), root=root)
            with closing(open_store(settings)) as disturbed:
                if life == "held":
                    other.acquire()
                proxy.inject(fault, number)
                lived = thread.submit(driver, disturbed, name, losses)
                if life == "held":
                    wait_until(lambda: proxy.answered["Watch"] or lived.done(), what="its watch")
                    other.release()
                lived.result()
                assert proxy.met(), name
                if fault is Fault.HOLD_TO_THE_END:
                    proxy.deliver()
                wait_until(proxy.injected, what="the fault")

        def is_gone() -> bool:
            seen = read(store, name)
            return seen.holder is None and not seen.waiters

        wait_until(is_gone, 20, what=f"{name}: the end of it")

    plan = [
        (life, fault, number)
        for life, requests in REQUESTS.items()
        for number in range(1, requests + 1)
        for fault in Fault
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(live, *what) for what in plan]:
            done.result()
    assert losses == []
    figure(f"{len(plan)} faults: orphans 0, false losses 0")
