"""The table of docs/protocol-valkey.md, row by row: what gives a lock twice, and what does not.

The other rows are in test_valkey_history.py and test_valkey_crowd.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lockclient.stores.valkey.store import ValkeyStore
from tests.contract.asking import NAME, NEVER, holder
from tests.faults.test_valkey_failback import QUICK, follow, promote, votes
from tests.support.clock_shim import Clock, compile_library
from tests.support.locks import has, take
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.valkey_servers import Server, Servers, running


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Servers]:
    """One server, with all that a test may do to it."""
    with running(tmp_path, 1) as servers:
        yield servers


def given_again(store: ValkeyStore) -> None:
    """See that somebody else gets the lock, who has asked nobody before."""
    with closing(ValkeyStore(store.location)) as another:
        wait_until(lambda: may_vote(another), what="its vote")
        take(another, holder(**NEVER))


def given_again_only_if(kept: bool, store: ValkeyStore) -> None:
    if kept:
        given_again(store)
    else:
        with closing(ValkeyStore(store.location)) as another:
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


def test_a_clock_that_jumps_ahead_ends_the_wait(clocked: tuple[Servers, Clock]) -> None:
    servers, clock = clocked
    with servers.store(vouched=False) as store:
        assert not votes(store)
        clock.move(3700.0)
        assert votes(store)


def test_a_clock_that_was_ahead_and_came_back_makes_the_wait_no_longer(
    clocked: tuple[Servers, Clock],
) -> None:
    """Also for who has a connection from before."""
    servers, clock = clocked
    clock.move(100 * 86400.0)
    with servers.store(vouched=False) as store:
        assert not votes(store)
        clock.move()
        assert not votes(store)
        (voter,) = store.voters()
        assert 0 < voter.waits < 3700.0


@pytest.mark.parametrize("kept", [True, False])
def test_a_backup_that_is_put_back(one: Servers, tmp_path: Path, kept: bool) -> None:
    """Gives the lock again where somebody vouches that the server keeps all; else it waits."""
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


def test_a_policy_that_evicts_is_seen_by_new_connections_alone(one: Servers) -> None:
    with one.store() as store:
        take(store)
        one.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        assert has(store) is not None  # as before
        with closing(ValkeyStore(store.location)) as another:
            (voter,) = another.voters()
            assert "maxmemory-policy" in voter.trouble


def test_who_stops_to_write_down_and_is_vouched_for_forgets_unnoticed(one: Servers) -> None:
    with one.store() as store:
        one.command("CONFIG", "SET", "appendonly", "no")
        take(store, holder(**NEVER))
        one.all[0].restart()  # as it was configured at first
        given_again(store)


@pytest.mark.parametrize("kept", [True, False])
def test_a_disk_that_has_lost_its_last_writes_is_started_with_what_is_left(
    one: Servers, kept: bool
) -> None:
    """And gives the lock again where somebody vouches that the server keeps all; else it waits."""
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


def test_a_lock_without_an_end_is_forgotten_by_servers_that_were_emptied(one: Servers) -> None:
    """One after the other, when each has waited."""
    with one.store(longest=1.0) as store:
        take(store, holder(**NEVER))
        one.all[0].empty()
        given_again(store)


def test_lists_of_other_servers_have_majorities_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path, 2) as two:
        for server in two.all:
            with Servers([server]).store() as store:
                store.location = replace(store.location, root="same")
                take(store)


def test_an_address_that_leads_to_two_servers_gives_a_lock_by_each(tmp_path: Path) -> None:
    with running(tmp_path, 2) as two, Relay(two.all[0].endpoint) as relay:
        first, second = (Servers([server]) for server in two.all)
        second.root = first.root
        with first.store() as store, second.store(), Relay(two.all[1].endpoint) as other:
            behind_it = replace(store.location, endpoints=(relay.endpoint,))
            with closing(ValkeyStore(behind_it)) as client:
                take(client)
                relay.swap(other)
                given_again(client)


@pytest.mark.parametrize("asked", [True, False])
def test_a_past_that_is_told_no_more(tmp_path: Path, asked: bool) -> None:
    """Is missed only by who did not ask for as long as it was told (`repl-backlog-ttl`)."""
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
            with closing(ValkeyStore(store.location)) as another:
                assert votes(another) != asked
