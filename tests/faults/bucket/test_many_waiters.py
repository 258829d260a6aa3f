"""Many tasks that want one busy lock in a bucket delay no other lock."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from lockclient import AsyncClusterMutex
from lockclient.model.clocks import monotonic
from lockclient.stores.mutex_store import WatchTarget
from lockclient.stores.service_store import ServiceStore
from tests.support.bucket.server import Asked, BucketServer
from tests.support.processes import wait_until

CROWD = 200
POLLED = 24
"""Held locks of which no poll is answered before the last one has come."""


def test_many_waiters_delay_no_other_lock(server: BucketServer, store: ServiceStore) -> None:
    server.fault("", 429, part="locks/hot", times=1e9)

    async def want() -> None:
        await AsyncClusterMutex("hot", store=store).acquire()

    async def main() -> None:
        held = AsyncClusterMutex("cold", store=store, expected_runtime=2, auto_unlock_after=8)
        await held.acquire()
        crowd = [asyncio.create_task(want()) for _ in range(CROWD)]
        while server.counted("POST", "locks/hot") < 8:
            await asyncio.sleep(0.05)
        for _ in range(3):
            await held.alive(force=True)
        async with AsyncClusterMutex("free", store=store, timeout=60):
            await held.alive(force=True)
        await held.release()
        server.heal()
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)

    asyncio.run(main())
    wait_until(lambda: not store.background.unfinished(), what="the clean-up")
    assert server.counted("PATCH", "locks/cold") >= 4
    assert not any(name in server.bucket.names() for name in ("locks/cold", "locks/free"))


def test_many_held_locks_are_polled_at_once(server: BucketServer, store: ServiceStore) -> None:
    arrived: list[float] = []

    def wait_for_all(_: Asked) -> None:
        arrived.append(monotonic())
        wait_until(lambda: len(arrived) >= POLLED, what="the other polls")

    server.trouble = wait_for_all
    with ExitStack() as watches:
        for number in range(POLLED):
            watch = store.watch(WatchTarget(f"lock-{number}"), 1, lambda _: None)
            watches.callback(watch.close)
        wait_until(lambda: len(arrived) >= POLLED, what="all polls")
    assert max(arrived) - min(arrived) < 6.0  # each of them is given up after 2 s
