"""Background work of a store: ticket leases, clean-up, requests of the main thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

import pytest

from lockclient import ClusterMutex
from lockclient.acquisition.thread_driver import ThreadInbox
from lockclient.errors import StoreClosed, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.stores.common import background, ticket_leases
from lockclient.stores.mutex_store import WatchEvent
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, Take, Withdraw
from tests.support.memory_store import FailingStore, MemoryStore
from tests.support.processes import wait_until


class KeptStore(MemoryStore):
    """A store that counts how often tickets were kept, and may say that they are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool | Exception] = []
        self.kept = 0

    def extend_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        self.kept += 1
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


class BusyInbox(ThreadInbox):
    """The inbox of a waiter that can act only when the test says so."""

    def __init__(self, waiters: Hashable) -> None:
        super().__init__()
        self.waiter_group = waiters
        self.able = True

    def confirm(self, callback: Callable[[], object]) -> None:
        if self.able:
            callback()


class TestTickets:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ticket_leases, "TICKET_RENEWAL_S", 0.1)

    def test_the_ticket_lease_is_renewed_while_a_client_waits(self) -> None:
        store = KeptStore()
        tickets, inbox = store.background.tickets, ThreadInbox()
        tickets.join(inbox, "x", 1)
        wait_until(lambda: store.kept >= 3)
        tickets.leave(inbox)

        def is_quiet() -> bool:
            kept = store.kept
            time.sleep(0.3)
            return store.kept == kept

        wait_until(is_quiet, what="the end of the renewals")
        assert inbox.get(0) is None

    def test_frequent_wake_ups_do_not_delay_the_renewal(self) -> None:
        store = KeptStore()
        tickets = store.background.tickets
        until = time.monotonic() + 10
        while store.kept < 3:
            assert time.monotonic() < until
            inbox = ThreadInbox()
            tickets.join(inbox, "x", 1)
            time.sleep(0.01)
            tickets.leave(inbox)

    def test_a_lost_ticket_lease_wakes_each_waiter_and_they_queue_again_in_order(self) -> None:
        """One after the other; those of other locks and leases are not waited for."""
        store, gap = KeptStore(), WatchEvent(0, gap=True)
        store.answers = [False, False]
        tickets = store.background.tickets
        third, first, second, other_lock = (ThreadInbox() for _ in range(4))
        other_lease = BusyInbox("a loop")
        for inbox, revision in ((third, 7), (first, 3), (second, 5), (other_lease, 6)):
            tickets.join(inbox, "x", revision)
        tickets.join(other_lock, "y", 4)
        for inbox in (first, second, third, other_lock, other_lease):
            assert inbox.get(10) == gap
        wait_until(lambda: store.kept >= 3)
        assert not tickets.is_next(third)
        assert not tickets.is_next(second)
        assert all(map(tickets.is_next, (first, other_lock, other_lease)))
        tickets.join(ThreadInbox(), "x", 8)  # the first one's new ticket
        tickets.leave(first)
        assert (second.get(10), third.get(0)) == (gap, None)
        assert tickets.is_next(second)
        tickets.leave(second)
        assert third.get(10) == gap
        assert tickets.is_next(third)

    @pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("no right")])
    def test_a_failure_is_no_loss(self, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
        """It is tried again soon, and nobody gives up a place that may still stand."""
        store = KeptStore()
        store.answers = [error]
        tickets, inbox = store.background.tickets, ThreadInbox()
        tickets.join(inbox, "x", 1)
        wait_until(lambda: store.kept >= 2)
        assert inbox.get(0) is None
        assert f"could not be renewed; retrying: {error}" in caplog.text
        tickets.leave(inbox)

    def test_the_ticket_of_a_blocked_waiter_is_not_renewed(self) -> None:
        store = KeptStore()
        able, blocked = ThreadInbox(), BusyInbox("a loop")
        kept: list[Hashable] = []
        really = store.extend_tickets

        def keep(waiters: Hashable, deadline: Deadline) -> bool:
            kept.append(waiters)
            return really(waiters, deadline)

        store.extend_tickets = keep  # type: ignore[method-assign]
        for inbox in (able, blocked):
            store.background.tickets.join(inbox, "x", 1)
        wait_until(lambda: kept.count("a loop") >= 2)
        blocked.able = False
        wait_until(lambda: kept[-4:] == [None] * 4, what="renewals of one group only")
        blocked.able = True
        wait_until(lambda: kept[-2:].count("a loop"))


class TestCleaningUp:
    def test_a_closed_store_ends_the_clean_up(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        store = FailingStore(StoreClosed("The connection was closed."))
        store.ask(Take(Holder("x", "me", hostname="h")), Deadline.after(1))
        store.background.clean_up(Withdraw("x", "me"))
        wait_until(lambda: "the store was closed before it could be taken back" in caplog.text)
        wait_until(lambda: not store.background.unfinished(), what="the end of all clean-up")
        assert store.model.lock("x").holder is not None

    @pytest.mark.parametrize("error", [StoreError("no space"), OSError("no thread")])
    def test_a_refused_tombstone_is_retried(self, error: Exception) -> None:
        store = FailingStore(error)
        store.ask(Take(Holder("x", "me", hostname="h")), Deadline.after(1))
        store.background.clean_up(Withdraw("x", "me", tombstone=True))
        wait_until(lambda: store.model.lock("x").holder is None)
        assert not store.model.lock("x").marks
        wait_until(lambda: store.model.lock("x").marks == {"me"}, what="the mark")

    def test_clean_ups_run_several_at_once(self) -> None:
        under_way, most = set[str](), list[int]()

        class SlowStore(MemoryStore):
            def ask(self, request: Request, deadline: Deadline) -> Outcome:
                uuid = getattr(request, "uuid", "")
                under_way.add(uuid)
                most.append(len(under_way))
                time.sleep(0.005)
                under_way.discard(uuid)
                return super().ask(request, deadline)

        store = SlowStore()
        for number in range(1000):
            store.background.clean_up(Withdraw("x", f"{number}"))
        wait_until(lambda: not store.background.unfinished())
        assert 2 <= max(most) <= background.MAX_CLEAN_UPS

    def test_a_silent_store_is_owed_so_many_and_no_more(self) -> None:
        """Nothing is dropped: instead no acquisition begins, until the store has confirmed some."""
        store = MemoryStore()
        store.memory.away = True
        for number in range(background.MAX_OWED):
            store.background.clean_up(Withdraw("x", f"{number}", tombstone=True))
        with pytest.raises(StoreUnavailable, match="10,000 withdrawals") as caught:
            ClusterMutex("x", store=store).acquire()
        assert caught.value.unknown is False
        store.memory.away = False
        wait_until(lambda: not store.background.unfinished())
        assert len(store.model.lock("x").marks) == background.MAX_OWED
        with ClusterMutex("x", store=store):
            pass


class TestDeputies:
    def test_a_system_without_threads_is_store_unavailable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, done = MemoryStore(), list[int]()
        store.background.ready()

        def refuse(*_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading, "_start_new_thread", refuse)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="the system gives no thread") as caught:
            store.background.run_shielded(lambda: done.append(1))
        assert time.monotonic() - began < 2
        assert caught.value.unknown is False
        assert not done
