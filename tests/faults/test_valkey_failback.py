"""Servers of Valkey that are demoted and promoted again: same process, other data, and no vote."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockclient import StoreError, StoreUnavailable
from lockclient.stores.requests import Take
from lockclient.stores.valkey.location import ValkeyLocation
from tests.contract.asking import NAME, NEVER, holder
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
    valkey_binary,
)

QUICK = ("--repl-diskless-sync-delay", "0")


@pytest.fixture(params=[redis_binary, valkey_binary], ids=["Redis", "Valkey"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Two servers, of which one is to have locks and the other one is beside it."""
    with running(tmp_path, 2, request.param(), options=QUICK) as servers:
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
def test_a_server_that_fails_over_and_back_gives_no_lock_that_it_has_forgotten(
    servers: Servers, store: ValkeyStore, connected: bool
) -> None:
    """Neither to who connects then, nor by a connection from before: its `run_id` stays the same,
    and what says which process the data is of has come back from the other server, with the data.
    """
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


def test_what_was_its_past_is_noted_so_that_it_waits_once(
    servers: Servers, store: ValkeyStore
) -> None:
    """And each time that it has another one."""
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


def test_a_replica_has_no_vote_and_who_asks_goes_on_asking(
    servers: Servers, store: ValkeyStore
) -> None:
    """As it may be promoted: that is no error that is final."""
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
    """Though each of them changes the server's `master_replid`."""
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


def test_a_server_that_does_not_tell_its_process_gives_no_lock(servers: Servers) -> None:
    """Else nobody would notice that it was restarted."""
    with Relay(servers.all[0].endpoint) as relay:
        relay.change = lambda said: re.sub(rb"run_id:", rb"run_xx:", said)
        location = ValkeyLocation((relay.endpoint,), servers.root)
        with (
            closing(opened(location)) as store,
            pytest.raises(StoreError, match="its INFO has no run_id"),
        ):
            ask(store, Take(holder()), 5)
