"""A lost lock on a real etcd: its holder notices, whether etcd answers or not."""

from __future__ import annotations

import contextlib
import time

import pytest

from lockclient import ClusterMutex, LockLost, Settings, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import frozen, served
from tests.support.locks import has, held, remove
from tests.support.processes import wait_until


def test_the_deadline_passes_while_etcd_is_frozen(own_etcd: Etcd, own_store: ServiceStore) -> None:
    """By the holder's own clock. Leaving the block says lost, and not unavailable."""
    losses: list[LockLost] = []
    mutex = ClusterMutex(
        "x", store=own_store, expected_runtime=1, auto_unlock_after=5, on_lost=losses.append
    )

    def block(stack: contextlib.ExitStack) -> None:
        with mutex as lock:
            pushed_at = time.monotonic()
            stack.enter_context(frozen(own_etcd))
            time.sleep(1)  # a push is due
            lock.alive()  # nobody answers: no error as long as the lock is ours
            assert lock.healthy
            wait_until(lambda: not lock.healthy, what="the deadline")
            assert time.monotonic() - pushed_at > 3
            wait_until(lambda: losses, what="on_lost, with nobody asking")
            for call in (lock.check_health, lock.alive):
                with pytest.raises(LockLost, match="confirmed no heartbeat of it for 5 s"):
                    call()

    with contextlib.ExitStack() as stack, pytest.raises(LockLost):
        block(stack)
    assert not mutex.locked()
    assert len(losses) == 1
    wait_until(lambda: has(own_store, "x") is None, what="the lock to be released")


def test_a_lost_lock_sends_no_more_requests(own_etcd: Etcd, own_store: ServiceStore) -> None:
    losses: list[LockLost] = []
    hangs = ClusterMutex("x", store=own_store, on_lost=losses.append)
    hangs.acquire()
    remove(own_store, held(own_store, "x"))
    wait_until(lambda: losses, what="on_lost")
    with contextlib.closing(open_store(Settings(endpoints=(own_etcd.endpoint,)))) as other:
        before = served(own_etcd)["Txn"]
        for _ in range(20):
            with ClusterMutex("x", store=other):
                pass
        assert served(own_etcd)["Txn"] - before == 40
