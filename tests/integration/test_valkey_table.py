"""The picture of all locks in Valkey servers: what a majority says, whoever of them is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import MAX_UUID_BYTES, Holder
from lockclient.model.removal import MAX_RECORD, Removal
from lockclient.overview.table import Table
from lockclient.stores.outcomes import Done, ReadResult, Taken
from lockclient.stores.requests import Read, Remove, Take, Unlock
from lockclient.stores.service_protocol import Change
from lockclient.stores.valkey.store import ValkeyStore
from tests.support.processes import wait_until
from tests.support.records import taker
from tests.support.valkey_servers import Server, Servers, running

SOON = Runtime(100.0, 200.0)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running(tmp_path_factory.mktemp("valkeys"), 5) as servers:
        yield servers


@pytest.fixture
def servers(five: Servers) -> Iterator[Servers]:
    yield Servers(five.all)
    for each in five.all:
        each.command("FLUSHALL")


@pytest.fixture
def store(servers: Servers) -> Iterator[ValkeyStore]:
    with servers.store() as opened:
        opened.poll = 0.05
        yield opened


@pytest.fixture
def writer(servers: Servers, store: ValkeyStore) -> Iterator[ValkeyStore]:
    """Another client, which tells the first one nothing."""
    del store  # it has vouched
    with servers.store(vouched=False) as opened:
        yield opened


class Watcher:
    """A table, and the removals that it has told."""

    def __init__(self, store: ValkeyStore) -> None:
        self.removals: list[Removal] = []
        self.table = Table(
            store, removals=100, on_removal=lambda found, _: self.removals.extend(found)
        )
        self.table.start()
        assert self.table.wait_ready(60)

    def held(self) -> dict[str, Holder]:
        """Return who holds what."""
        return {name: row.holder for name, row in self.table.rows().items() if row.held}


@pytest.fixture
def watcher(store: ValkeyStore) -> Iterator[Watcher]:
    made = Watcher(store)
    yield made
    made.table.stop()


def take(store: ValkeyStore, name: str) -> Holder:
    holder = taker(name, SOON)
    assert isinstance(store.ask(Take(holder), Deadline.after(30)), Taken)
    return holder


def seen(store: ValkeyStore, name: str) -> Holder:
    found = store.ask(Read(name), Deadline.after(30))
    assert isinstance(found, ReadResult)
    assert found.holder is not None
    return found.holder


def removed(store: ValkeyStore, holder: Holder, why: str = "silent") -> None:
    record = Removal(holder, time.time(), "unlocker-1", "auto-unlock", why)
    assert isinstance(store.ask(Remove(record, None), Deadline.after(30)), Done)


def unlock(store: ValkeyStore, holder: Holder) -> None:
    done = store.ask(Unlock(holder.name, holder.uuid or ""), Deadline.after(30))
    assert isinstance(done, Done)


def test_more_than_a_step_of_a_scan(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    """Other programs' keys are in between, and are not ours."""
    others = [word for number in range(3000) for word in (f"other/{number}", "x")]
    for server in servers.all:
        server.command("MSET", *others)
    for number in range(150):
        take(writer, f"lock-{number:03}")
    wait_until(lambda: len(watcher.held()) == 150)
    assert writer.names("lock-14", 5, Deadline.after(30)) == [f"lock-14{i}" for i in range(5)]


def test_a_record_that_is_forgotten_goes_with_the_next_look(
    watcher: Watcher, writer: ValkeyStore
) -> None:
    """Servers say how many they have."""
    holder = take(writer, "a")
    removed(writer, holder)
    wait_until(watcher.table.removals)
    forgotten = Change("removed", "a", holder.uuid or "", None, 0, 0)
    assert writer.forget(forgotten, Deadline.after(30))
    wait_until(lambda: not watcher.table.removals())


def test_a_majority_says_what_is_held(
    watcher: Watcher, store: ValkeyStore, writer: ValkeyStore, servers: Servers
) -> None:
    """What two of five say is no lock, as a taker and `show` see it; both say on how many it is."""
    holder = take(writer, "a")
    wait_until(lambda: "a" in watcher.held())
    key = writer.keys.lock("a")
    for each in servers.all[:2]:
        each.command("DEL", key)
    take(writer, "b")
    wait_until(lambda: "b" in watcher.held())
    assert "a" in watcher.held()
    servers.all[2].command("DEL", key)
    wait_until(lambda: "a" not in watcher.held())
    seen_now = writer.ask(Read("a", holder.uuid), Deadline.after(30))
    assert isinstance(seen_now, ReadResult)
    assert seen_now.holder is None
    few = f"'a': {holder.uuid} on 2 of 5 servers, and 3 make it a lock: nobody holds it."
    assert seen_now.warning == few
    wait_until(lambda: list(store.warnings_for_display()) == [few])


def test_one_of_five_away_changes_nothing(
    watcher: Watcher, store: ValkeyStore, writer: ValkeyStore, servers: Servers
) -> None:
    """Frozen, so that it answers nobody; also a lock that had three votes stays in the picture."""
    take(writer, "a")
    for each in servers.all[3:]:
        each.command("DEL", writer.keys.lock("a"))
    servers.all[0].freeze()
    try:
        holder = take(writer, "b")
        wait_until(lambda: set(watcher.held()) == {"a", "b"})
        away, few = wait_until(
            lambda: told if len(told := store.warnings_for_display()) == 2 else None
        )
        assert away.startswith(f"{servers.all[0].endpoint} has no vote: ")
        assert few.endswith("1 could not be asked, so that it may be held.")
        removed(writer, holder)
        wait_until(lambda: set(watcher.held()) == {"a"} and watcher.removals)
        assert watcher.table.connected()
    finally:
        servers.all[0].thaw()
    for each in servers.all[:3]:
        each.freeze()
    try:
        wait_until(lambda: not watcher.table.connected())
        assert set(watcher.held()) == {"a"}  # and it grows old
    finally:
        for each in servers.all[:3]:
            each.thaw()
    wait_until(watcher.table.connected)


def test_a_removal_that_came_to_nothing_is_not_told(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    """Its remover died after two of five servers: the lock is held still."""
    holder = take(writer, "a")
    servers.all[0].command("SET", writer.keys.record("a", holder.uuid or ""), "{}")
    servers.all[0].command("DEL", writer.keys.lock("a"))
    other = take(writer, "b")
    wait_until(lambda: "b" in watcher.held())
    removed(writer, other)
    wait_until(lambda: watcher.removals)
    assert [each.holder.name for each in watcher.table.removals()] == ["b"]
    assert "a" in watcher.held()


def test_the_latest_announcement_counts(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    writer.announce("u", '{"ttl": 60}', 60.0, Deadline.after(30))
    wait_until(lambda: watcher.table.unlockers() == {"u": '{"ttl": 60}'})
    servers.all[0].freeze()
    try:
        writer.announce("u", '{"ttl": 61}', 60.0, Deadline.after(30))
        wait_until(lambda: watcher.table.unlockers() == {"u": '{"ttl": 61}'})
    finally:
        servers.all[0].thaw()


def test_hostile_values_are_bounded(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    """Other kinds of keys, names that are none, bytes that are no text, numbers beyond all."""
    locks = writer.keys.locks
    for each in servers.all:
        each.command("SET", f"{locks}string", "x")
        each.command("HSET", f"{locks}a/b", "uuid", "two segments")
        each.command("HSET", f"{locks}%2", "uuid", "no escape")
        each.command("HSET", f"{locks}nobody", "hostname", "h")
        each.command("HSET", f"{locks}long", "uuid", "x" * 10**6, "push", "9" * 50)
        each.command("HSET", f"{locks}about", "uuid", "u", "push", "1", "about", "y" * 10**6)
        each.command("HSET", f"{locks}bytes", "uuid", b'\xff\n"\x00', "push", b"\xff")
        each.command("HSET", writer.keys.record("r", "list"), "a", "b")
        each.command("SET", writer.keys.record("r", "u"), "z" * (MAX_RECORD + 10))
        each.command("SET", writer.keys.record("r", "x" * (MAX_UUID_BYTES + 1)), "{}")
        each.command("HSET", writer.keys.announcement("s"), "said", "q" * 10**6, "number", "1e9")
        each.command("SET", writer.keys.announcement("t"), "x")
    wait_until(lambda: {"long", "about", "bytes"} <= set(watcher.held()))
    shown = watcher.held()
    assert set(shown) == {"long", "about", "bytes"}
    assert shown["about"].broken()
    assert shown["long"].broken()
    holder = take(writer, "sound")
    wait_until(lambda: "sound" in watcher.held())
    removed(writer, holder)
    wait_until(lambda: {each.holder.uuid for each in watcher.table.removals()} >= {holder.uuid})


def subscribers(server: Server, channel: str) -> int:
    _, number = server.command("PUBSUB", "NUMSUB", channel)
    return int(number)


def test_a_hand_over_is_seen_at_once(
    servers: Servers, store: ValkeyStore, writer: ValkeyStore
) -> None:
    """Who waits is told of a release, and so are services, which then look."""
    store.poll = 3600.0
    holder = take(writer, "a")
    watcher = Watcher(store)
    waiting = ClusterMutex("a", store=writer)
    try:
        with ThreadPoolExecutor(1) as thread:
            got = thread.submit(waiting.acquire)
            channel = writer.keys.channel("a")
            for each in servers.all:
                wait_until(partial(subscribers, each, channel), what="the waiter's ear")
            unlock(writer, holder)
            assert got.result(timeout=60)
        wait_until(lambda: watcher.held()["a"].uuid == waiting.uuid, what="the next holder")
        waiting.release()
    finally:
        watcher.table.stop()


def test_what_was_told_while_no_ear_was_there_is_seen(tmp_path: Path) -> None:
    """As the ear is back it is looked."""
    with running(tmp_path, 1) as one, one.store() as store:
        store.poll = 3600.0
        with one.store(vouched=False) as writer:
            holder = take(writer, "a")
            watcher = Watcher(store)
            try:
                wait_until(lambda: one.all[0].command("PUBSUB", "NUMPAT"), what="its ear")
                one.all[0].command("CLIENT", "KILL", "TYPE", "pubsub")
                unlock(writer, holder)
                wait_until(lambda: not watcher.held())
            finally:
                watcher.table.stop()


def test_each_release_of_one_server_is_seen_at_once(tmp_path: Path) -> None:
    """Which tells it in the same step, also if nobody waits; one hint after the other."""
    with running(tmp_path, 1) as one, one.store() as store:
        store.poll = 3600.0
        with one.store(vouched=False) as writer:
            holders = [take(writer, f"lock-{number}") for number in range(3)]
            watcher = Watcher(store)
            try:
                for holder in holders:
                    assert holder.name in watcher.held()
                    wait_until(lambda: one.all[0].command("PUBSUB", "NUMPAT"), what="its ear")
                    unlock(writer, holder)
                    wait_until(lambda: holder.name not in watcher.held())  # noqa: B023 - not kept
            finally:
                watcher.table.stop()
