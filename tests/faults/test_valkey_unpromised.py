"""The table of docs/protocol-valkey.md: what is noticed of it, and when it is not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
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


class TestTwoHolders:
    """What keeps them apart where Redlock alone would not."""

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
