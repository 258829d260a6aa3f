"""A learner stands first in a client's list: a member that is being replaced is one for a while.

It refuses nearly all requests: with UNAVAILABLE up to etcd 3.5, like a member that is down, and
with FAILED_PRECONDITION from 3.6 on, like a request that is wrong. A whole replacement under load
is in `test_failover.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import etcd3
import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings, StoreUnavailable, open_store
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.mutex_store import MutexStore
from tests.support.etcd_binary import add_users, etcdctl_of, served
from tests.support.etcd_learner import REFUSAL, voter_and_learner
from tests.support.locks import has, queue_up
from tests.support.processes import wait_until
from tests.support.unlocker_process import REMOVED, unlocker, when_ready
from tests.support.unlocker_process import figure as sample

PROMPT_S = 10.0
"""Seconds after which a call without an answer has failed, on a busy machine, too."""
Pair = tuple[Etcd, Etcd]
"""A voting member and a learner."""


@pytest.fixture
def pair(etcd_binary: str, tmp_path: Path) -> Iterator[Pair]:
    with voter_and_learner(etcd_binary, tmp_path, "--bcrypt-cost=4") as members:
        yield members


def learner_first(pair: Pair, **more: Any) -> Settings:
    voter, learner = pair
    return Settings((learner.endpoint, voter.endpoint), **more)


def test_threads_go_on_to_another_member(pair: Pair) -> None:
    """Requests, the watch of a waiter, and the lease of its ticket."""
    voter, _ = pair
    with closing(open_store(learner_first(pair))) as store:
        holder, waiter = (ClusterMutex("x", store=store) for _ in range(2))
        assert holder.acquire(timeout=5)
        thread = queue_up(waiter)
        voter.stop()  # the stream is opened on the learner, and then on the voter again
        voter.start()
        wait_until(lambda: store.watch_restarts() and store.connected(), what="the watch again")
        wait_until(lambda: served(voter)["LeaseKeepAlive"], what="a renewal of the ticket's lease")
        assert len(holder.waiters()) == 1
        holder.release()
        thread.join(30)
        assert waiter.locked()
        waiter.release()


async def hand_over(store: MutexStore) -> None:
    """Hand a lock over from one task to another."""
    holder, waiter = (AsyncClusterMutex("x", store=store) for _ in range(2))
    assert await holder.acquire(timeout=5)
    waiting = asyncio.create_task(waiter.acquire(timeout=60))
    while not await holder.waiters():
        await asyncio.sleep(0.02)
    await holder.release()
    assert await waiting
    await waiter.release()


@pytest.mark.parametrize("user", [None, "ann"])
def test_tasks_go_on_to_another_member(pair: Pair, user: str | None) -> None:
    """Also to get a token, which a learner does not give."""
    if user:
        add_users(etcdctl_of(pair[0]), ann=("/clustermutex/",))
    settings = learner_first(pair, user=user, password=user)
    with closing(open_store(settings)) as store:
        asyncio.run(hand_over(store))
    with closing(open_store(settings)) as store, ClusterMutex("x", store=store, timeout=5) as held:
        held.alive(force=True)


def test_a_client_that_lists_only_a_learner_reads_why(pair: Pair) -> None:
    """By its own connection, and by that of an `etcd3` client, which has one endpoint at a time."""
    _, learner = pair
    with etcd3.client(port=learner.port) as client:
        for lent in (None, client):
            with closing(open_store(Settings((learner.endpoint,)), lent)) as store:
                began = time.monotonic()
                with pytest.raises(StoreUnavailable, match=REFUSAL) as raised:
                    ClusterMutex("x", store=store).acquire(timeout=1)
                assert time.monotonic() - began < PROMPT_S
                assert not raised.value.unknown, "a learner executes nothing"


def test_an_unlocker_starts_alerts_and_removes(pair: Pair) -> None:
    settings = learner_first(pair)
    with when_ready(unlocker(settings)) as service, closing(open_store(settings)) as store:
        mutex = ClusterMutex("x", expected_runtime=1, auto_unlock_after=2, store=store)
        assert mutex.acquire(timeout=5)
        wait_until(lambda: has(store, "x") is None, what="the removal")
        wait_until(lambda: sample(service, REMOVED) == 1, what="the count")
        assert "Lock 'x' is past its alert" in service.log_text()
