"""The table of docs/protocol-valkey.md, row by row: what gives a lock twice, and what does not.

The last row is in test_valkey_crowd.py.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from lockclient.model.clocks import Deadline
from lockclient.stores.requests import Take
from tests.contract.asking import NAME, NEVER, holder
from tests.faults.test_valkey_failback import QUICK, follow, promote, votes
from tests.support.clock_shim import Clock, compile_library
from tests.support.locks import has, take
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.valkey_servers import Server, Servers, ValkeyStore, opened, running


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Servers]:
    """One server, with all that a test may do to it."""
    with running(tmp_path, 1) as servers:
        yield servers


def given_again(store: ValkeyStore) -> None:
    """See that somebody else gets the lock, who has asked nobody before."""
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
        with closing(opened(store.location)) as another:
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
            with closing(opened(behind_it)) as client:
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
            with closing(opened(store.location)) as another:
                assert votes(another) != asked


def link_status(replica: Server) -> str:
    return str(replica.command("INFO")["master_link_status"])


class Hold(NamedTuple):
    """When somebody got a lock, and until when it counts on it, by the monotonic clock."""

    got: float
    end: float
    uuid: str


class TestWhatRedlockCanNotPromise:
    """Two holders count on one lock at the same moment."""

    def test_servers_whose_clocks_jump_give_a_lock_twice(self, tmp_path: Path) -> None:
        """Where locks expire by themselves: three servers that believe that an hour has passed."""
        clock = Clock(compile_library(tmp_path))
        servers = [Server(tmp_path / f"server-{i}", env=clock.env) for i in range(5)]
        try:
            five = Servers([server.start() for server in servers])
            with five.store(expire=True) as one, five.store(expire=True) as two:
                first = self.taken(one)
                clock.move(3600.0)
                wait_until(lambda: has(two) is None, what="the expiry")
                second = self.taken(two)
                assert first.end > second.got
        finally:
            for server in servers:
                server.stop()

    def test_not_where_an_unlocker_ends_them(self, tmp_path: Path) -> None:
        """There no lock expires for a day after its time, and an hour does not matter."""
        clock = Clock(compile_library(tmp_path))
        server = Server(tmp_path / "server", env=clock.env)
        try:
            one = Servers([server.start()])
            with one.store() as store:
                first = self.taken(store)
                clock.move(3600.0)
                assert has(store) == first.uuid
        finally:
            server.stop()

    def test_who_is_paused_and_does_not_look_works_on(self, tmp_path: Path) -> None:
        """Its time is over by its own clock as well; but a pause is not noticed by who pauses."""
        with running(tmp_path, 1) as servers, servers.store(expire=True) as store:
            first = self.taken(store, lasts=0.5)
            worked_until = time.monotonic() + 1.5  # a long collection of garbage, say
            wait_until(lambda: has(store) is None, what="the expiry")
            second = self.taken(store)
            assert worked_until > second.got
            assert first.end <= second.got  # that it was lost, it could have known

    def test_a_replica_that_is_promoted_gives_a_lock_twice_unless_that_is_noticed(
        self, tmp_path: Path
    ) -> None:
        """It never had the lock. Asked by a new connection it says who it is, and does not vote."""
        primary = Server(tmp_path / "primary").start()
        replica = Server(tmp_path / "replica").start()
        try:
            servers = Servers([primary])
            with servers.store(longest=60.0) as store:
                replica.command("REPLICAOF", "127.0.0.1", str(primary.port))
                wait_until(lambda: link_status(replica) == "up", what="the replica")
                replica.freeze()
                primary.command("CLIENT", "KILL", "TYPE", "replica")  # else its data is on the way
                first = self.taken(store, lasts=50.0)
                primary.kill()
                replica.thaw()
                wait_until(lambda: link_status(replica) == "down", what="the primary's end")
                replica.command("REPLICAOF", "NO", "ONE")
                assert replica.command("EXISTS", store.keys.lock(NAME)) == 0
            behind_it = Servers([replica])
            behind_it.root = servers.root
            with behind_it.store(vouched=False, longest=60.0) as store:
                with pytest.raises(ConnectionError, match="votes in"):
                    store.ask(
                        Take(holder(auto_unlock_after=10.0, expected_runtime=5.0)),
                        Deadline.after(1.0),
                    )
                store.vouch()  # as by a proxy, or a person, that says it is all the same
                second = self.taken(store, lasts=50.0)
            assert first.end > second.got
        finally:
            primary.stop()
            replica.stop()

    @staticmethod
    def taken(store: ValkeyStore, lasts: float = 600.0) -> Hold:
        """Take the lock; return when, and until when it is its taker's."""
        mine = holder(auto_unlock_after=lasts, expected_runtime=lasts / 2)
        at = time.monotonic()
        uuid, _ = take(store, mine)
        return Hold(at, at + lasts, uuid)
