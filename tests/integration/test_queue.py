"""The queue, over a real etcd: one release wakes one waiter, and no wake-up is lost."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl, served
from tests.support.locks import queue_up
from tests.support.processes import wait_until


@pytest.mark.promise(number=5)
@pytest.mark.parametrize("waiters", [1, 10, 100])
def test_a_release_wakes_one_waiter(own_etcd: Etcd, own_store: ServiceStore, waiters: int) -> None:
    """By etcd's counter: the unlock, the head's claim, and one look of the waiter behind it."""
    mutexes = [ClusterMutex("x", store=own_store) for _ in range(1 + waiters)]
    mutexes[0].acquire()
    queue = [queue_up(waiter) for waiter in mutexes[1:]]
    before, token = _settled(own_etcd), 0
    mutexes[0].release()
    queue[0].join(60)
    assert _settled(own_etcd) - before == (2 if waiters == 1 else 3)
    for waiter, thread in zip(mutexes[1:], queue, strict=True):
        thread.join(30)  # not by the look that each waiter takes once a minute
        assert waiter.fencing_token > token
        token = waiter.fencing_token
        waiter.release()


def _settled(etcd: Etcd) -> int:
    """Return how many transactions etcd has served, as soon as it serves no more of them."""
    counts: list[int] = []

    def quiet() -> bool:
        time.sleep(0.1)
        counts.append(served(etcd)["Txn"])
        return len(counts) >= 8 and len(set(counts[-8:])) == 1

    wait_until(quiet, what="the waiters to be quiet")
    return counts[-1]


def test_no_wake_up_is_lost(store: ServiceStore, root: str, etcdctl: Etcdctl) -> None:
    """Threads that take, try, give up and let go at once: all get on, and nothing is left."""
    done: list[int] = []

    def work(seed: int) -> None:
        mutex = ClusterMutex("x", store=store, capture_backtrace=False)
        for round_ in range(25):
            # So short that it runs out anywhere, even before the first answer.
            timeout = 0.02 if (seed + round_) % 3 == 0 else -1
            with suppress(StoreUnavailable):
                if mutex.acquire(timeout=timeout):
                    mutex.release()
        done.append(seed)

    with ClusterMutex("x", store=store):
        pass  # connected
    for seed in range(8):
        threading.Thread(target=work, args=(seed,), daemon=True).start()
    wait_until(lambda: len(done) == 8, 40, "all threads to end, not by a look once a minute")
    for kind in ("locks", "queue"):
        prefix = f"{root}/{kind}/"
        wait_until(lambda: not etcdctl("get", "--prefix", prefix), what=f"the end of {kind}")  # noqa: B023
