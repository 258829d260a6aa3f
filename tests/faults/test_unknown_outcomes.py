"""A request that is late, lost or unanswered: at every request of every life, in every way.

A life is what a client does with one lock. Each is lived undisturbed first, to count its requests,
and then once for each of them and each fault, through a proxy of its own
(see `tests.support.tcp_proxy`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest

from lockclient import StoreUnavailable
from lockclient.acquisition import attempt, holding
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores import protocol
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import failover
from lockclient.stores.requests import Claim, Reclaim, Take, TakeOrQueue, Unlock
from tests.contract.drivers import running_loop
from tests.faults.clients import Client, Interruption, Life, Others, Session
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking
from tests.support.tcp_proxy import Fault, Proxy

PATIENT = 90.0
"""Seconds for an answer in any case, of which each client has fewer: so many of them live at once
that on a busy machine none comes for long."""
FIRST_TRY_S = 0.3
"""Seconds: so that each fault costs little. More than an interrupted caller waits."""
AT_ONCE = 16
"""Lives at the same time: most of their time they wait."""
UNDISTURBED = 3
"""Lives of each kind in which nothing happens."""
OFFERS = 5
"""Lives in which a fault may fail to have its turn, because the life's own time was up before."""
OF_A_WATCH = (Fault.LOSE_ANSWER, Fault.DELAY_ANSWER, Fault.CUT_BEFORE, Fault.CUT_AFTER)
"""A watch does nothing to the store: it can't be done too late."""

DRIVERS = ("threads", "asyncio")
pytestmark = pytest.mark.parametrize("driver", DRIVERS)


# ---------------------------------------------------------------- lives


def take_push_release(client: Client) -> None:
    lock = client.mutex()
    assert lock.acquire()
    client.holds(lock)
    client.pushes(lock)
    client.releases(lock)


def take_at_once(client: Client) -> None:
    lock = client.mutex()
    assert lock.acquire(blocking=False)
    client.holds(lock)
    client.releases(lock)


def refused(client: Client) -> None:
    holder = client.others.take()
    lock = client.mutex()
    assert not lock.acquire(blocking=False)
    assert not lock.locked()
    assert client.others.has_it(holder)
    client.others.unlock(holder)


def too_late(client: Client) -> None:
    """The try of the first request ends with the caller's time."""
    lock = client.mutex()
    try:
        got = lock.acquire(timeout=FIRST_TRY_S / 2)
    except StoreUnavailable:
        got = False
    assert lock.locked() == bool(got)
    if got:
        client.holds(lock)
        client.releases(lock)


def wait_claim_release(client: Client) -> None:
    holder = client.others.take()
    lock = client.mutex()
    with client.queueing(lock):
        client.others.unlock(holder)
    client.holds(lock)
    client.releases(lock)


def wait_behind_another(client: Client) -> None:
    holder = client.others.take()
    ahead = client.others.queue()
    lock = client.mutex()
    with client.queueing(lock):
        before = client.proxy.answered["Txn"]
        client.others.unlock(holder)
        client.others.claim(ahead)
        wait_until(lambda: client.proxy.answered["Txn"] > before, what="a look at the line")
        assert not lock.locked()
        client.others.unlock(ahead[0])
    client.holds(lock)
    client.releases(lock)


def time_out_in_line(client: Client) -> None:
    holder = client.others.take()
    lock = client.mutex()
    with suppress(StoreUnavailable):  # on a busy machine nothing was answered in that time
        assert not lock.acquire(timeout=2)
    assert not lock.locked()
    assert client.others.has_it(holder)
    client.others.unlock(holder)


def come_back(client: Client) -> None:
    dead = client.others.take("worker-7")
    lock = client.mutex("worker-7")
    assert lock.acquire()
    client.holds(lock)
    assert not client.others.has_it(dead)
    client.releases(lock)


def interrupted_taking(client: Client) -> None:
    lock = client.mutex()
    with pytest.raises(client.session.interruption):
        lock.acquire()
    assert not lock.locked()


def interrupted_queueing(client: Client) -> None:
    holder = client.others.take()
    interrupted_taking(client)
    assert client.others.has_it(holder)
    client.others.unlock(holder)


def interrupted_claiming(client: Client) -> None:
    holder = client.others.take()
    lock = client.mutex()
    with pytest.raises(client.session.interruption), client.queueing(lock):
        client.others.unlock(holder)
    assert not lock.locked()


def interrupted_coming_back(client: Client) -> None:
    dead = client.others.take("worker-7")
    client.at_last = lambda: client.others.unlock(dead)  # until then a late request can take it
    lock = client.mutex("worker-7")
    with pytest.raises(client.session.interruption):
        lock.acquire()
    assert not lock.locked()


def interrupted_releasing(client: Client) -> None:
    lock = client.mutex()
    assert lock.acquire()
    client.holds(lock)
    with pytest.raises(client.session.interruption):
        lock.release()
    assert not lock.locked()
    assert client.losses == []


LIVES: dict[Life, Interruption | None] = {
    take_push_release: None,
    take_at_once: None,
    refused: None,
    too_late: None,
    wait_claim_release: None,
    wait_behind_another: None,
    time_out_in_line: None,
    come_back: None,
    interrupted_taking: Take,
    interrupted_queueing: TakeOrQueue,
    interrupted_claiming: Claim,
    interrupted_coming_back: Reclaim,
    interrupted_releasing: Unlock,
}
"""Each with the request in the middle of which it is interrupted."""


# ---------------------------------------------------------------- the matrix


class Matrix:
    """Lets clients live; they stay until all clean-up is done."""

    def __init__(self, etcd: Etcd, root: str, driver: str) -> None:
        self._etcd = etcd
        self._root = root
        self._stack = ExitStack()
        asynchronous = driver == "asyncio"
        self._loop = self._stack.enter_context(running_loop()) if asynchronous else None
        self._store = self._stack.enter_context(closing(EtcdStore(self._location(etcd.endpoint))))
        self.clients: list[Client] = []

    def _location(self, endpoint: str) -> EtcdLocation:
        return EtcdLocation(endpoints=(endpoint,), root=self._root)

    def client(self, name: str, interruption: Interruption | None = None) -> Client:
        proxy = self._stack.enter_context(Proxy(self._etcd.endpoint))
        session = Session(self._location(proxy.endpoint), interruption, self._loop)
        self._stack.callback(session.close)
        client = Client(proxy, session, Others(self._store, name), name)
        self.clients.append(client)
        return client

    def undisturbed(self, life: Life) -> list[str]:
        """Live it; return its requests: the fewest, as it looks once more when news comes late."""
        found = []
        for number in range(UNDISTURBED):
            client = self.client(f"{life.__name__} {number}", LIVES[life])
            client.live(life)
            found.append(list(client.proxy.requests))
        return min(found, key=len)

    def disturbed(self, life: Life, fault: Fault, number: int) -> None:
        """Live it with a fault at one of its requests."""
        name = f"{life.__name__}, {fault.name} at request {number}"
        try:
            for _ in range(OFFERS):
                client = self.client(f"{name} ({len(self.clients)})", LIVES[life])
                client.proxy.inject(fault, number)
                client.live(life)
                if client.proxy.met():
                    break
            if fault is Fault.HOLD_TO_THE_END:
                client.proxy.deliver()
            wait_until(client.proxy.injected, what="the fault")
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error

    def orphans(self) -> list[str]:
        """Name the locks and tickets that stay in the store when all is over."""
        for client in self.clients:
            client.at_last()
        until, left = Deadline.after(20), self._left()
        while left and not until.expired():  # a request that was cut off may be under way yet
            time.sleep(0.2)
            left = self._left()
        return sorted(left)

    def _left(self) -> set[str]:
        batches = self._store.load(("locks", "queue"), Deadline.after(60))
        return {f"{change.kind}: {change.name}" for batch in batches for change in batch.changes}

    def __enter__(self) -> Matrix:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


@pytest.fixture
def matrix(etcd: Etcd, root: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Matrix]:
    monkeypatch.setattr(holding, "WATCH_AFTER", 0.0)
    monkeypatch.setattr(attempt, "ONE_ANSWER_S", PATIENT)
    monkeypatch.setattr(protocol, "STORE_TIMEOUT_S", PATIENT)
    with Matrix(etcd, root, driver) as made:
        yield made


@pytest.mark.promise(number=6)
@pytest.mark.promise(number=7)
@pytest.mark.parametrize("step", [len(DRIVERS), *soaking(1)], ids=["in turn", "each"])
def test_the_caller_and_the_store_agree_in_the_end(
    matrix: Matrix, driver: str, step: int, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """Whatever happens to a request: no lock or ticket stays behind, no holder is told "lost".

    In `make test` each fault meets each request of each life by one driver, in turn.
    """
    requests = {life: matrix.undisturbed(life) for life in LIVES}
    monkeypatch.setattr(failover, "FIRST_TRY_S", FIRST_TRY_S)
    plan = [
        (life, fault, number)
        for fault in reversed(Fault)
        for life, names in requests.items()
        for number, name in enumerate(names, 1)
        if name != "Watch" or fault in OF_A_WATCH
    ][DRIVERS.index(driver) % step :: step]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(matrix.disturbed, *fault) for fault in plan]:
            done.result()
    assert matrix.orphans() == []
    assert [loss for client in matrix.clients for loss in client.losses] == []
    sent = sum(len(client.proxy.requests) for client in matrix.clients)
    needed = sum(len(requests[life]) for life, _, _ in plan)
    kinds = Counter(fault.value for _, fault, _ in plan)
    figure(
        f"{len(plan)} faults in {len(LIVES)} lives of {sum(map(len, requests.values()))} requests ("
        + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        + f"), {sent} tries for {needed} requests, orphans 0, false losses 0"
    )


def test_a_late_push_does_not_put_the_stamps_back(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an unlocker that starts later would go by an older heartbeat than the holder."""
    monkeypatch.setattr(failover, "FIRST_TRY_S", FIRST_TRY_S)
    client = matrix.client("late push")
    lock = client.mutex()
    assert lock.acquire()
    client.holds(lock)
    client.proxy.inject(Fault.HOLD_TO_THE_END)
    client.pushes(lock)
    client.pushes(lock)
    client.proxy.deliver()
    client.holds(lock)
    client.releases(lock)
