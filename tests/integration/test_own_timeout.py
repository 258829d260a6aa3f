"""Timeouts of callers: kept if all members refuse; silent members have time to answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, LockTimeout, Settings, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.timeouts import ONE_ANSWER_S
from tests.support.etcd_binary import frozen
from tests.support.processes import wait_until

AT_ONCE = ONE_ANSWER_S / 2
"""Seconds in which what needs no waiting is done on a busy machine; a quiet one takes 0.02."""

Open = Callable[[Settings], ServiceStore]


class Driver:
    """Acquires in this thread, or in tasks of one event loop."""

    def __init__(self, kind: str) -> None:
        self._loop = asyncio.new_event_loop() if kind == "asyncio" else None

    def acquire(self, store: ServiceStore, **limit: Any) -> Any:
        """Acquire, and release what was had."""
        if self._loop is None:
            held = ClusterMutex("x", store=store).acquire(**limit)
            if held is not None:
                held.release()
            return held
        return self._loop.run_until_complete(self._in_task(store, **limit))

    async def _in_task(self, store: ServiceStore, **limit: Any) -> Any:
        held = await AsyncClusterMutex("x", store=store).acquire(**limit)
        if held is not None:
            await held.release()
        return held

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["threads", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Any:
    driver = Driver(request.param)
    yield driver
    driver.close()


def nowhere(host: str = "127.0.0.1") -> str:
    return f"{host}:{free_port()}"


def late_by(driver: Driver, store: ServiceStore, limit_s: float) -> float:
    """Return by how many seconds a call that fails is later than its own limit."""
    limit = {"timeout": limit_s} if limit_s else {"blocking": False}
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        driver.acquire(store, **limit)
    late = time.monotonic() - began - limit_s
    assert late >= 0
    return late


class TestRefusedConnections:
    @pytest.mark.parametrize("members", [1, 3])
    @pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
    def test_the_own_limit_holds(
        self, driver: Driver, opened: Open, host: str, members: int
    ) -> None:
        """Refused by all, or not to be found: there is nothing to wait for beyond the limit."""
        store = opened(Settings(endpoints=tuple(nowhere(host) for _ in range(members))))
        for limit_s in (0.0, 1.0, 0.0):
            assert late_by(driver, store, limit_s) < AT_ONCE

    def test_an_outage_during_a_wait(
        self, driver: Driver, own_etcd: Etcd, own_store: ServiceStore
    ) -> None:
        holder = ClusterMutex("x", store=own_store).acquire()
        assert holder is not None
        assert driver.acquire(own_store, timeout=0.2) is None  # all that a wait needs stands
        own_etcd.stop()
        began = time.monotonic()
        mutex = ClusterMutex("x", store=own_store, timeout=0.5)
        with pytest.raises((LockTimeout, StoreUnavailable)), mutex:
            pass
        assert time.monotonic() - began < 0.5 + AT_ONCE
        own_etcd.start()
        holder.release()

    def test_a_refusal_of_before_does_not_count(
        self, driver: Driver, own_etcd: Etcd, own_store: ServiceStore
    ) -> None:
        """gRPC remembers one for a second: after etcd is back, the first call succeeds."""
        for _ in range(3):
            own_etcd.stop()
            late_by(driver, own_store, 0)
            own_etcd.start()
            assert driver.acquire(own_store, blocking=False) is not None

    def test_a_refusal_caused_by_another_call_proves_nothing(
        self, driver: Driver, own_etcd: Etcd, own_store: ServiceStore
    ) -> None:
        own_etcd.stop()
        late_by(driver, own_store, 0.3)
        with pytest.raises(StoreUnavailable):
            ClusterMutex("x", store=own_store).acquire(False)
        own_etcd.start()
        assert driver.acquire(own_store, timeout=0.01) is not None


class TestSilent:
    def test_a_silent_member_has_time_to_answer(
        self, driver: Driver, own_etcd: Etcd, opened: Open
    ) -> None:
        store = opened(Settings(endpoints=(own_etcd.endpoint, nowhere())))
        with frozen(own_etcd):
            assert late_by(driver, store, 0) > AT_ONCE

    def test_a_third_member_is_asked_after_two_refusals(
        self, driver: Driver, own_etcd: Etcd, opened: Open
    ) -> None:
        store = opened(Settings(endpoints=(nowhere(), nowhere(), own_etcd.endpoint)))
        assert driver.acquire(store, blocking=False) is not None


def test_waiters_end_at_their_own_timeouts_when_etcd_ends(
    own_etcd: Etcd, own_store: ServiceStore
) -> None:
    async def wait(timeout: float) -> float:
        began = time.monotonic()
        held = await AsyncClusterMutex("x", store=own_store).acquire(timeout=timeout)
        assert held is None
        return time.monotonic() - began - timeout

    async def all_of_them() -> list[float]:
        tasks = [asyncio.create_task(wait(2 + number / 50)) for number in range(20)]
        mutex = AsyncClusterMutex("x", store=own_store)
        while len(await mutex.waiters()) < len(tasks):
            await asyncio.sleep(0.05)
        assert own_etcd.process is not None
        own_etcd.process.kill()  # asked to end, it may take seconds, and this loop with it
        own_etcd.stop()
        return await asyncio.gather(*tasks)

    holder = ClusterMutex("x", store=own_store).acquire()
    assert holder is not None
    assert max(asyncio.run(all_of_them())) < AT_ONCE
    own_etcd.start()
    holder.release()
    waiters = ClusterMutex("x", store=own_store).waiters
    wait_until(lambda: not waiters(), what="their tickets to go")
