"""Requests while some servers are unreachable or slow, and the others alone can't decide."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, LockLost, StoreUnavailable
from lockclient.stores.common.lock_poll import POLL_INTERVAL_S
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import Done, Position, Refused
from lockclient.stores.request_types import GetPosition, Remove, Take
from lockclient.stores.valkey.keys import KeyNames
from tests.contract.asking import NAME, NEVER, holder, removal
from tests.support.following import following
from tests.support.locks import ask, has, read, take, unlock
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.valkey_servers import Servers, ValkeyStore, opened, running


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Servers]:
    """Three servers that may be killed."""
    with running(tmp_path, 3) as servers:
        yield servers


class TestUndecided:
    """One server has a lock, another one has it not, and the third is unreachable."""

    @pytest.fixture
    def left(self, three: Servers) -> Iterator[tuple[ValkeyStore, str]]:
        with three.store() as store:
            uuid, _ = take(store)
            three.all[0].command("DEL", KeyNames(three.root).lock(NAME))
            three.all[2].kill()
            yield store, uuid

    def test_a_possible_holder_is_shown_with_a_remark(
        self, three: Servers, left: tuple[ValkeyStore, str]
    ) -> None:
        store, uuid = left
        seen = read(store, NAME)
        assert seen.holder is not None
        assert seen.holder.uuid == uuid
        assert "on 1 of 3 servers" in seen.warning
        assert "may be held" in seen.warning
        look = ask(store, GetPosition(NAME, "waiter", 0))
        assert isinstance(look, Position)
        assert look.holder == uuid
        refused = ask(store, Take(holder()))
        assert isinstance(refused, Refused)
        assert refused.holder == uuid
        # Of two each can be looked at, to be removed.
        key, other = KeyNames(three.root).lock(NAME), "another-uuid"
        three.all[0].command("RESTORE", key, "0", three.all[1].command("DUMP", key))
        three.all[0].command("HSET", key, "uuid", other)
        for asked in (uuid, other):
            assert (found := read(store, NAME, asked).holder) is not None
            assert found.uuid == asked

    def test_a_possible_holder_can_be_removed(self, left: tuple[ValkeyStore, str]) -> None:
        store, uuid = left
        seen = read(store, NAME, uuid)
        assert seen.holder is not None
        assert ask(store, Remove(removal(seen.holder), seen.holder.stamp_revisions)) == Done(0)
        assert read(store, NAME, uuid).removal is not None
        take(store)


class TestLeftover:
    """One of three servers has what is left of a lock, of which another one is a holder's."""

    @pytest.fixture
    def mine(self, three: Servers) -> Iterator[tuple[ValkeyStore, str]]:
        with three.store() as store:
            uuid, _ = take(store)
            three.all[2].command("HSET", KeyNames(three.root).lock(NAME), "uuid", "z-left")
            yield store, uuid

    def test_no_loss_is_reported_without_a_majority(
        self, three: Servers, mine: tuple[ValkeyStore, str]
    ) -> None:
        store, uuid = mine
        three.all[0].kill()
        with pytest.raises(StoreUnavailable):  # its watch asks like this
            ask(store, GetPosition(NAME, "", 0), 1.0)
        seen = read(store, NAME, uuid)
        assert seen.holder is not None
        assert seen.holder.uuid == uuid
        three.all[0].start()
        wait_until(lambda: not any(store.votes().values()), what="all votes")
        assert has(store) == uuid

    def test_the_possible_holder_stays_in_the_list(
        self, three: Servers, mine: tuple[ValkeyStore, str]
    ) -> None:
        store, uuid = mine
        store.poll = 0.05
        with following(store) as table:
            three.all[0].kill()
            wait_until(lambda: any("may be held" in said for said in store.warnings_for_display()))
            (row,) = table.rows().values()
            assert row.holder.uuid == uuid


def test_a_take_clears_the_remains_of_an_ended_lock(three: Servers) -> None:
    with three.store() as store:
        missed, key = three.all[2], KeyNames(three.root).lock(NAME)
        dead, _ = take(store, holder(**NEVER))
        kept = missed.command("DUMP", key)
        unlock(store, dead)
        missed.command("RESTORE", key, "0", kept)
        uuid, _ = take(store)
        wait_until(lambda: not missed.command("EXISTS", key), what="the end of what is left")
        assert has(store) == uuid


@pytest.fixture
def slow(three: Servers) -> Iterator[Relay]:
    with three.store(), Relay(three.all[2].endpoint) as slow:  # they are vouched for
        yield slow


@pytest.fixture
def store(three: Servers, slow: Relay) -> Iterator[ValkeyStore]:
    place = three.place()
    there = (*place.endpoints[:2], slow.endpoint)
    with closing(opened(replace(place, endpoints=there))) as store:
        yield store


def test_a_silent_subscription_is_noticed(three: Servers, slow: Relay, store: ValkeyStore) -> None:
    events: list[WatchEvent] = []
    listening = store.watch(WatchTarget(NAME, waiter="a waiter"), 0, events.append)
    subscribers = partial(three.all[2].command, "PUBSUB", "NUMSUB", store.keys.channel(NAME))
    wait_until(lambda: subscribers()[1] == 1, what="its ear")
    slow.swallow()
    wait_until(lambda: subscribers()[1] == 2, what="a new ear")  # it has not seen the old one end
    told = len(events)
    three.all[2].command("PUBLISH", store.keys.channel(NAME), "a uuid")
    wait_until(lambda: len(events) > told, what="the hint")
    listening.close()


def test_servers_with_swapped_addresses_vote_again(three: Servers) -> None:
    place = three.place()
    with ExitStack() as stack:
        stack.enter_context(three.store())
        one, other = (stack.enter_context(Relay(at)) for at in place.endpoints[1:])
        there = replace(place, endpoints=(place.endpoints[0], one.endpoint, other.endpoint))
        store = stack.enter_context(closing(opened(there)))
        uuid, _ = take(store)
        wait_until(lambda: not any(store.votes().values()), what="all votes")
        one.swap(other)
        assert has(store) == uuid
        wait_until(lambda: not any(store.votes().values()), what="all votes again")


def test_a_flood_of_hints_is_borne(three: Servers, store: ValkeyStore) -> None:
    events: list[WatchEvent] = []
    listening = store.watch(WatchTarget(NAME, waiter="a waiter"), 0, events.append)
    channel = store.keys.channel(NAME)
    wait_until(lambda: three.all[0].command("PUBSUB", "NUMSUB", channel)[1] == 1, what="its ear")
    publish = "redis.call('PUBLISH', KEYS[1], {})"
    script = f"for i = 1, 20000 do {publish.format('i')} end"
    three.all[0].command("EVAL", script, "1", channel)

    def is_heard() -> bool:
        """Tell whether it has read all that the server has to tell it."""
        clients = three.all[0].command("CLIENT LIST", "TYPE", "pubsub")
        return all(client["omem"] == "0" for client in clients)

    wait_until(is_heard, what="the end of the flood")
    assert len(events) < 1000
    listening.close()


def test_late_answers_leave_no_tombstone_and_keep_their_connection(
    three: Servers, slow: Relay, store: ValkeyStore
) -> None:
    """One server is 160 ms away: it has no vote, and yet what it answers is known."""
    with ClusterMutex(NAME, store=store):
        wait_until(lambda: not any(store.votes().values()), what="all votes")
    slow.delay = 0.08
    for _ in range(5):
        with ClusterMutex(NAME, store=store):
            assert not ClusterMutex(NAME, store=store).acquire(timeout=0.05)
    store.settle(10.0)
    assert three.all[2].command("KEYS", f"{three.root}/[lw]*") == []
    assert not any(store.votes().values())
    assert slow.accepted < 10


def test_an_answer_of_an_unknown_shape_is_no_vote(slow: Relay, store: ValkeyStore) -> None:
    slow.change = lambda said: said.replace(b"$5\r\ntaken\r\n", b":5\r\n")
    with ClusterMutex(NAME, store=store):
        told = f"{slow.endpoint} has no vote: it answers, and not as Valkey does."
        wait_until(lambda: told in store.warnings_for_display(), what="the trouble")
        slow.change = bytes
    wait_until(lambda: not any(store.votes().values()), what="all votes")
    began = time.monotonic()
    store.settle(10.0)
    assert time.monotonic() - began < 5.0


class TestSlowServer:
    """One server needs seconds to let a client in; the others are a majority."""

    @pytest.fixture
    def slow(self, three: Servers) -> Iterator[Relay]:
        with three.store(), Relay(three.all[2].endpoint) as slow:
            slow.delay = 0.6
            yield slow

    def test_many_at_once_do_not_queue_at_its_door(self, store: ValkeyStore) -> None:
        def take_one(number: int) -> None:
            with ClusterMutex(f"lock-{number}", store=store):
                pass

        with ThreadPoolExecutor(60) as threads:
            list(threads.map(take_one, range(60)))


def test_a_loss_in_the_first_second_is_reported(three: Servers) -> None:
    def told_after(store: ValkeyStore) -> float:
        told = threading.Event()
        mutex = ClusterMutex(NAME, store=store, on_lost=lambda *_: told.set())
        assert mutex.acquire()
        three.command("DEL", KeyNames(three.root).lock(NAME))
        began = time.monotonic()
        assert told.wait(30)
        with pytest.raises(LockLost):
            mutex.release()
        return time.monotonic() - began

    with three.store() as store:
        assert any(told_after(store) < POLL_INTERVAL_S + 0.7 for _ in range(3))
