"""Locks in servers that are killed, frozen, emptied or refuse: never two holders, nothing left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, LockLost, StoreError, StoreUnavailable
from lockclient.cli.setup.ports import free_port
from lockclient.model.clocks import Stamps
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
from lockclient.stores.outcomes import Done, NotHolder, Refused
from lockclient.stores.request_types import (
    Push,
    Read,
    Remove,
    Request,
    Take,
    Unlock,
    Withdraw,
)
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import KeyNames
from tests.contract.asking import NAME, holder, removal
from tests.support.locks import PATIENCE, ask, has, take, unlock
from tests.support.processes import wait_until
from tests.support.valkey_servers import Server, Servers, ValkeyStore, frozen, opened, running
from tests.support.web_server import serving

BRIEF: dict[str, Any] = {"expected_runtime": 1.0, "auto_unlock_after": 3.0}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Five servers for the tests that leave them as they were."""
    with running(tmp_path_factory.mktemp("valkey"), 5) as servers:
        yield servers


@pytest.fixture
def five(shared: Servers) -> Servers:
    """Five servers, and a prefix of the test's own."""
    return Servers(shared.all)


@pytest.fixture
def store(five: Servers) -> Iterator[ValkeyStore]:
    with five.store() as opened:
        yield opened


@pytest.fixture
def other(five: Servers) -> Iterator[ValkeyStore]:
    with five.store() as opened:
        yield opened


def stands(servers: Servers, name: str = NAME) -> list[str]:
    said = servers.command("HGET", KeyNames(servers.root).lock(name), "uuid")
    return [uuid.decode() for uuid in said if uuid is not None]


def wait_for_nothing(servers: Servers, name: str = NAME) -> None:
    wait_until(lambda: not stands(servers, name), what="an end of what was left")


class TestSilence:
    """Servers that hang: what they were sent, they may do whenever they like."""

    def test_a_take_answered_by_a_minority_takes_nothing(
        self, five: Servers, store: ValkeyStore, other: ValkeyStore
    ) -> None:
        assert has(store) is None  # all connections stand
        with frozen(*five.all[:3]), pytest.raises(StoreUnavailable, match="no answer"):
            ask(store, Take(holder()), 1.0)
        wait_for_nothing(five)
        take(other)

    def test_withdrawing_one_try_does_not_withdraw_the_next(
        self, five: Servers, store: ValkeyStore
    ) -> None:
        assert has(store) is None
        mine = holder()
        with frozen(*five.all[:3]), suppress(StoreUnavailable):
            ask(store, Take(mine), 0.5)
        uuid, token = take(store, mine)
        store.settle(PATIENCE)
        assert len(stands(five)) >= 3
        assert has(store) == uuid
        assert isinstance(ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token)), Done)

    def test_a_withdrawal_names_its_try(self, five: Servers, store: ValkeyStore) -> None:
        mine = holder()
        for _ in range(2):  # the second has a number of its own
            uuid, _ = take(store, mine)
        keys = KeyNames(five.root)
        where = (keys.lock(NAME), keys.tombstone(NAME, uuid), keys.record(NAME, uuid))
        five.command("EVAL", lua_scripts.DROP.source, "3", *where, uuid, "1", "60000", "", "")
        assert five.command("HGET", keys.lock(NAME), "take") == [b"2"] * 5
        assert five.command("GET", keys.tombstone(NAME, uuid)) == [b"1"] * 5
        take(store, mine)
        assert stands(five) == [uuid] * 5

    def test_an_unanswered_release_is_retried(
        self, five: Servers, store: ValkeyStore, other: ValkeyStore
    ) -> None:
        uuid, _ = take(store)
        with frozen(*five.all[:3]):
            with pytest.raises(StoreUnavailable):
                ask(store, Unlock(NAME, uuid), 0.5)
            store.background.clean_up(Withdraw(NAME, uuid, tombstone=True))
            with pytest.raises(StoreUnavailable):
                ask(other, Take(holder()), 0.5)
        wait_for_nothing(five)
        take(other)

    def test_a_release_is_sent_later_to_servers_that_were_down(
        self, five: Servers, store: ValkeyStore
    ) -> None:
        uuid, _ = take(store)
        for server in five.all[:2]:
            server.kill()
        unlock(store, uuid)
        for server in five.all[:2]:
            server.start()
        wait_for_nothing(five)

    def test_a_push_done_by_a_minority_is_not_confirmed(
        self, five: Servers, store: ValkeyStore
    ) -> None:
        told: list[LockLost] = []
        held = ClusterMutex(
            NAME, store=store, expected_runtime=0.5, auto_unlock_after=2.0, on_lost=told.append
        )
        held.acquire()
        with frozen(*five.all[:3]):
            with pytest.raises((StoreUnavailable, LockLost)):  # it waits until the deadline
                held.alive(force=True)
            wait_until(lambda: told, what="the loss")
            with pytest.raises(LockLost):
                held.release()
        wait_for_nothing(five)


class TestExpiry:
    def test_each_key_expires(self, five: Servers, store: ValkeyStore) -> None:
        """A lock a day after its time, so that an unlocker tells of it first; a push moves that."""
        mine = holder()
        uuid, token = take(store, mine)
        keys = KeyNames(five.root)
        key = keys.lock(NAME)
        assert all(86_500_000 < left < 86_700_000 for left in five.command("PTTL", key))
        five.command("PEXPIRE", key, "5000")
        assert isinstance(ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token)), Done)
        assert all(left > 86_500_000 for left in five.command("PTTL", key))
        assert isinstance(ask(store, Remove(removal(mine), None)), Done)
        record = five.command("PTTL", keys.record(NAME, uuid))
        assert all(0 < left <= 7 * 86_400_001 for left in record)

    def test_longer_than_agreed_is_refused(self, five: Servers, store: ValkeyStore) -> None:
        """Before anything is taken."""
        with pytest.raises(StoreError, match=r"auto_unlock_after is 7200 s.*longest"):
            ClusterMutex(NAME, store=store, expected_runtime=60, auto_unlock_after=7200).acquire()
        assert stands(five) == []


class TestHints:
    def test_only_a_confirmed_release_is_published(
        self, five: Servers, store: ValkeyStore, other: ValkeyStore
    ) -> None:
        events: list[WatchEvent] = []
        uuid, _ = take(store)
        watch = other.watch(WatchTarget(NAME, waiter="a waiter"), 0, events.append)
        ears = ("PUBSUB", "NUMSUB", other.keys.channel(NAME))
        wait_until(lambda: all(number for _, number in five.command(*ears)), what="five ears")
        with frozen(*five.all[:3]), suppress(StoreUnavailable):
            ask(store, Unlock(NAME, uuid), 0.5)
        assert events == []
        assert isinstance(ask(store, Unlock(NAME, uuid)), Done | NotHolder)
        wait_until(lambda: events, what="the hint")
        watch.close()


def refusal(store: ValkeyStore, request: Request) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        ask(store, request, 1.0)
    return str(refused.value)


class TestMemory:
    def test_flushed_scripts_are_sent_again(self, five: Servers, store: ValkeyStore) -> None:
        with ClusterMutex(NAME, store=store, expected_runtime=60) as held:
            five.command("SCRIPT", "FLUSH")
            held.alive(force=True)
            five.command("SCRIPT", "FLUSH")
        assert stands(five) == []

    @pytest.mark.parametrize("always", [True, False])
    def test_a_restarted_server_votes_only_with_its_data(
        self, tmp_path: Path, always: bool
    ) -> None:
        with running(tmp_path, 1, always=always) as one, one.store(longest=3.0) as store:
            held = ClusterMutex(NAME, store=store, **BRIEF)
            held.acquire()
            taken_at = time.monotonic()
            one.all[0].restart()
            second = ClusterMutex(NAME, store=store, **BRIEF)
            if always:
                assert not second.acquire(timeout=0.5)
                held.release()
                return
            with pytest.raises(StoreUnavailable, match=r"may have forgotten.*votes in"):
                ask(store, Take(holder(**BRIEF)), 1.0)
            wait_until(lambda: _tries(second), what="its vote")
            assert time.monotonic() - taken_at > 3
            assert not held.healthy

    def test_another_program_at_the_address_is_reported(self, tmp_path: Path) -> None:
        with running(tmp_path, 1) as one, one.store() as store:
            uuid, _ = take(store)
            one.all[0].kill()
            with serving(lambda _: (400, "a page"), one.all[0].port):
                with pytest.raises(StoreUnavailable):
                    ask(store, Read(NAME), 0.2)
                told = f"{one.all[0].endpoint} has no vote: it answers, and not as Valkey does."
                wait_until(lambda: told in store.warnings_for_display(), what="the trouble")
            one.all[0].start()
            wait_until(lambda: not store.warnings_for_display(), what="the server")
            assert has(store) == uuid

    def test_a_server_emptied_while_it_runs_is_noticed(self, tmp_path: Path) -> None:
        with running(tmp_path, 1) as one, one.store() as store:
            uuid, token = take(store)
            one.all[0].command("FLUSHALL")
            for request in (Take(holder()), Read(NAME), Push(NAME, uuid, Stamps(2.0, 3.0), token)):
                # On a busy machine the time is up before the server says how long it waits.
                wait_until(lambda: "votes in 36" in refusal(store, request), what="the wait")  # noqa: B023
            told, durable = store.warnings_for_display()
            assert told.startswith(
                f"{one.all[0].endpoint} has no vote: it is new to this keyspace"
            ), told
            assert "may lose what it has answered" in durable  # the word for it went, too
            store.vouch()
            store.vouch_kept()
            assert not store.warnings_for_display()
            take(store)

    def test_an_emptied_minority_grants_no_held_lock(self, tmp_path: Path) -> None:
        with running(tmp_path, 5, always=False) as five, five.store() as store:
            with frozen(*five.all[3:]):
                uuid, _ = take(store)
            with five.store(vouched=False) as other:
                five.all[0].empty()
                refused = ask(other, Take(holder()))
                assert isinstance(refused, Refused)
                assert refused.holder == uuid
            assert uuid in stands(five)

    @pytest.mark.parametrize(
        "how", [{"always": False}, {"options": ("--no-appendfsync-on-rewrite", "yes")}]
    )
    def test_a_server_without_full_persistence_is_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: dict[str, Any]
    ) -> None:
        with running(tmp_path, 1, **how) as one, one.store(vouched=False) as store:
            with pytest.raises((StoreError, StoreUnavailable), match=r"appendonly|on-rewrite yes"):
                store.vouch_kept()
            assert f"{one.all[0].endpoint} may forget what it has answered" in caplog.text
            assert not any(voter.kept for voter in store.voters())


class TestErrors:
    @pytest.mark.parametrize(
        ("there", "here", "number", "words"),
        [
            ({}, {"longest": 60.0}, 5, "longest is 3600 there, and 60 in this client's"),
            # Else locks would vanish of which others think that an unlocker tells their end.
            ({"expire": True}, {}, 5, "expire is 1 there, and 0 in this client's"),
            ({}, {"expire": True}, 5, "expire is 0 there, and 1 in this client's"),
            # Two of three and three of five need have no server in common.
            ({}, {}, 3, "the number of servers is 5 there, and 3 in this client's"),
        ],
    )
    def test_another_configuration_is_named(
        self, five: Servers, there: dict[str, Any], here: dict[str, Any], number: int, words: str
    ) -> None:
        some = Servers(five.all[:number])
        some.root = five.root
        with five.store(**there) as store:
            assert has(store) is None
            with (
                some.store(vouched=False, **here) as other,
                pytest.raises(StoreError, match=words),
            ):
                ask(other, Take(holder(**BRIEF)), 5)

    @pytest.mark.parametrize(
        ("options", "how", "words"),
        [
            (("--requirepass", "right"), {}, "it wants a password: set VALKEY_PASSWORD"),
            (
                ("--requirepass", "right"),
                {"password": "wrong"},
                "does not accept user and password",
            ),
            ((), {"password": "any"}, "it has no password, and one is given"),
            (("--cluster-enabled", "yes"), {}, "node of a cluster"),
        ],
        ids=["NOAUTH", "WRONGPASS", "no password", "cluster"],
    )
    def test_a_refusal_of_a_server_is_reported_at_once(
        self, tmp_path: Path, options: tuple[str, ...], how: dict[str, str], words: str
    ) -> None:
        if (
            "--cluster-enabled" in options
        ):  # else by 10,000 more than its own port, which may be had
            options = (*options, "--cluster-port", str(free_port()))
        server = Server(tmp_path / "server", options=options).start()
        servers = Servers([server])
        store = opened(servers.place(**how))
        try:
            began = time.monotonic()
            with pytest.raises(StoreError, match=words) as caught:
                ask(store, Take(holder()), PATIENCE)
            assert time.monotonic() - began < PATIENCE / 2
            assert server.endpoint in str(caught.value)
        finally:
            store.close()
            server.stop()

    def test_no_server_is_connection_refused(self, tmp_path: Path) -> None:
        with running(tmp_path, 1) as one:
            pass
        store = opened(one.place())
        with pytest.raises(StoreUnavailable, match="connection refused") as caught:
            ask(store, Take(holder()), 0.5)
        assert not caught.value.unknown
        store.close()


def _tries(lock: ClusterMutex) -> bool:
    with suppress(StoreUnavailable):
        return bool(lock.acquire(timeout=0.1))
    return False
