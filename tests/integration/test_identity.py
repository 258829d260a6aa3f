"""A crashed worker that restarts with its identity has its lock back at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_store import ServiceStore
from tests.support.locks import HolderProcess, held
from tests.support.processes import Figure, run_to_end


@pytest.fixture
def worker(settings: Settings) -> Iterator[HolderProcess]:
    """A process that holds the lock `x` under an identity."""
    with HolderProcess(settings, "x", identity="worker-7") as made:
        yield made


def test_a_killed_worker_s_lock_is_taken_over_at_once(
    store: ServiceStore, worker: HolderProcess
) -> None:
    """Without waiting for anyone, with a higher token, and nothing of the dead one's is left."""
    before = held(store, "x")
    assert before.uuid == worker.uuid
    assert before.process is not None
    worker.kill()
    heir = ClusterMutex("x", identity="worker-7", reason="again", store=store)
    assert heir.acquire(blocking=False)
    after = held(store, "x")
    assert after.subkeys() == heir.record.subkeys()
    assert after.uuid != before.uuid
    assert after.fencing_token > before.fencing_token
    heir.alive(force=True)
    heir.release()
    assert heir.holder() is None


def test_a_restarted_worker_passes_the_queue(store: ServiceStore, worker: HolderProcess) -> None:
    waiter = ClusterMutex("x", store=store)
    assert not waiter.acquire(timeout=0.3)
    assert store.has_ticket_lease()
    worker.kill()
    heir = ClusterMutex("x", identity="worker-7", store=store)
    assert heir.acquire(timeout=20)
    assert not waiter.acquire(timeout=0.3)
    heir.release()
    assert waiter.acquire(timeout=20)
    waiter.release()


REPLACED = """
import os, sys, threading, time
from lockclient import ClusterMutex, Settings, open_store
store = open_store(Settings.load(sys.argv[1]))
if sys.argv[2] == "first":
    ClusterMutex("x", identity="worker-7", store=store).acquire()
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], sys.argv[1], "second"])
inside, most, began = [], [], time.monotonic()

def work():
    for _ in range(20):
        held = ClusterMutex("x", identity="worker-7", store=store).acquire(timeout=60)
        took.append(time.monotonic() - began)
        inside.append(held)
        most.append(len(inside))
        time.sleep(0.002)
        inside.remove(held)
        held.release()

took = []
threads = [threading.Thread(target=work) for _ in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(most), max(most), min(took))
"""


def test_a_process_gets_its_lock_back_after_exec(settings: Settings, figure: Figure) -> None:
    program = [sys.executable, "-c", REPLACED, settings.url(), "first", REPLACED]
    done = run_to_end(*program)
    times, most, took = map(float, done.stdout.split())
    assert (times, most) == (100, 1), done.stderr
    figure(f"after exec a worker had its lock back in {took:.2f} s; 5 threads stole none in 100")
    assert took < 5, "it waited, as for a rival that lives"
