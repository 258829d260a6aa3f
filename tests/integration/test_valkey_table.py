"""The table of locks in Valkey servers: the view of a majority, if some are unreachable."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_UUID_BYTES, Holder
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.valkey.keys import LATE_REQUEST_S
from tests.contract.following import Watcher, remove, take, unlock
from tests.support.locks import read, soon
from tests.support.processes import wait_until
from tests.support.valkey_servers import Server, Servers, ValkeyStore, frozen, running


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with running(tmp_path_factory.mktemp("valkeys"), 5) as servers:
        yield servers


@pytest.fixture
def servers(five: Servers) -> Iterator[Servers]:
    yield Servers(five.all)
    five.command("FLUSHALL")


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


def held(watcher: Watcher) -> dict[str, Holder]:
    return {name: row.holder for name, row in watcher.table.rows().items() if row.held}


@pytest.fixture
def watcher(store: ValkeyStore) -> Iterator[Watcher]:
    made = Watcher(store)
    yield made
    made.table.stop()


def test_the_index_alone_is_read(watcher: Watcher, writer: ValkeyStore, servers: Servers) -> None:
    """More entries than one step returns; other programs' keys cost nothing."""
    others = [word for number in range(3000) for word in (f"other/{number}", "x")]
    servers.command("MSET", *others)
    for number in range(600):
        take(writer, f"lock-{number:03}")
    wait_until(lambda: len(held(watcher)) == 600)
    assert writer.names("lock-14", 5, soon()) == [f"lock-14{i}" for i in range(5)]
    assert all("cmdstat_scan" not in told for told in servers.command("INFO", "commandstats"))


def test_entries_go_with_their_keys(writer: ValkeyStore, servers: Servers) -> None:
    """By a release, and after an expiry or a deletion by hand by the takes that follow."""
    index = writer.keys.lock_index
    for number in range(20):
        take(writer, f"lock-{number}")
    unlock(writer, take(writer, "released"))
    assert servers.command("SISMEMBER", index, "released") == [0] * 5
    servers.command("DEL", *(writer.keys.lock(f"lock-{number}") for number in range(20)))

    def is_swept() -> bool:
        unlock(writer, take(writer, "other"))
        return servers.command("SCARD", index) == [0] * 5

    wait_until(is_swept, what="the sweep")


def test_a_client_without_the_index_is_refused(writer: ValkeyStore, servers: Servers) -> None:
    servers.command("HSET", writer.keys.server, "terms", "servers=5 longest=3600")
    with pytest.raises(StoreError, match="of another release"):
        take(writer, "a")


def test_a_majority_decides_which_locks_are_held(
    watcher: Watcher, store: ValkeyStore, writer: ValkeyStore, servers: Servers
) -> None:
    holder = take(writer, "a")
    wait_until(lambda: "a" in held(watcher))
    key = writer.keys.lock("a")
    Servers(servers.all[:2]).command("DEL", key)
    take(writer, "b")
    wait_until(lambda: "b" in held(watcher))
    assert "a" in held(watcher)
    servers.all[2].command("DEL", key)
    wait_until(lambda: "a" not in held(watcher))
    seen_now = read(writer, "a", holder.uuid)
    assert seen_now.holder is None
    few = f"'a': {holder.uuid} on 2 of 5 servers, and 3 make it a lock: nobody holds it."
    assert seen_now.warning == few
    wait_until(lambda: list(store.warnings_for_display()) == [few])


def test_one_of_five_unreachable_changes_nothing(
    watcher: Watcher, store: ValkeyStore, writer: ValkeyStore, servers: Servers
) -> None:
    take(writer, "a")
    Servers(servers.all[3:]).command("DEL", writer.keys.lock("a"))
    with frozen(servers.all[0]):
        holder = take(writer, "b")
        wait_until(lambda: set(held(watcher)) == {"a", "b"})
        away, few = wait_until(
            lambda: told if len(told := store.warnings_for_display()) == 2 else None
        )
        assert away.startswith(f"{servers.all[0].endpoint} has no vote: ")
        assert few.endswith("1 could not be asked, so that it may be held.")
        remove(writer, holder)
        wait_until(lambda: set(held(watcher)) == {"a"} and watcher.removals)
        assert watcher.table.connected()
    with frozen(*servers.all[:3]):
        wait_until(lambda: not watcher.table.connected())
        assert set(held(watcher)) == {"a"}  # and it grows old
    wait_until(watcher.table.connected)


def test_an_incomplete_removal_is_not_reported(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    holder = take(writer, "a")
    servers.all[0].command("SET", writer.keys.record("a", holder.uuid or ""), "{}")
    servers.all[0].command("DEL", writer.keys.lock("a"))
    other = take(writer, "b")
    wait_until(lambda: "b" in held(watcher))
    remove(writer, other)
    wait_until(lambda: watcher.removals)
    assert [removal.holder.name for removal in watcher.table.removals()] == ["b"]
    assert "a" in held(watcher)


def test_the_latest_announcement_counts(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    writer.announce("u", '{"ttl": 60}', 60.0, soon())
    wait_until(lambda: watcher.table.unlockers() == {"u": '{"ttl": 60}'})
    with frozen(servers.all[0]):
        writer.announce("u", '{"ttl": 61}', 60.0, soon())
        wait_until(lambda: watcher.table.unlockers() == {"u": '{"ttl": 61}'})


def test_hostile_values_are_bounded(
    watcher: Watcher, writer: ValkeyStore, servers: Servers
) -> None:
    """Other kinds of keys, names that are none, bytes that are no text, numbers beyond all.

    An unlocker walks the keyspace and finds what was written by hand.
    """
    locks = writer.keys.locks
    servers.command("SET", f"{locks}string", "x")
    servers.command("HSET", f"{locks}a/b", "uuid", "two segments")
    servers.command("HSET", f"{locks}%2", "uuid", "no escape")
    servers.command("HSET", f"{locks}nobody", "hostname", "h")
    servers.command("HSET", f"{locks}long", "uuid", "x" * 10**6, "push", "9" * 50)
    servers.command("HSET", f"{locks}about", "uuid", "u", "push", "1", "about", "y" * 10**6)
    servers.command("HSET", f"{locks}bytes", "uuid", b'\xff\n"\x00', "push", b"\xff")
    servers.command("HSET", writer.keys.record("r", "list"), "a", "b")
    servers.command("SET", writer.keys.record("r", "u"), "z" * (MAX_RECORD + 10))
    servers.command("SET", writer.keys.record("r", "x" * (MAX_UUID_BYTES + 1)), "{}")
    servers.command("HSET", writer.keys.announcement("s"), "said", "q" * 10**6, "number", "1e9")
    servers.command("SET", writer.keys.announcement("t"), "x")
    writer.announce("u", "{}", 60.0, soon())
    wait_until(lambda: {"long", "about", "bytes"} <= set(held(watcher)))
    shown = held(watcher)
    assert set(shown) == {"long", "about", "bytes"}
    assert shown["about"].broken()
    assert shown["long"].broken()
    holder = take(writer, "sound")
    wait_until(lambda: "sound" in held(watcher))
    remove(writer, holder)
    wait_until(
        lambda: {removal.holder.uuid for removal in watcher.table.removals()} >= {holder.uuid}
    )


def test_a_document_with_a_too_large_number_is_replaced(
    store: ValkeyStore, servers: Servers
) -> None:
    fields = {"promised": "9" * 17, "whose": "x", "number": "1", "value": "{}"}
    words = [word for pair in fields.items() for word in pair]
    servers.command("HSET", f"{store.keys.documents}sent/ops", *words)
    seen = store.read_document("sent/ops", soon())
    assert seen.value == b"{}"
    assert store.write_document("sent/ops", b"[]", seen, soon())


def test_a_document_expires_when_it_is_absent(store: ValkeyStore, servers: Servers) -> None:
    key = f"{store.keys.documents}sent/ops"
    for value in (b"", b"first", b"", b"second"):
        assert store.write_document(
            "sent/ops", value, store.read_document("sent/ops", soon()), soon()
        )
        # The deadline of a call ends once a majority has answered.
        wait_until(lambda: len(set(servers.command("HGET", key, "number"))) == 1)
        store.read_document("sent/ops", soon())
        for left in servers.command("PTTL", key):
            assert left == -1 if value else LATE_REQUEST_S - 60 < left / 1000 < LATE_REQUEST_S + 1


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_document_that_a_server_still_has_is_deleted_again(
    store: ValkeyStore, servers: Servers, *, is_forgotten: bool
) -> None:
    def write(value: bytes) -> bytes | None:
        seen = store.read_document("sent/ops", soon())
        assert store.write_document("sent/ops", value, seen, soon())
        wait_until(lambda: len(set(servers.command("HGET", key, "number"))) == 1)
        return seen.value

    key, first = f"{store.keys.documents}sent/ops", servers.all[0]
    write(b"old")
    kept = first.command("DUMP", key)
    write(b"")
    if is_forgotten:  # a day later
        servers.command("DEL", key)
    first.command("RESTORE", key, "0", kept, "REPLACE")
    assert store.document_names(soon()) == ["sent/ops"]
    assert write(b"") in (b"", b"old")
    assert store.document_names(soon()) == []
    assert store.read_document("sent/ops", soon()).value == b""


def test_documents_are_listed_among_many_keys(store: ValkeyStore, servers: Servers) -> None:
    servers.command("MSET", *(word for number in range(3000) for word in (f"other/{number}", "x")))
    for name in ("note", "sent/ops"):
        assert store.write_document(name, b"{}", store.read_document(name, soon()), soon())
    for server in servers.all[:2]:
        server.command("DEL", f"{store.keys.documents}note")
    assert store.document_names(soon()) == ["note", "sent/ops"]
    with pytest.raises(StoreUnavailable, match="must agree"):
        store.document_names(Deadline.after(0.0))


def subscribers(server: Server, channel: str) -> int:
    _, number = server.command("PUBSUB", "NUMSUB", channel)
    return int(number)


def test_a_hand_over_is_seen_at_once(
    servers: Servers, store: ValkeyStore, writer: ValkeyStore
) -> None:
    store.poll = 3600.0
    holder = take(writer, "a")
    watcher = Watcher(store)
    waiting = ClusterMutex("a", store=writer)
    try:
        with ThreadPoolExecutor(1) as thread:
            got = thread.submit(waiting.acquire)
            channel = writer.keys.channel("a")
            for server in servers.all:
                wait_until(partial(subscribers, server, channel), what="the waiter's ear")
            unlock(writer, holder)
            assert got.result(timeout=60)
        wait_until(lambda: held(watcher)["a"].uuid == waiting.uuid, what="the next holder")
        waiting.release()
    finally:
        watcher.table.stop()


def test_each_release_of_one_server_is_seen_at_once(tmp_path: Path) -> None:
    """The server publishes each release in the step that deletes the lock, even without waiters. A
    subscriber that was cut off reads everything again when it is back."""
    with running(tmp_path, 1) as one, one.store() as store, one.store(vouched=False) as writer:
        store.poll = 3600.0
        holders = [take(writer, f"lock-{number}") for number in range(4)]
        watcher = Watcher(store)
        try:
            for number, holder in enumerate(holders):
                assert holder.name in held(watcher)
                wait_until(lambda: one.all[0].command("PUBSUB", "NUMPAT"), what="its ear")
                if number == 3:
                    one.all[0].command("CLIENT", "KILL", "TYPE", "pubsub")
                unlock(writer, holder)
                wait_until(lambda: holder.name not in held(watcher))  # noqa: B023 - not kept
        finally:
            watcher.table.stop()
