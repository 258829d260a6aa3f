"""The line, over a real etcd: order, and whatever may happen to a place in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_protocol import ServiceStore
from tests.support.etcd_binary import Etcdctl, served
from tests.support.processes import wait_until


class Line:
    """Waiters in threads: who was served, in which order."""

    def __init__(self, store: ServiceStore) -> None:
        self.served: list[tuple[str, int]] = []
        self.gave_up: list[str] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self._store = store
        self._threads: list[threading.Thread] = []

    def join(self, name: str, timeout: float = -1) -> None:
        """Get in line; return when the ticket is there."""

        def wait() -> None:
            mutex = ClusterMutex("x", store=self._store, reason=name)
            if mutex.acquire(timeout=timeout):
                self.served.append((name, mutex.fencing_token))
                self.may_go.wait(60)
                mutex.release()
            else:
                self.gave_up.append(name)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: name in self.names() + self.gave_up, what=f"{name} in line")

    def names(self) -> list[str]:
        mutex = ClusterMutex("x", store=self._store)
        return [ticket.reason or "" for ticket in mutex.waiters()]

    def wait_served(self, *names: str) -> None:
        """Wait until these were served, and nobody else, in this order, with rising tokens."""
        # Not by the look that each waiter takes once a minute.
        wait_until(lambda: len(self.served) >= len(names), 30, f"{names} to be served")
        assert [name for name, _ in self.served] == list(names)
        tokens = [token for _, token in self.served]
        assert tokens == sorted(set(tokens))

    def end(self) -> None:
        self.may_go.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def line(store: ServiceStore) -> Iterator[Line]:
    waiters = Line(store)
    yield waiters
    waiters.end()


@pytest.fixture
def held(store: ServiceStore) -> ClusterMutex:
    """The lock, held since before anyone came."""
    mutex = ClusterMutex("x", store=store)
    mutex.acquire()
    return mutex


def nothing_left(root: str, etcdctl: Etcdctl) -> None:
    """Neither lock nor ticket."""
    for kind in ("locks", "queue"):
        wait_until(
            lambda: not etcdctl("get", "--prefix", "--keys-only", f"{root}/{kind}/").strip(),  # noqa: B023
            what=f"the last of the {kind}",
        )


def test_who_gives_up_leaves_no_gap(
    root: str, held: ClusterMutex, line: Line, etcdctl: Etcdctl
) -> None:
    """The one behind moves up, at the head and in the middle; the order of the rest stays."""
    for name, timeout in [("head", 1.5), ("a", -1), ("middle", 1.5), ("b", -1), ("last", 1.5)]:
        line.join(name, timeout)
    wait_until(lambda: len(line.gave_up) == 3, what="three to give up")
    assert sorted(line.gave_up) == ["head", "last", "middle"]
    wait_until(lambda: line.names() == ["a", "b"], what="their tickets to go")
    line.join("c")
    held.release()
    line.wait_served("a", "b", "c")
    nothing_left(root, etcdctl)


@pytest.mark.promise(number=5)
@pytest.mark.parametrize("waiters", [1, 10, 100])
def test_a_release_wakes_one_waiter(own_etcd: Etcd, own_store: ServiceStore, waiters: int) -> None:
    """By etcd's counter: the unlock, the head's claim, and one look of the waiter behind it."""
    line = Line(own_store)
    line.may_go.clear()  # the next holder keeps the lock
    held = ClusterMutex("x", store=own_store)
    held.acquire()
    for number in range(waiters):
        line.join(str(number))
    before = _settled(own_etcd)
    held.release()
    line.wait_served("0")
    assert _settled(own_etcd) - before == (2 if waiters == 1 else 3)
    line.end()


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
    nothing_left(root, etcdctl)
