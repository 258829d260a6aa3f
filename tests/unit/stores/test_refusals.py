"""Refusals that pass: waiters keep their places, and clean-ups follow the next success."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from lockclient import ClusterMutex
from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Claim, Request, Take, TakeOrQueue, Withdraw
from tests.contract.drivers import InThreads, Make, OnALoop, running_loop
from tests.support.memory_store import FailingStore, MemoryStore
from tests.support.processes import wait_until


@pytest.fixture(params=["threads", "asyncio"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "threads":
        yield InThreads
        return
    with running_loop() as loop:
        yield partial(OnALoop, loop)


class FullStore(MemoryStore):
    """A store that can be full: then it refuses takes, and still executes releases."""

    is_full = False
    refused = 0

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if self.is_full and isinstance(request, Take | TakeOrQueue | Claim):
            self.refused += 1
            raise StoreFull("no space")
        return super().ask(request, deadline)


def test_a_waiter_waits_on_while_the_store_is_full(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A release passes the turn on, whose claim is refused until there is space again."""
    store = FullStore()
    holder, waiter = ClusterMutex("x", store=store), make("x", store=store)
    holder.acquire()
    with ThreadPoolExecutor() as threads:
        turn = threads.submit(waiter.acquire)
        wait_until(holder.waiters, what="the waiter in the queue")
        store.is_full = True
        holder.release()
        wait_until(lambda: store.refused >= 2, what="a second claim")
        assert not waiter.locked()
        with pytest.raises(StoreFull):
            make("x", store=store).acquire()
        store.is_full = False
        assert turn.result(60)
    assert caplog.text.count("Still waiting for the lock 'x', though the store is full") == 1
    waiter.release_held()


def test_a_full_store_ends_no_wait_later_than_its_timeout(make: Make) -> None:
    store = FullStore()
    with ThreadPoolExecutor() as threads, ClusterMutex("x", store=store) as held:
        waiter = make("x", store=store)
        acquired = threads.submit(waiter.acquire, timeout=3.0)
        wait_until(held.waiters, what="the waiter in the queue")
        store.is_full = True
        held.release()
        assert acquired.result() is None
        assert store.refused
        wait_until(lambda: not held.waiters(), what="an empty queue")


TRIES_TO_LONGEST_PAUSE = 7
"""The pause after so many failures is the longest one: 5 s."""


@pytest.mark.parametrize("error", [StoreError("no right"), StoreUnavailable("away")])
def test_a_success_repeats_failed_clean_ups_at_once(make: Make, error: Exception) -> None:
    """Any request of a mutex shows that the store answers, and a clean-up that it accepts."""
    store = FailingStore(*[error] * TRIES_TO_LONGEST_PAUSE)
    store.background.clean_up(Withdraw("x", "me", tombstone=True))
    wait_until(lambda: not store.failures, what="the failures")
    failed_at = time.monotonic()
    assert make("y", store=store).acquire()
    store.release("y")
    wait_until(lambda: store.model.lock("x").marks == {"me"}, what="the mark")
    assert time.monotonic() - failed_at < 5


def test_a_refused_clean_up_does_not_follow_each_success() -> None:
    """One name without a right costs a try a second at most, whatever else is asked."""
    store = FailingStore(*[StoreError("no right")] * 1000)
    store.background.clean_up(Withdraw("x", "me"))
    wait_until(lambda: len(store.failures) <= 1000 - TRIES_TO_LONGEST_PAUSE, what="the failures")
    began, left = time.monotonic(), len(store.failures)
    for _ in range(500):
        with ClusterMutex("y", store=store):
            pass
    assert left - len(store.failures) <= 2 + (time.monotonic() - began)
    store.failures.clear()  # else its thread works on, beside other tests
    wait_until(lambda: not store.background.unfinished(), what="the withdrawal")
