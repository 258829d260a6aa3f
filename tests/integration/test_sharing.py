"""One object shared by threads or tasks: every acquisition is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, LockNotHeld, LockTimeout
from lockclient.stores.service_protocol import ServiceStore
from tests.support.locks import has, held, queue_up, remove
from tests.support.processes import wait_until

Hold = Callable[[ClusterMutex, Callable[[], None]], None]


def by_with(mutex: ClusterMutex, body: Callable[[], None]) -> None:
    with mutex:
        body()


def by_decorator(mutex: ClusterMutex, body: Callable[[], None]) -> None:
    mutex(body)()


def by_hand(mutex: ClusterMutex, body: Callable[[], None]) -> None:
    assert mutex.acquire()
    try:
        body()
    except BaseException:
        mutex.release()
        raise
    mutex.release()


@pytest.mark.parametrize("hold", [by_with, by_decorator, by_hand])
def test_who_lost_the_lock_does_not_release_the_next_ones(store: ServiceStore, hold: Hold) -> None:
    """A loses it, B gets it by the same object: A is told, and B keeps it until B lets go."""
    shared = ClusterMutex("x", store=store)
    has, over = threading.Event(), threading.Event()
    tokens: dict[str, int] = {}
    ends: dict[str, BaseException | None] = {}
    told: list[type[BaseException]] = []

    def first() -> None:
        tokens["a"] = shared.fencing_token
        remove(store, shared.record)
        assert has.wait(60)
        checks: list[Callable[[], None]] = [partial(shared.alive, force=True), shared.alive]
        for check in (*checks, shared.check_health):
            with pytest.raises(LockLost) as caught:
                check()
            told.append(caught.type)
        assert not shared.healthy
        assert shared.fencing_token == tokens["a"]
        told.append(LockLost)

    def second() -> None:
        tokens["b"] = shared.fencing_token
        has.set()
        assert over.wait(60)
        shared.alive(force=True)
        shared.check_health()

    def run(name: str, body: Callable[[], None]) -> None:
        ends[name] = None
        try:
            hold(shared, body)
        except BaseException as error:  # noqa: BLE001 - looked at below
            ends[name] = error

    a = threading.Thread(target=run, args=("a", first))
    a.start()
    wait_until(lambda: "a" in tokens, what="a to have it")
    b = threading.Thread(target=run, args=("b", second))
    b.start()
    a.join(30)
    assert held(store, "x").fencing_token == tokens["b"], "b is inside still"
    assert shared.locked()
    if hold is by_hand:  # as with `threading.Lock`: there is only one that can be meant
        assert shared.fencing_token == tokens["b"]
    else:
        with pytest.raises(LockNotHeld, match="not taken by the caller"):
            _ = shared.fencing_token
    over.set()
    b.join(30)
    assert isinstance(ends["a"], LockLost)
    assert ends["b"] is None
    assert len(told) == 4
    assert shared.holder() is None


def test_tasks_share_one_as_well(store: ServiceStore) -> None:
    """And what a task starts inside a block has what the task has."""

    async def main() -> None:
        shared = AsyncClusterMutex("x", store=store)
        has, over = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with shared:
                await asyncio.to_thread(remove, store, shared.record)
                await has.wait()
                with pytest.raises(LockLost):
                    await asyncio.create_task(shared.alive(force=True))
                assert not shared.healthy

        async def second() -> None:
            async with shared:
                has.set()
                await over.wait()
                await asyncio.gather(shared.alive(force=True), shared.alive(force=True))

        a = asyncio.create_task(first())
        while not shared.locked():
            await asyncio.sleep(0.01)
        b = asyncio.create_task(second())
        with pytest.raises(LockLost):
            await a
        assert await shared.holder() is not None
        over.set()
        await b
        assert await shared.holder() is None

    asyncio.run(main())


def test_a_block_releases_what_it_took_or_nothing(store: ServiceStore) -> None:
    """What was taken after an early release inside is not the block's."""
    shared = ClusterMutex("x", store=store)
    with shared as held:
        shared.release()
        again = shared.acquire()
    assert again is not None
    assert (held.healthy, again.healthy) == (False, True)
    again.release()
    assert shared.holder() is None


def test_who_times_out_takes_nothing_from_others(store: ServiceStore) -> None:
    """One thread gets the lock while another, on the same object, gives up waiting for it."""
    holder, shared = ClusterMutex("x", store=store), ClusterMutex("x", store=store, timeout=1)
    holder.acquire()
    ends: list[type[BaseException]] = []

    def give_up() -> None:
        try:
            with shared:
                pass
        except BaseException as error:  # noqa: BLE001 - looked at below
            ends.append(type(error))

    patient = queue_up(shared, 60)
    hasty = threading.Thread(target=give_up)
    hasty.start()
    wait_until(lambda: len(holder.waiters()) == 2, what="the other one in line")
    holder.release()
    patient.join(30)
    hasty.join(30)
    assert ends == [LockTimeout]
    assert has(store, "x") == shared.uuid
    shared.alive(force=True)
    shared.release()
