"""What was tried against locks by majorities, and must not work: two holders, names blocked."""

from __future__ import annotations

import logging
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, StoreError, StoreUnavailable
from lockclient.cli.setup.ports import free_port
from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import Done, NotHolder, Taken
from lockclient.stores.requests import Push, Remove, Take, Withdraw
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import KeyNames, push_of
from lockclient.stores.valkey.location import ValkeyLocation
from tests.contract.asking import NAME, NEVER, holder, removal
from tests.support.locks import ask, at_once, has, held, removal_of, take, unlock
from tests.support.processes import wait_until
from tests.support.valkey_servers import Servers, ValkeyStore, frozen, opened, running


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Servers]:
    """Five servers that may be killed."""
    with running(tmp_path, 5) as servers:
        yield servers


def taken(store: ValkeyStore, **facts: Any) -> tuple[Holder, str, int]:
    mine = holder(**facts)
    return mine, *take(store, mine)


@contextmanager
def reaching(servers: Servers, which: list[int]) -> Iterator[ValkeyStore]:
    """Open a store that reaches these servers alone, as if a network were cut."""
    place = servers.place()
    there = (
        at if i in which else f"127.0.0.1:{free_port()}" for i, at in enumerate(place.endpoints)
    )
    with closing(opened(replace(place, endpoints=tuple(there)))) as store:
        yield store


def all_vote(store: ValkeyStore, number: int = 5) -> None:
    """Wait until the first so many servers have a vote."""
    wait_until(lambda: not any([*store.votes().values()][:number]), what="their votes")


class TestPushes:
    def test_the_number_of_a_push_that_failed_is_not_used_again(self, five: Servers) -> None:
        """Else servers with its stamps pass for up to date, and a removal as seen succeeds."""
        with five.store() as store, five.store() as other:
            uuid, token = take(store)
            for server in five.all[2:]:
                server.kill()
            with pytest.raises(StoreUnavailable):
                ask(store, Push(NAME, uuid, Stamps(1000.0, 1001.0), token), 1.0)
            for server in five.all[2:]:
                server.start()
            all_vote(store)
            all_vote(other)
            wait_until(lambda: held(other).alert_at == 1000.0, what="its stamps")
            seen = held(other)  # what an unlocker knows: the push that failed
            pushed = ask(store, Push(NAME, uuid, Stamps(1010.0, 1011.0), token))
            assert isinstance(pushed, Done)
            for server in five.all[:3]:  # whichever of them is asked
                with frozen(server):
                    assert held(store).auto_unlock_at == 1011.0
            outcome = ask(other, Remove(removal(seen), seen.stamp_revisions))
            assert isinstance(outcome, NotHolder)
            assert outcome.holder == has(store) == uuid

    def test_of_two_with_one_number_the_later_stamps_stand(self, five: Servers) -> None:
        """Two processes may hit upon one: what is read is what leaves the holder more time."""
        key = KeyNames(five.root).lock(NAME)
        with five.store() as store:
            take(store)
            for i, server in enumerate(five.all):
                stamp = "2000" if i < 2 else "3000"
                stamps = ("alert_at", stamp, "auto_unlock_at", stamp)
                server.command("HSET", key, "push", "1", *stamps)
            assert held(store).alert_at == 3000.0

    def test_servers_that_missed_a_push_do_not_keep_a_lock(self, five: Servers) -> None:
        """Its holder crashed after a push that two did; of the others one is down."""
        with five.store() as store, five.store() as other:
            uuid, token = take(store)
            for server in five.all[2:]:
                server.kill()
            with suppress(StoreUnavailable):
                ask(store, Push(NAME, uuid, Stamps(1000.0, 1001.0), token), 1.0)
            for server in five.all[2:4]:
                server.start()
            all_vote(other, 4)
            seen = held(other)
            assert push_of(max(seen.stamp_revisions)) > 0
            assert isinstance(ask(other, Remove(removal(seen), seen.stamp_revisions), 5.0), Done)
            take(other)
            five.all[4].start()

    def test_processes_that_share_a_uuid_do_not_share_numbers(self, five: Servers) -> None:
        """`clustermutex alive` failed twice, with two of five; its third call does not know it.

        A remover that saw what failed must see that something came after it.
        """
        with five.store() as first:
            uuid, token = take(first)
        for at in ([0], [1]):
            with reaching(five, at) as store, pytest.raises(StoreUnavailable):
                ask(store, Push(NAME, uuid, Stamps(1000.0, 1001.0), token), 0.3)
        with five.store() as other, reaching(five, [2, 3, 4]) as store:
            seen = held(other)  # what an unlocker knows: a push that failed
            assert isinstance(ask(store, Push(NAME, uuid, Stamps(9e3, 9e3), token)), Done)
            outcome = ask(other, Remove(removal(seen), seen.stamp_revisions))
            assert isinstance(outcome, NotHolder)
            assert outcome.holder == uuid
            now = held(other)
            assert now.alert_at == 9e3
            assert max(now.stamp_revisions) > max(seen.stamp_revisions)

    def test_a_number_that_nobody_can_follow_is_an_error(self, five: Servers) -> None:
        """And no reason to push for ever."""
        with five.store() as store:
            uuid, token = take(store)
            five.command("HSET", KeyNames(five.root).lock(NAME), "push", "9" * 14)
            with pytest.raises(StoreError, match="its field push is '99999999999999'"):
                ask(store, Push(NAME, uuid, Stamps(1.0, 2.0), token))


class TestRemovers:
    """Two at once, where a minority of servers is away: each may get a part of the others."""

    @pytest.fixture
    def three(self, five: Servers) -> Servers:
        """The five, of which three run."""
        with five.store():
            pass
        for server in five.all[3:]:
            server.kill()
        return five

    @staticmethod
    def partly(servers: Servers, which: list[int], removal: Removal) -> None:
        """Do a removal on these servers, as by who dies after that, or is not done yet."""
        keys, name, uuid = KeyNames(servers.root), removal.holder.name, removal.holder.uuid or ""
        for i in which:
            server = servers.all[i]
            run, terms = server.command("HMGET", keys.server, "run", "terms")
            where = (
                keys.server,
                keys.lock(name),
                keys.record(name, uuid),
                keys.tombstone(name, uuid),
            )
            done = server.command(
                *("EVAL", lua_scripts.REMOVE.source, "4", *where, run, terms, uuid, "", "channel"),
                *(removal.without_token().value(), "60000", "60000"),
            )
            assert done[0] == b"dropped"

    @staticmethod
    def records(servers: Servers, uuid: str) -> set[bytes | None]:
        """Return which records the servers have that run."""
        key = KeyNames(servers.root).record(NAME, uuid)
        return {*Servers(servers.all[:3]).command("GET", key)}

    def one_record(self, servers: Servers, uuid: str, winner: Removal) -> None:
        """Wait until the servers that run have one record alone."""
        one = {winner.without_token().value().encode()}
        wait_until(lambda: self.records(servers, uuid) == one, what="one record")

    @pytest.mark.parametrize("first", [[0], [0, 1]], ids=["one", "two"])
    def test_who_has_most_has_removed_it(self, three: Servers, first: list[int]) -> None:
        """The other one is told by whom it was, and its record makes way for that."""
        with three.store(vouched=False) as store:
            mine, uuid, _ = taken(store)
            ours = removal(mine)
            theirs = replace(ours, removed_by="unlocker-2")
            self.partly(three, first, theirs)
            outcome = ask(store, Remove(ours, None), 5.0)
            winner = ours if len(first) == 1 else theirs
            if winner is ours:
                assert isinstance(outcome, Done)
                outcome = ask(store, Remove(theirs, None), 5.0)  # it asks again
            assert isinstance(outcome, NotHolder)
            assert outcome.holder is None
            assert outcome.removal is not None
            assert outcome.removal.removed_by == winner.removed_by
            assert removal_of(store, mine).removed_by == winner.removed_by
            self.one_record(three, uuid, winner)

    def test_two_at_once_agree_on_which_of_them_it_was(self, three: Servers) -> None:
        with three.store(vouched=False) as store, three.store(vouched=False) as other:
            for _ in range(10):
                mine, uuid, _ = taken(store)
                ours = removal(mine)
                both = {"1": (store, ours), "2": (other, replace(ours, removed_by="unlocker-2"))}
                outcomes = at_once(
                    {who: (at, Remove(what, None)) for who, (at, what) in both.items()}
                )
                done = [who for who, outcome in outcomes.items() if isinstance(outcome, Done)]
                assert len(done) == 1, outcomes
                (lost,) = (
                    outcome for outcome in outcomes.values() if isinstance(outcome, NotHolder)
                )
                assert lost.removal is not None
                assert lost.removal.removed_by == f"unlocker-{done[0]}"
                self.one_record(three, uuid, both[done[0]][1])

    def test_a_push_that_was_first_leaves_no_record(self, five: Servers) -> None:
        """The lock is its holder's still, as a majority says."""
        with five.store() as store:
            mine, uuid, token = taken(store)
            keys = KeyNames(five.root)
            key, record = keys.lock(NAME), keys.record(NAME, uuid)
            Servers(five.all[:4]).command("HSET", key, "push", "1")
            outcome = ask(store, Remove(removal(mine), (token, token)))
            assert isinstance(outcome, NotHolder)
            assert outcome.holder == uuid
            last = five.all[4]  # there it was not pushed
            wait_until(lambda: not last.command("EXISTS", record), what="no record")
            assert last.command("EXISTS", key) == 0
            unlock(store, uuid)

    def test_what_its_holder_released_nobody_has_removed(self, five: Servers) -> None:
        """Also if one server did not get the release in time, and gives the lock to a remover."""
        with five.store() as store:
            mine, uuid, _ = taken(store)
            Servers(five.all[:4]).command("DEL", KeyNames(five.root).lock(NAME))
            outcome = ask(store, Remove(removal(mine), None))
            assert isinstance(outcome, NotHolder)
            assert outcome.removal is None
            last = five.all[4]
            record = KeyNames(five.root).record(NAME, uuid)
            wait_until(lambda: not last.command("EXISTS", record), what="no record")


class TestServers:
    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
    def test_one_that_may_drop_locks_has_no_vote(self, tmp_path: Path, policy: str) -> None:
        """They expire, so that each policy takes them; the sentinel stays."""
        with running(tmp_path, 1, options=("--maxmemory-policy", policy)) as one:
            store = opened(one.place())
            with pytest.raises(StoreError, match="set maxmemory-policy noeviction"):
                ask(store, Take(holder()))
            assert any("noeviction" in f"{finding}" for finding in store.examine())
            store.close()

    def test_one_under_two_names_is_noticed_whoever_is_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if both are opened at the same time."""
        with running(tmp_path, 1, always=False) as one:
            port = one.all[0].port
            store = opened(ValkeyLocation((f"127.0.0.1:{port}", f"localhost:{port}"), one.root))
            warn = logging.Logger.warning

            def slow(self: logging.Logger, *words: Any) -> None:
                time.sleep(0.5)
                warn(self, *words)

            monkeypatch.setattr(logging.Logger, "warning", slow)
            with pytest.raises(StoreError, match="it is the same server as"):
                ask(store, Take(holder()), 5)
            store.close()


class TestEndlessAnswers:
    """What stands before a server, or in its place, and begins an answer of two gigabytes."""

    @pytest.mark.parametrize("user", [None, "ann"])
    @pytest.mark.parametrize("begun", [b"$2147483647\r\n", b"*1\r\n$2147483647\r\n", b"+", b"-"])
    def test_no_more_is_taken_in_than_any_answer_has(self, begun: bytes, user: str | None) -> None:
        given: list[int] = []

        class Endless(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(4096)
                self.request.sendall(begun)
                given.append(0)
                with suppress(OSError):
                    while given[-1] < 2**31:
                        self.request.sendall(b"x" * 2**20)
                        given[-1] += 2**20

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            place = ValkeyLocation(
                (f"127.0.0.1:{server.server_address[1]}",), user=user, password=user and "secret"
            )
            with closing(opened(place)) as store:
                with pytest.raises(StoreUnavailable):
                    ask(store, Take(holder()), 0.2)
                words = "answers, and not as Valkey does"
                wait_until(lambda: words in "".join(store.votes().values()), what="the reason")
            server.shutdown()
        assert max(given) < 128 * 2**20


class TestOneKey:
    """A name at which another program has something."""

    def test_it_harms_no_other_lock(self, five: Servers) -> None:
        with five.store() as store:
            five.command("SET", KeyNames(five.root).lock("bad"), "x")
            for _ in range(5):
                with pytest.raises(StoreError, match="something else than a lock stands there"):
                    ask(store, Take(holder("bad")))
                with ClusterMutex(NAME, store=store) as held:
                    held.alive(force=True)
                assert not any(store.votes().values())

    def test_what_can_not_be_undone_there_holds_up_nothing(self, five: Servers) -> None:
        with five.store() as store:
            with ClusterMutex(NAME, store=store):
                five.all[4].command("SET", KeyNames(five.root).lock("bad"), "x")
                ask(store, Withdraw("bad", "uuid-X", tombstone=True))
                five.all[4].freeze()
            five.all[4].thaw()
            key = KeyNames(five.root).lock(NAME)
            wait_until(lambda: not any(five.command("EXISTS", key)), what="it")


class TestLeftovers:
    """Keys of locks that were let go of while a server was away, by programs that have ended."""

    @pytest.mark.parametrize(
        ("facts", "left", "young"),
        [(NEVER, "0", False), ({}, "86399000", False), ({}, "86500000", True)],
        ids=["permanent", "its time is over", "young"],
    )
    def test_three_of_them_block_nothing_unless_they_are_young(
        self, five: Servers, facts: dict[str, Any], left: str, young: bool
    ) -> None:
        """Those may be in the middle of their take."""
        with five.store() as store:
            key, kept = KeyNames(five.root).lock(NAME), list[Any]()
            for server in five.all[:3]:
                _, uuid, _ = taken(store, **facts)
                Servers([other for other in five.all if other is not server]).command("DEL", key)
                assert server.command("HGET", key, "uuid") == uuid.encode()
                kept.append(server.command("DUMP", key))
                server.command("DEL", key)
            for server, what in zip(five.all, kept, strict=False):
                server.command("RESTORE", key, left, what)
            if not young:
                take(store)
                return
            assert not isinstance(ask(store, Take(holder()), 2.0), Taken)
            assert all(Servers(five.all[:3]).command("EXISTS", key))
