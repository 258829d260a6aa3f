"""`ClusterMutex` and the state machine on stores that are slow, silent or late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lockclient import ClusterMutex, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome, Queued, Refused, Taken
from lockclient.stores.request_types import (
    GetPosition,
    Push,
    Read,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
    delivery_of,
)
from tests.support.locks import queue_up
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

OTHER = Holder("x", "other", hostname="h", pid=7)
Store = TypeVar("Store", bound=MemoryStore)


class SlowStore(MemoryStore):
    """A store that answers some requests only when the asker's time is up."""

    def __init__(self, slow: type[Request], seconds: float = 5) -> None:
        super().__init__()
        self.slow = slow
        self._seconds = seconds

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, self.slow):
            time.sleep(min(deadline.remaining(), self._seconds))
            raise StoreUnavailable("no answer", unknown=False)
        return super().ask(request, deadline)


def taken(store: Store) -> Store:
    """Another client has the lock."""
    store.model.apply(Take(OTHER))
    return store


def test_a_timeout_while_the_store_answers_is_no_store_error() -> None:
    store = taken(SlowStore(TakeOrQueue))
    assert ClusterMutex("x", store=store).acquire(timeout=0.2) is None


def test_a_timeout_without_any_answer_is_store_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        ClusterMutex("x", store=SlowStore(Take)).acquire(timeout=0.2)


def test_a_waiter_without_timeout_survives_an_outage() -> None:
    store = taken(SlowStore(TakeOrQueue, seconds=0.05))
    waiter = ClusterMutex("x", store=store)
    thread = threading.Thread(target=waiter.acquire)
    thread.start()
    time.sleep(0.3)  # several tries
    assert thread.is_alive()
    store.slow = Read
    wait_until(lambda: store.model.lock("x").tickets, what="the ticket")
    store.ask(Unlock("x", "other"), Deadline.after(1))
    thread.join(60)
    assert waiter.locked()
    waiter.release()


class SilentStore(MemoryStore):
    """Its watches never say anything."""

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Any:
        return super().watch(target, revision, lambda _: None)


def test_a_silent_watch_is_backed_by_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockclient.acquisition.acquire.POSITION_POLL_S", 0.2)
    store = taken(SilentStore())
    waiter = ClusterMutex("x", store=store)
    thread = queue_up(waiter)
    store.ask(Unlock("x", "other"), Deadline.after(1))
    thread.join(60)
    assert waiter.locked()
    waiter.release()


class RemovingStore(MemoryStore):
    """Loses the answer to the first take; the lock is removed before it is confirmed."""

    def __init__(self) -> None:
        super().__init__()
        self.victim: str | None = None

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        holder = self.model.lock("x").holder
        if isinstance(request, Push) and self.victim is None and holder is not None:
            self.victim = holder.uuid
            removal = Removal(holder, 1.0, "ann", "force-unlock", "why")
            self.ask(Remove(removal, None), deadline)
        outcome = super().send(request, deadline)
        if isinstance(request, Take) and self.asked == [request]:
            delivery_of(request).is_unknown = True
            raise StoreUnavailable("the answer is lost")
        return outcome


def test_a_removal_before_the_first_confirmed_push_needs_a_new_uuid() -> None:
    store = RemovingStore()
    with ClusterMutex("x", store=store) as held:
        assert store.victim is not None
        assert store.victim != held.uuid == store.model.lock("x").uuid()


class LateStore(MemoryStore):
    """A store in which the lock is released, and the ticket ahead goes, just before a watch begins.

    `begun` has the revisions from which watches were asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Any:
        self.begun.append(revision)
        if target.ticket is not None:
            self.ask(Withdraw("x", target.ticket), Deadline.after(1))
        self.ask(Unlock("x", "other"), Deadline.after(1))
        return super().watch(target, revision, notify)


@pytest.mark.parametrize("ahead", [0, 1, 31])
def test_events_before_the_watch_began_are_not_missed(ahead: int) -> None:
    store = taken(LateStore())
    for number in range(ahead):
        store.wait("x", f"ahead-{number:02}")
    waiter = ClusterMutex("x", store=store)
    thread = threading.Thread(target=waiter.acquire, daemon=True)
    thread.start()
    for number in range(ahead - 1):  # the last one goes as the waiter begins to watch it
        wait_until(lambda: store.begun, what="the first watch")
        store.ask(Withdraw("x", f"ahead-{number:02}"), Deadline.after(1))
    thread.join(20)
    assert waiter.locked(), "not by the look once a minute"
    assert set(store.begun) == {0}
    waiter.release()
    assert not store.watching()


class QueuelessStore(MemoryStore):
    """A store without a queue; `begun` counts its watches."""

    can = replace(MemoryStore.can, queue=False)
    begun = 0

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Any:
        self.begun += 1
        return super().watch(target, revision, notify)


def test_a_waiter_without_a_queue_watches_the_holder() -> None:
    """By one watch, as long as it waits: a store may serve waiters in the order of these."""
    store = taken(QueuelessStore())
    waiter = ClusterMutex("x", store=store)
    thread = threading.Thread(target=waiter.acquire, daemon=True)
    thread.start()
    wait_until(store.watching, what="its watch")
    store.ask(Unlock("x", "other"), Deadline.after(1))
    thread.join(20)
    assert waiter.locked(), "not by the look once a minute"
    assert {*map(type, store.asked)} <= {Take, Unlock, GetPosition}
    assert store.begun == 1
    waiter.release()
    assert not store.watching()


class RefusingStore(MemoryStore):
    """A store that may not be written to."""

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, Take | TakeOrQueue):
            raise StoreError("permission denied")
        return super().ask(request, deadline)


def test_a_refusal_is_raised_at_once() -> None:
    """Trying again won't cure it; nothing was done, so there is nothing to clean up."""
    store = RefusingStore()
    with pytest.raises(StoreError, match="permission denied"):
        ClusterMutex("x", store=store).acquire()
    assert store.asked == []


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ({"blocking": False}, [Take]),
        ({"timeout": 0.05}, [Take, TakeOrQueue, Withdraw]),
    ],
)
def test_the_number_of_requests_of_an_acquire(how: dict[str, float], kinds: list[type]) -> None:
    store = taken(MemoryStore())
    assert not ClusterMutex("x", store=store).acquire(**how)  # type: ignore[arg-type]
    assert [type(each) for each in store.asked] == kinds
    assert store.watching() == 0


class DoublingStore(MemoryStore):
    """A store that has sent each take twice; the second sending is still under way."""

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        outcome = super().send(request, deadline)
        delivery_of(request).is_unknown = isinstance(outcome, Taken | Refused | Queued)
        return outcome


@pytest.mark.parametrize("how", ["released", "refused", "gave up"])
def test_a_request_that_arrives_late_takes_nothing(how: str) -> None:
    """Held up in the network, it comes after its acquirer has come and gone."""
    store = DoublingStore()
    lock = store.model.lock("x")
    if how != "released":
        taken(store)
    one = ClusterMutex("x", store=store)
    if one.acquire(timeout=0 if how == "refused" else 0.05):
        one.release()
    else:
        store.ask(Unlock("x", "other"), Deadline.after(1))
    assert lock.holder is None
    wait_until(lambda: any(isinstance(each, Withdraw) for each in store.asked), what="its clean-up")
    for late in [each for each in store.asked if isinstance(each, Take | TakeOrQueue)]:
        store.ask(late, Deadline.after(1))
    assert (lock.holder, lock.tickets) == (None, {})


class LateTake(DoublingStore):
    """A store in which the second sending of a take arrives right after the unlock."""

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        outcome = super().send(request, deadline)
        if isinstance(request, Unlock):
            takes = [each for each in self.asked if isinstance(each, Take | TakeOrQueue)]
            self.late = [super(LateTake, self).send(late, deadline) for late in takes]
        return outcome


def test_a_late_take_finds_no_free_lock_between_a_release_and_its_tombstone() -> None:
    store = LateTake()
    with ClusterMutex("x", store=store):
        pass
    assert [type(outcome) for outcome in store.late] == [Refused]
