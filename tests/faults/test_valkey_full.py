"""Servers of Valkey and Redis that take no writes, or only those that need no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.errors import StoreFull
from lockclient.model.clocks import Stamps
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Push, Reclaim, Withdraw
from tests.contract.asking import holder
from tests.integration.test_valkey_rights import SECRETS, USERS, set_up
from tests.support.locks import ask, has, held, left_nothing, read, remove, soon, take, unlock
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.terminal import called
from tests.support.unlocker_process import ready, unlocker, unready, when_ready
from tests.support.valkey_servers import (
    Server,
    Servers,
    ValkeyStore,
    opened,
    redis_binary,
    running,
    valkey_binary,
)


@pytest.fixture(params=[redis_binary, valkey_binary], ids=["Redis", "Valkey"])
def binary(request: pytest.FixtureRequest) -> str:
    said: Callable[[], str] = request.param
    return said()


@contextmanager
def full(servers: Servers) -> Iterator[None]:
    """Have all of them stand at their `maxmemory` for the time of the block."""
    servers.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(Exception, match="used memory"):
            servers.command("SET", "more", "")
        yield
    finally:
        servers.command("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("number", [1, 3])
def test_pushes_and_releases_need_no_memory(tmp_path: Path, binary: str, number: int) -> None:
    with running(tmp_path, number, binary) as some, some.store() as other:
        set_up(some, *(word for kind, user in USERS.items() for word in (f"--{kind}", user)))

        def store_of(kind: str) -> closing[ValkeyStore]:
            password = SECRETS[f"{kind.upper()}_PASSWORD"]
            return closing(opened(some.place(user=USERS[kind], password=password)))

        with store_of("client") as client, store_of("unlocker") as unlocker:
            first, second, third = holder("first"), holder("second"), holder("third")
            for mine in (first, second, third):
                take(client, mine)
            lost = held(other, "third")
            with full(some):
                for _ in range(2):  # by new connections, too
                    stamps, seen = Stamps(1.0, 2.0), max(held(other, "first").stamp_revisions)
                    pushed = ask(client, Push("first", first.uuid or "", stamps, seen))
                    assert isinstance(pushed, Done)
                    some.command("CLIENT", "KILL", "TYPE", "normal")
                unlocker.announce("u", "{}", 60.0, soon())
                for value in (b"sent", b""):
                    sent = unlocker.read_document("sent/ops", soon())
                    assert unlocker.write_document("sent/ops", value, sent, soon())
                unlock(client, first.uuid or "", "first")
                remove(unlocker, second)
                assert read(other, "second", second.uuid).removal is not None
                with store_of("operator") as operator:
                    remove(operator, third)
                assert isinstance(ask(client, Withdraw("third", "u-4", tombstone=True)), Done)
                for name in ("first", "new"):
                    with pytest.raises(StoreFull, match="maxmemory"):
                        ask(client, Reclaim(holder(name), lost))
                with pytest.raises(StoreFull, match="no memory left"):
                    ClusterMutex("first", store=client).acquire()
                assert other.names("", 5, soon()) == []
            assert read(other, "third", third.uuid).removal is not None
            take(client, holder("first"))


def test_a_take_over_is_refused_and_changes_nothing(tmp_path: Path, binary: str) -> None:
    with running(tmp_path, 1, binary) as one, one.store() as store:
        mine = holder("a", identity="the job")
        take(store, mine)
        with full(one):
            with pytest.raises(StoreFull, match="maxmemory"):
                ask(store, Reclaim(holder("a", identity="the job"), held(store, "a")))
            assert has(store, "a") == mine.uuid
        ask(store, Reclaim(again := holder("a", identity="the job"), held(store, "a")))
        assert has(store, "a") == again.uuid


def test_a_lock_without_auto_unlock_is_kept(tmp_path: Path, binary: str) -> None:
    def fill(said: bytes) -> bytes:
        if b"$5\r\ntaken\r\n" in said:  # the answer to the first step
            one.command("CONFIG", "SET", "maxmemory", "1")
        return said

    with running(tmp_path, 1, binary) as one, one.store(), Relay(one.all[0].endpoint) as way:
        way.change = fill
        with closing(opened(replace(one.place(), endpoints=(way.endpoint,)))) as store:
            lock = ClusterMutex("a", store=store, auto_unlock_after=None)
            with lock as taken:
                taken.alive(force=True)
                assert one.command("PTTL", store.keys.lock("a")) == [-1]
                with pytest.raises(StoreFull):
                    ClusterMutex("b", store=store, auto_unlock_after=None).acquire()
            with pytest.raises(StoreFull):
                lock.acquire()
            left_nothing(store)
            assert one.command("KEYS", f"{one.root}/[lw]*") == [[]]


@pytest.mark.parametrize("number", [1, 3])
def test_a_server_full_from_its_start_keeps_locks(tmp_path: Path, binary: str, number: int) -> None:
    with running(tmp_path, number, binary) as some, some.store() as store:
        uuid, _ = take(store, holder("a"))
        if number > 1:
            some.all[0].command("DEL", store.keys.lock("a"))
        for server in some.all:
            server.options = ("--maxmemory", "1")
            server.restart()
        seen = max(held(store, "a").stamp_revisions)
        assert isinstance(ask(store, Push("a", uuid, Stamps(1e10, 2e10), seen)), Done)
        key = store.keys.lock("a")
        wait_until(lambda: some.command("HGET", key, "uuid") == [uuid.encode()] * number)


def test_an_unlocker_on_a_read_only_store_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path, 1, always=False, options=CAN_MOVE) as one, one.store():
        settings = Settings(location=one.place())

        def found() -> str:
            return called(settings, "doctor", "--listen", "0", status=None).stdout

        assert "refuses" not in found()
        with when_ready(unlocker(settings, "--poll", "0.5")) as service:
            with unsaved(one):
                assert "refuses the writes of a new lock: it can't save to its disk" in found()
                assert "0 of 1 servers vote" in found()
                why = unready(service)
                assert "has accepted no heartbeat of ours" in why
                assert "takes no writes (MISCONF)" in why
            wait_until(lambda: ready(service), what="readiness")
            with full(one):
                assert "refuses the writes of a new lock: it has no memory left" in found()


CAN_MOVE = ("--save", "3600 1", "--enable-protected-configs", "yes")
"""Options of a server whose folder may be changed while it runs."""


@contextmanager
def unsaved(servers: Servers) -> Iterator[None]:
    """Have all of them fail to save to their disks for the time of the block."""
    for server in servers.all:
        gone = server.folder / "gone"
        gone.mkdir()
        server.command("CONFIG", "SET", "dir", str(gone))
        gone.rmdir()
        server.command("BGSAVE")
    wait_until(lambda: not any(map(_writes, servers.all)), what="the refusal of writes")
    try:
        yield
    finally:
        for server in servers.all:
            server.command("CONFIG", "SET", "dir", str(server.folder))
            server.command("BGSAVE")


def test_a_release_refused_by_a_full_disk_is_retried(tmp_path: Path) -> None:
    with running(tmp_path, 1, always=False, options=CAN_MOVE) as one, one.store() as store:
        held = ClusterMutex("a", store=store, expected_runtime=600).acquire()
        assert held is not None
        with unsaved(one):
            with pytest.raises(StoreFull, match="MISCONF"):
                held.release()
            assert not ClusterMutex("a", store=store).acquire(blocking=False)
        with closing(opened(one.place())) as other:
            assert ClusterMutex("a", store=other).acquire(timeout=10)


def _writes(server: Server) -> bool:
    with suppress(Exception):
        return bool(server.command("SET", "more", ""))
    return False
