"""The table "what can't be promised" of docs/protocol-valkey.md, row by row."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockclient import StoreError, StoreUnavailable
from lockclient.stores.outcomes import Taken
from lockclient.stores.request_types import Take
from lockclient.stores.valkey.location import ValkeyLocation
from tests.contract.asking import NAME, NEVER, holder
from tests.support.clock_shim import Clock, compile_library
from tests.support.locks import ask, has, take, unlock
from tests.support.processes import needed, wait_until
from tests.support.relay import Relay
from tests.support.valkey_servers import (
    Server,
    Servers,
    ValkeyStore,
    opened,
    redis_binary,
    running,
)

QUICK = ("--repl-diskless-sync-delay", "0")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Two servers, of which one is to have locks and the other one is beside it."""
    with running(tmp_path, 2, redis_binary(), options=QUICK) as servers:
        yield servers


@pytest.fixture
def store(servers: Servers) -> Iterator[ValkeyStore]:
    alone = Servers(servers.all[:1])
    with alone.store() as store:
        yield store


def follow(replica: Server, primary: Server) -> None:
    replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
    wait_until(
        lambda: replica.command("INFO", "replication")["master_link_status"] == "up",
        what="the replica",
    )


def promote(server: Server) -> None:
    server.command("REPLICAOF", "NO", "ONE")


def votes(store: ValkeyStore) -> bool:
    try:
        ask(store, Take(holder()), 0.5)
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_failed_over_and_back_has_no_vote(
    servers: Servers, store: ValkeyStore, connected: bool
) -> None:
    server, other = servers.all
    unlock(store, take(store)[0])
    run_id = server.command("INFO", "server")["run_id"]
    follow(other, server)
    promote(other)
    with closing(opened(store.location)) as another:
        if connected:
            unlock(another, take(another)[0])  # by a connection that stays
        uuid, _ = take(store, holder(**NEVER))
        follow(server, other)
        promote(server)
        assert server.command("INFO", "server")["run_id"] == run_id
        assert server.command("EXISTS", store.keys.lock(NAME)) == 0
        with pytest.raises(StoreUnavailable, match=r"votes in|new to this keyspace"):
            ask(another, Take(holder()), 0.5)
        assert not votes(store)
        assert any("may have forgotten" in why for why in another.votes().values()), uuid


def test_each_former_replication_id_causes_one_quarantine(
    servers: Servers, store: ValkeyStore
) -> None:
    server, other = servers.all
    take(store, holder(**NEVER))
    for _ in range(2):
        follow(server, other)
        promote(server)
        wait_until(lambda: not votes(store), what="the wait")
        store.vouch()
        store.vouch_kept()
        wait_until(lambda: votes(store), what="its vote")
        with closing(opened(store.location)) as another:
            assert has(another) is not None
            (voter,) = another.voters()
            assert (voter.kept, voter.waits) == (True, 0)


def test_a_replica_has_no_vote_and_is_retried(servers: Servers, store: ValkeyStore) -> None:
    server, other = servers.all
    uuid, _ = take(store)
    follow(server, other)
    for _ in range(2):  # by the connection from before, and by a new one
        with pytest.raises(StoreUnavailable, match=r"replica|new to this keyspace"):
            ask(store, Take(holder()), 0.5)
    promote(server)
    assert not votes(store), uuid


def test_a_backup_and_a_first_replica_cost_no_vote(
    servers: Servers, store: ValkeyStore, tmp_path: Path
) -> None:
    server, other = servers.all
    uuid, _ = take(store)
    before = server.command("INFO", "replication")["master_replid"]
    cli = needed("redis-cli")
    backup = [cli, "-p", str(server.port), "--rdb", str(tmp_path / "backup.rdb")]
    subprocess.run(backup, check=True, capture_output=True, timeout=60)
    assert server.command("INFO", "replication")["master_replid"] != before
    follow(other, server)
    assert has(store) == uuid
    with closing(opened(store.location)) as another:
        assert has(another) == uuid
        assert not any(another.votes().values())


def test_a_server_without_a_run_id_has_no_vote(servers: Servers) -> None:
    with Relay(servers.all[0].endpoint) as relay:
        relay.change = lambda said: re.sub(rb"run_id:", rb"run_xx:", said)
        location = ValkeyLocation((relay.endpoint,), servers.root)
        with (
            closing(opened(location)) as store,
            pytest.raises(StoreError, match="its INFO has no run_id"),
        ):
            ask(store, Take(holder()), 5)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Servers]:
    """One server, with all that a test may do to it."""
    with running(tmp_path, 1) as servers:
        yield servers


def given_again(store: ValkeyStore) -> None:
    """Check that another client, new to all servers, gets the lock."""
    with closing(opened(store.location)) as another:
        wait_until(lambda: may_vote(another), what="its vote")
        take(another, holder(**NEVER))


def given_again_only_if(kept: bool, store: ValkeyStore) -> None:
    if kept:
        given_again(store)
    else:
        with closing(opened(store.location)) as another:
            assert not votes(another)


def past(server: Server) -> str:
    return str(server.command("INFO", "replication")["master_replid2"]).strip("0")


def has_answered(store: ValkeyStore) -> bool:
    return all(not voter.trouble for voter in store.voters())


def may_vote(store: ValkeyStore) -> bool:
    return all(not voter.trouble and not voter.waits for voter in store.voters())


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[tuple[Servers, Clock]]:
    clock = Clock(compile_library(tmp_path))
    server = Server(tmp_path / "server", env=clock.env).start()
    try:
        yield Servers([server]), clock
    finally:
        server.stop()


def test_a_clock_jump_ends_the_quarantine(clocked: tuple[Servers, Clock]) -> None:
    servers, clock = clocked
    with servers.store(vouched=False) as store:
        assert not votes(store)
        clock.move(3700.0)
        assert votes(store)


def test_a_clock_set_back_does_not_prolong_the_quarantine(
    clocked: tuple[Servers, Clock],
) -> None:
    servers, clock = clocked
    clock.move(100 * 86400.0)
    with servers.store(vouched=False) as store:
        assert not votes(store)
        clock.move()
        assert not votes(store)
        (voter,) = store.voters()
        assert 0 < voter.waits < 3700.0


def test_a_clock_set_back_does_not_prolong_a_lock(
    clocked: tuple[Servers, Clock],
) -> None:
    servers, clock = clocked
    clock.move(300.0)
    with servers.store(expire=True) as store:
        take(store, holder(auto_unlock_after=1.0))
        clock.move()
        wait_until(lambda: isinstance(ask(store, Take(holder(**NEVER))), Taken), 20, "the lock")


@pytest.mark.parametrize("kept", [True, False])
def test_a_restored_backup(one: Servers, tmp_path: Path, kept: bool) -> None:
    server = one.all[0]
    with one.store() as store:
        store.vouch_kept(kept=kept)
        server.stop()
        shutil.copytree(server.folder, tmp_path / "backup")
        server.start()
        wait_until(lambda: has_answered(store), what="the server")
        store.vouch()
        take(store, holder(**NEVER))
        server.kill()
        shutil.rmtree(server.folder)
        shutil.copytree(tmp_path / "backup", server.folder)
        server.start()
        given_again_only_if(kept, store)


@pytest.mark.parametrize("kept", [True, False])
def test_a_server_that_lost_its_last_writes(one: Servers, kept: bool) -> None:
    server = one.all[0]
    with one.store() as store:
        store.vouch_kept(kept=kept)
        (log,) = server.folder.glob("appendonlydir/*.incr.aof")
        before = log.stat().st_size
        take(store, holder(**NEVER))
        server.kill()
        with log.open("r+b") as file:
            file.truncate(before + 20)  # in the middle of a write: `aof-load-truncated yes`
        server.start()
        given_again_only_if(kept, store)


@pytest.mark.parametrize("asked", [True, False])
def test_a_replication_id_that_is_no_longer_reported(tmp_path: Path, asked: bool) -> None:
    with running(tmp_path, 2, options=(*QUICK, "--repl-backlog-ttl", "2")) as two:
        server, other = two.all
        with Servers([server]).store() as store:
            follow(other, server)
            promote(other)
            take(store, holder(**NEVER))
            follow(server, other)
            promote(server)
            if asked:
                assert not votes(store)
            wait_until(lambda: not past(server), what="the end of its past")
            assert server.command("EXISTS", store.keys.lock(NAME)) == 0
            with closing(opened(store.location)) as another:
                assert votes(another) != asked


def test_a_clock_jump_ends_no_lock(clocked: tuple[Servers, Clock]) -> None:
    servers, clock = clocked
    with servers.store() as store:
        uuid, _ = take(store, holder(auto_unlock_after=600.0))
        clock.move(3600.0)
        assert has(store) == uuid
