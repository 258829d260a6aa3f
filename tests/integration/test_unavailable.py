"""etcd unreachable, frozen, restarted; lost answers and late requests: no hang, no leak."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings, StoreUnavailable, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from lockclient.stores import timeouts
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.processes import wait_until

GENEROUS = 20.0
"""Seconds in which a call must have ended whose own limit is a second or a few."""

CALLS: list[Callable[[ClusterMutex], object]] = [
    lambda mutex: mutex.acquire(),  # a store that was never there is no queue to wait in
    lambda mutex: mutex.acquire(timeout=1),
    lambda mutex: mutex.acquire(blocking=False),
    lambda mutex: mutex.holder(),
    lambda mutex: mutex.waiters(),
]


def refusals(store: ServiceStore) -> list[StoreUnavailable]:
    """Make all these calls at once, each on an object of its own; return what each raised."""

    def refusal(call: Callable[[ClusterMutex], object]) -> StoreUnavailable:
        mutex, began = ClusterMutex("x", store=store), time.monotonic()
        with pytest.raises(StoreUnavailable) as caught:
            call(mutex)
        assert time.monotonic() - began < GENEROUS
        assert not mutex.locked()
        return caught.value

    with ThreadPoolExecutor(len(CALLS)) as pool:
        return list(pool.map(refusal, CALLS))


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls without a timeout of their own wait 2 s instead of 10."""
    monkeypatch.setattr(timeouts, "STORE_TIMEOUT_S", 2.0)


def lock_is_gone(etcdctl: Etcdctl) -> None:
    wait_until(
        lambda: not etcdctl("get", "--prefix", "/clustermutex/locks/"), what="the lock to go"
    )


class TestRefusedConnections:
    @pytest.fixture
    def nowhere(self) -> ServiceStore:
        """A store whose two endpoints nobody listens on."""
        ends = tuple(f"127.0.0.1:{free_port()}" for _ in range(2))
        return open_store(Settings(endpoints=ends))

    def test_store_unavailable_is_raised_in_time(self, nowhere: ServiceStore) -> None:
        """`StoreUnavailable` names the endpoints and the reason, without gRPC's internals."""
        for error in refusals(nowhere):
            assert isinstance(error, ConnectionError)
            assert ", ".join(nowhere.endpoints()) in str(error)
            assert "connection refused" in str(error)
            told = "".join(traceback.format_exception(error))
            for internal in ("grpc", "StatusCode", "ipv4:", "rpc"):
                assert internal not in told
        nowhere.close()


class TestFrozen:
    def test_store_unavailable_is_raised_in_time(
        self, own_etcd: Etcd, own_store: ServiceStore, own_etcdctl: Etcdctl
    ) -> None:
        """A server that hangs is no reason to hang; what it does later is taken back."""
        assert ClusterMutex("x", store=own_store).holder() is None
        with frozen(own_etcd):
            assert all("no answer" in str(error) for error in refusals(own_store))
        # It may take the lock now that it is awake, on behalf of nobody; not for long.
        other = ClusterMutex("x", store=own_store)
        assert other.acquire(timeout=60)
        other.release()
        lock_is_gone(own_etcdctl)


def test_a_release_is_retried_until_it_is_done(
    own_etcd: Etcd,
    own_store: ServiceStore,
    own_etcdctl: Etcdctl,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = ClusterMutex("x", store=own_store)
    held.acquire()

    @ClusterMutex("y", store=own_store)
    def block() -> None:
        own_etcd.stop()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        block()
    assert "Releasing 'y' failed; retrying" in caplog.text
    with pytest.raises(StoreUnavailable):
        held.release()
    assert not held.locked()
    own_etcd.start()
    lock_is_gone(own_etcdctl)


class _SlowToRead(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """An etcd that answers a transaction without comparisons only after the test."""

    SUCCEEDED_AT_REVISION_5 = b"\x0a\x02\x18\x05\x10\x01"

    def __init__(self) -> None:
        self.waiting = 0
        self.end = threading.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if not details.method.endswith("Txn"):
            return None
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if not request.startswith(b"\x0a"):
            self.waiting += 1
            while context.is_active() and not self.end.wait(0.05):
                pass
        return self.SUCCEEDED_AT_REVISION_5


def test_a_release_does_not_queue_behind_other_requests() -> None:
    handler = _SlowToRead()
    with ThreadPoolExecutor(100) as pool:
        server = grpc.server(pool, handlers=[handler])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        store = open_store(Settings((f"127.0.0.1:{port}",)))

        async def main() -> None:
            held = await AsyncClusterMutex("x", store=store).acquire()
            assert held
            mutexes = [AsyncClusterMutex(f"{number}", store=store) for number in range(400)]
            reads = [asyncio.create_task(mutex.holder()) for mutex in mutexes]
            while handler.waiting < 32:
                await asyncio.sleep(0.01)
            await held.release()
            assert handler.waiting == 32  # none of these gave its turn on before
            for read in reads:
                read.cancel()

        try:
            asyncio.run(asyncio.wait_for(main(), 60))
        finally:
            handler.end.set()
            server.stop(0).wait()
            store.close()
