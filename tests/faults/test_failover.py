"""A member hangs, dies or is cut off, the leader moves: callers notice a pause, no error."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire.failover import COOL_DOWN_S, FIRST_TRY_S
from tests.support.etcd_binary import frozen, served
from tests.support.etcd_cluster import Cluster
from tests.support.etcd_store import etcd_store
from tests.support.processes import Figure, wait_until

HALF_OPEN = 15.0
"""Seconds after which a watch on a member that hangs is noticed to be dead, at the latest."""
ELECTION = 5.0
"""Seconds that an election takes at most: 2.9 were measured, with etcd's default settings."""


class Callers:
    """Threads on one store that use locks all the time, and what they have seen.

    Two threads take locks in turn: each one of its own, and one that all share, also with those on
    other stores. A third holds a lock, says so by `alive(force=True)`, and a fourth waits for it.
    """

    def __init__(self, store: EtcdStore, number: int) -> None:
        self.errors: list[BaseException] = []
        self.losses: list[LockLost] = []
        self.done: Counter[str] = Counter()
        self.longest: defaultdict[str, float] = defaultdict(float)
        self._store = store
        self._stop = threading.Event()
        self._held = ClusterMutex(f"held-{number}", store=store, on_lost=self.losses.append)
        self._waiter = ClusterMutex(f"held-{number}", store=store)
        jobs = (
            lambda: self._cycle(f"own-{number}", "own lock"),
            lambda: self._cycle("shared", "shared lock"),
            self._hold,
            self._wait,
        )
        self._threads = [
            threading.Thread(target=self._run, args=(job,), daemon=True) for job in jobs
        ]
        self._held.acquire()
        for thread in self._threads:
            thread.start()
        wait_until(self._held.waiters, what="the waiter in line")

    def busy(self) -> None:
        """Wait until each of them has done something that began after this was called."""
        before = self.done.copy()
        kinds = ("own lock", "shared lock", "alive")
        wait_until(
            lambda: self.errors or all(self.done[kind] > before[kind] + 1 for kind in kinds),
            what="all callers to go on",
        )

    def stop(self) -> None:
        """End the threads: the holder releases, the waiter gets the lock."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller hangs"

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def _cycle(self, name: str, kind: str) -> None:
        mutex = ClusterMutex(name, store=self._store)
        while not self._stop.is_set():
            with self._timed(kind):
                assert mutex.acquire()
            with self._timed(kind):
                mutex.alive(force=True)
            with self._timed(kind):
                mutex.release()
            time.sleep(0.005)

    def _hold(self) -> None:
        try:
            while not self._stop.is_set():
                with self._timed("alive"):
                    self._held.alive(force=True)
                assert self._held.healthy
                time.sleep(0.02)
        finally:
            self._held.release()

    def _wait(self) -> None:
        assert self._waiter.acquire()
        assert self._stop.is_set(), "it got a lock that was held"
        self._waiter.release()

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.longest[kind] = max(self.longest[kind], time.monotonic() - began)
        self.done[kind] += 1


Fault = Callable[[Cluster, Etcd], AbstractContextManager[None]]
"""Breaks a member for the time of a block."""


def moved(cluster: Cluster, member: Etcd) -> AbstractContextManager[None]:
    cluster.move_leader(next(one for one in cluster.members if one is not member))
    return nullcontext()


def restarted(cluster: Cluster, member: Etcd) -> AbstractContextManager[None]:
    for one in cluster.members:
        cluster.restart(one)
        cluster.settle()
    return nullcontext()


FAULTS: dict[str, tuple[bool, Fault]] = {
    "leader frozen": (True, lambda _, member: frozen(member)),
    "follower killed": (False, Cluster.killed),
    "leader cut off": (True, Cluster.cut_off),
    "leader moved": (True, moved),
    "all restarted": (True, restarted),
    "leader replaced": (True, Cluster.replaced),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_a_pause(cluster: Cluster, root: str, what: str, figure: Figure) -> None:
    """No error, no loss, no lock or ticket left; the good member of one client is the one hit."""
    leads, fault = FAULTS[what]
    victim = cluster.leader() if leads else cluster.followers()[0]
    other = next(one for one in cluster.members if one is not victim)
    with ExitStack() as stack:
        stores = [store_on(cluster, root, first=one) for one in (victim, other)]
        callers = [Callers(store, number) for number, store in enumerate(stores)]
        for one in callers:
            stack.callback(one.stop)
            one.busy()
            one.longest.clear()
        with fault(cluster, victim):
            for one in callers:
                one.busy()
        cluster.settle()
        for one in callers:
            one.busy()
    for one in callers:
        assert one.errors == []
        assert one.losses == []
        assert max(one.longest.values()) < HALF_OPEN + ELECTION
    for kind in ("locks", "queue"):
        wait_until(lambda: not cluster.keys(f"{root}/{kind}/"), what=f"the last of the {kind}")  # noqa: B023
    for store in stores:
        store.close()
    pauses = ", ".join(
        f"{kind} {callers[0].longest[kind]:.1f} s ({callers[1].longest[kind]:.1f} s)"
        for kind in sorted(callers[0].longest)
    )
    calls = sum(sum(one.done.values()) for one in callers)
    figure(
        f"longest pause by a call on the member hit (on another): {pauses}; "
        f"{calls} calls, 0 errors, 0 orphans"
    )


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_the_first_member_frozen(cluster: Cluster, root: str, leads: bool, figure: Figure) -> None:
    """A store finds another member within 3 s, whether it was connected or is new, and stays."""
    victim = cluster.leader() if leads else cluster.followers()[0]
    connected, fresh = (store_on(cluster, root, first=victim) for _ in range(2))
    lock_once(connected, "x")

    def took(store: EtcdStore) -> float:
        began = time.monotonic()
        lock_once(store, "x")
        return time.monotonic() - began

    with frozen(victim):
        cluster.leader(without=victim)  # an election is not the client's doing
        first = [took(store) for store in (connected, fresh)]
        assert max(first) < HALF_OPEN, "it waits for no connection to be given up"
        # Longer than the member cools down: it is not asked again as long as another one answers.
        until, later = time.monotonic() + 3 * COOL_DOWN_S, list[float]()
        while time.monotonic() < until:
            later += [took(store) for store in (connected, fresh)]
        slow = sum(seconds >= FIRST_TRY_S for seconds in later)
        assert slow <= 1, "each time that it has cooled down, each store waits for it"
    for store in (connected, fresh):
        store.close()
    figure(
        f"the first lock after {first[0]:.1f} s, {first[1]:.1f} s by a fresh store; "
        f"{len(later)} more, each within {max(later):.1f} s"
    )


def test_a_recovered_member_is_used_again(cluster: Cluster, root: str, figure: Figure) -> None:
    one, other = cluster.followers()
    # Two members of three, so that there is no way around the one that had failed.
    store = etcd_store(Settings(endpoints=(one.endpoint, other.endpoint), root=root))
    with frozen(one):
        lock_once(store, "x")
    cluster.settle()
    before = served(one)["Txn"]
    lock_once(store, "x")
    assert served(one)["Txn"] == before, "it left a member that answers"
    with frozen(other):
        began = time.monotonic()
        lock_once(store, "x")
        figure(f"back on the member that had failed after {time.monotonic() - began:.1f} s")
        assert served(one)["Txn"] > before
    store.close()


def store_on(cluster: Cluster, root: str, first: Etcd) -> EtcdStore:
    """Return a store on all members that asks this one first."""
    return etcd_store(Settings(endpoints=cluster.endpoints(first), root=root))


def lock_once(store: EtcdStore, name: str) -> None:
    mutex = ClusterMutex(name, store=store)
    assert mutex.acquire()
    mutex.release()
