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
from tests.support.processes import Figure, wait_until

RESYNC_S = 0.1
"""Seconds from one round to the next in which etcd serves the watches that begin in its past."""


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


@pytest.mark.promise(number=3)
def test_a_loss_right_after_the_grant_is_noticed_within_a_second(
    store: ServiceStore, figure: Figure
) -> None:
    """The watch of a new lock begins in etcd's past, since the removal is a write.

    The fastest of several losses has waited least for a busy machine, but perhaps not for etcd.
    """
    delays = [noticed_after(store, f"{number}") for number in range(4)]
    figure(f"noticed {min(delays):.2f} to {max(delays):.2f} s after the removal")
    assert min(delays) + RESYNC_S < 1.0


def noticed_after(store: ServiceStore, name: str) -> float:
    """Remove a lock right after its grant; return the seconds until `on_lost` is called."""
    noticed: list[float] = []
    mutex = ClusterMutex(name, store=store, on_lost=lambda _: noticed.append(time.monotonic()))
    assert mutex.acquire()
    remove(store, held(store, name))
    removed_at = time.monotonic()
    wait_until(lambda: noticed, what="on_lost")
    return noticed[0] - removed_at
