"""Attacks on locks by majorities: no two holders, no blocked names."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable
from lockclient.cli.setup.ports import free_port
from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.stores.outcomes import Done, NotHolder, Taken
from lockclient.stores.request_types import Push, Remove, Take, Withdraw
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import KeyNames, push_of
from lockclient.stores.valkey.location import ValkeyLocation
from tests.contract.asking import NAME, NEVER, holder, removal
from tests.support.following import following
from tests.support.locks import ask, at_once, has, held, read, removal_of, remove, take, unlock
from tests.support.processes import wait_until
from tests.support.relay import Relay
from tests.support.terminal import called
from tests.support.valkey_servers import Server, Servers, ValkeyStore, opened, running


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
    def test_of_two_pushes_with_one_number_the_later_stamps_count(self, five: Servers) -> None:
        key = KeyNames(five.root).lock(NAME)
        with five.store() as store:
            take(store)
            for i, server in enumerate(five.all):
                stamp = "2000" if i < 2 else "3000"
                stamps = ("alert_at", stamp, "auto_unlock_at", stamp)
                server.command("HSET", key, "push", "1", *stamps)
            assert held(store).alert_at == 3000.0

    def test_servers_that_missed_a_push_do_not_keep_the_lock(self, five: Servers) -> None:
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

    def test_processes_with_one_uuid_do_not_share_push_numbers(self, five: Servers) -> None:
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

    def test_a_too_large_push_number_is_an_error(self, five: Servers) -> None:
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
    def test_the_remover_with_most_servers_wins(self, three: Servers, first: list[int]) -> None:
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

    def test_two_concurrent_removers_agree_on_the_winner(self, three: Servers) -> None:
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

    @pytest.mark.parametrize("what", ["pushed", "released"])
    def test_a_refused_removal_leaves_no_record(self, five: Servers, what: str) -> None:
        with five.store() as store:
            mine, uuid, token = taken(store)
            keys, most, last = KeyNames(five.root), Servers(five.all[:4]), five.all[4]
            if what == "pushed":
                most.command("HSET", keys.lock(NAME), "push", "1")
            else:
                most.command("DEL", keys.lock(NAME))
            seen = (token, token) if what == "pushed" else None
            outcome = ask(store, Remove(removal(mine), seen))
            assert isinstance(outcome, NotHolder)
            assert outcome.removal is None
            assert outcome.holder == (uuid if what == "pushed" else None)
            record = keys.record(NAME, uuid)
            wait_until(lambda: not last.command("EXISTS", record), what="no record")
            assert last.command("EXISTS", keys.lock(NAME)) == 0


class TestServers:
    def test_one_server_under_two_names_is_noticed(self, tmp_path: Path) -> None:
        with running(tmp_path, 1, always=False) as one:
            port = one.all[0].port
            place = ValkeyLocation((f"127.0.0.1:{port}", f"localhost:{port}"), one.root)
            with (
                closing(opened(place)) as store,
                pytest.raises(StoreError, match="it is the same server as"),
            ):
                ask(store, Take(holder()), 5)

    @pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru"])
    def test_a_server_that_may_evict_locks_has_no_vote(self, tmp_path: Path, policy: str) -> None:
        with running(tmp_path, 1, options=("--maxmemory-policy", policy)) as one:
            store = opened(one.place())
            with pytest.raises(StoreError, match="set maxmemory-policy noeviction"):
                ask(store, Take(holder()))
            assert any("noeviction" in f"{finding}" for finding in store.examine())
            store.close()


class TestEndlessAnswers:
    @pytest.mark.parametrize(
        ("begun", "user"),
        [
            (b"$2147483647\r\n", None),
            (b"*1\r\n$2147483647\r\n", None),
            (b"+", None),
            (b"-", "ann"),
        ],
    )
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

    def test_a_broken_key_harms_no_other_lock(self, five: Servers) -> None:
        with five.store() as store:
            five.command("SET", KeyNames(five.root).lock("bad"), "x")
            for _ in range(5):
                with pytest.raises(StoreError, match="something else than a lock stands there"):
                    ask(store, Take(holder("bad")))
                with ClusterMutex(NAME, store=store) as held:
                    held.alive(force=True)
                assert not any(store.votes().values())

    def test_a_broken_key_delays_no_withdrawal(self, five: Servers) -> None:
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


class TestRegrants:
    """A push restores lost votes. However late it arrives, it harms no other client."""

    @staticmethod
    def empty(servers: list[Server], store: ValkeyStore) -> None:
        """Let servers lose all, and vote again at once, as if the longest wait had passed."""
        for server in servers:
            server.empty()
        all_vote(store)
        with closing(opened(store.location)) as operator:
            operator.vouch()
        all_vote(store)

    @staticmethod
    def push(store: ValkeyStore, uuid: str, token: int, seconds: float = 60.0) -> Done | NotHolder:
        now = time.time()
        outcome = ask(store, Push(NAME, uuid, Stamps(now + seconds / 2, now + seconds), token))
        assert isinstance(outcome, Done | NotHolder)
        return outcome

    @staticmethod
    def stands(servers: Servers) -> list[int]:
        return servers.command("EXISTS", KeyNames(servers.root).lock(NAME))

    def test_servers_emptied_one_after_the_other_end_no_lock(self, five: Servers) -> None:
        key = KeyNames(five.root).lock(NAME)
        with five.store() as store:
            mine, uuid, token = taken(store, backtrace="x" * 9000)
            for server in five.all:
                self.empty([server], store)
                pushed = self.push(store, uuid, token)
                assert isinstance(pushed, Done)
                token = pushed.revision
                assert self.stands(five) == [1] * 5
            assert held(store).backtrace == mine.backtrace
            alike = five.command("HGETALL", key)
            assert alike == [alike[0]] * 5
            assert all(lasts > 0 for lasts in five.command("PTTL", key))
            unlock(store, uuid)
            left = partial(five.command, "KEYS", f"{five.root}/[lw]*")
            wait_until(lambda: left() == [[]] * 5, what="nothing left")

    def test_a_lock_without_auto_unlock_is_restored_for_good(self, five: Servers) -> None:
        with five.store() as store:
            _, uuid, token = taken(store, **NEVER)
            self.empty(five.all[3:], store)
            assert isinstance(ask(store, Push(NAME, uuid, Stamps(1.0, None), token)), Done)
            assert five.command("PTTL", KeyNames(five.root).lock(NAME)) == [-1] * 5

    def test_an_emptied_majority_gets_nothing_restored(self, five: Servers) -> None:
        with five.store() as store:
            _, uuid, token = taken(store)
            self.empty(five.all[2:], store)
            assert isinstance(self.push(store, uuid, token), NotHolder)
            assert self.stands(five) == [1, 1, 0, 0, 0]

    @pytest.mark.parametrize("meanwhile", ["expired", "removed", "released", "another's"])
    def test_late_requests_restore_no_lock(self, five: Servers, meanwhile: str) -> None:
        expires = meanwhile == "expired"
        last, key = Servers(five.all[3:]), KeyNames(five.root).lock(NAME)
        with ExitStack() as stack:
            other = stack.enter_context(five.store(expire=expires))
            ways = [stack.enter_context(Relay(server.endpoint)) for server in last.all]
            there = (*other.location.endpoints[:3], *(way.endpoint for way in ways))
            place = replace(other.location, endpoints=there)
            store = stack.enter_context(closing(opened(place)))
            lasts = 2.0 if expires else 60.0
            _, uuid, token = taken(store, auto_unlock_after=lasts)
            self.empty(last.all, store)
            last.command("SCRIPT", "LOAD", lua_scripts.RESTORE_VOTE.source)
            for way in ways:
                way.change = partial(hold_next, way)
            assert isinstance(self.push(store, uuid, token, lasts), Done)
            before = scripts_run(last)
            if expires:
                wait_until(lambda: has(other) is None, what="its end")
            elif meanwhile == "removed":
                remove(other, held(other))
                mark = KeyNames(five.root).tombstone(NAME, uuid)
                wait_until(lambda: last.command("GET", mark) == [b"all"] * 2, what="the marks")
            elif meanwhile == "released":
                unlock(store, uuid)
            else:
                last.command("HSET", key, "uuid", "another")
            for way in ways:
                way.change = bytes
                way.mend()
            wait_until(lambda: min(map(int.__sub__, scripts_run(last), before)) > 0, what="it")
            if meanwhile == "another's":
                assert last.command("HGET", key, "uuid") == [b"another"] * 2
                assert has(store) == uuid
            elif expires:
                assert last.command("EXISTS", key) == [0] * 2
            else:
                wait_until(lambda: self.stands(five) == [0] * 5, what="the end of all of it")

    def test_the_number_of_servers_of_a_lock_is_shown(self, five: Servers) -> None:
        with five.store() as store:
            _, uuid, token = taken(store)
            self.empty(five.all[3:], store)
            # A server that is slow to answer once could not be asked, which is said, too.
            thin = f"{NAME!r}: held on 3 of 5 servers."
            wait_until(lambda: read(store).warning == thin, what="a reading that all have answered")
            with following(store):
                wait_until(lambda: store.thin_locks() == {NAME: 3}, what="what a look has found")
                settings = Settings(location=store.location)
                assert "held on 3 of 5 servers" in called(settings, "show", NAME).stdout
                found = " ".join(
                    called(settings, "doctor", "--listen", "0", status=None).stdout.split()
                )
                assert f"1 lock ('{NAME}') held on 3 of 5 servers." in found
                assert isinstance(self.push(store, uuid, token), Done)
                wait_until(lambda: not read(store).warning, what="that all have it again")
                wait_until(lambda: not store.thin_locks(), what="the next look")


def hold_next(way: Relay, said: bytes) -> bytes:
    """Hold the command that restores a vote, after a reply that the uuid has no lock."""
    if b"$10\r\nnot_holder\r\n" in said:
        way.hold(requests=True)
    return said


def scripts_run(servers: Servers) -> list[int]:
    found = servers.command("INFO", "commandstats")
    return [stats.get("cmdstat_evalsha", {"calls": 0})["calls"] for stats in found]
