"""Votes that were lost are given back by a push: to nobody else's harm, however late that is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lockclient import Settings
from lockclient.model.clocks import Deadline, Stamps
from lockclient.stores.outcomes import Done, NotHolder
from lockclient.stores.requests import Push
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.wire.broadcast import Round
from lockclient.stores.valkey.wire.connection import Command
from tests.contract.asking import NAME, NEVER, holder
from tests.faults.test_valkey_attacked import all_vote
from tests.support.following import following
from tests.support.locks import ask, has, held, read, remove, take, unlock
from tests.support.processes import wait_until
from tests.support.terminal import called
from tests.support.valkey_servers import Server, Servers, ValkeyStore, opened, running


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Servers]:
    """Five servers, with all that a test may do to them."""
    with running(tmp_path, 5) as servers:
        yield servers


def empty(servers: list[Server], store: ValkeyStore) -> None:
    """Let servers lose all, and vote again at once, as if the longest wait had passed."""
    for server in servers:
        server.empty()
    all_vote(store)
    with closing(opened(store.location)) as operator:
        operator.vouch()
    all_vote(store)


def push(store: ValkeyStore, uuid: str, token: int, seconds: float = 60.0) -> Done | NotHolder:
    now = time.time()
    outcome = ask(store, Push(NAME, uuid, Stamps(now + seconds / 2, now + seconds), token))
    assert isinstance(outcome, Done | NotHolder)
    return outcome


def stands(servers: Servers, store: ValkeyStore) -> list[int]:
    return servers.command("EXISTS", store.keys.lock(NAME))


class HeldBack:
    """Keeps what gives votes back on its way, to let it arrive later."""

    def __init__(self, store: ValkeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: dict[int, Command] = {}
        self._servers: Any = store._rounds.servers  # type: ignore[attr-defined]
        self._ask: Callable[..., Round] = self._servers.ask
        monkeypatch.setattr(self._servers, "ask", self._hold_back)

    def _hold_back(self, commands: Mapping[int, Command], *how: Any) -> Round:
        if not any(command.script is lua_scripts.GIVE for command in commands.values()):
            return self._ask(commands, *how)
        self.commands |= commands
        unanswered = Round(self._servers, {}, *how)
        unanswered.silent |= commands.keys()
        return unanswered

    def arrives(self) -> set[str]:
        """Let it arrive; return what the servers say."""
        answers = self._ask(self.commands, Deadline.after(10.0), lambda said: len(said) == 2)
        return {reply.kind for reply in answers.answers.values()}


def test_servers_that_are_emptied_one_after_the_other_end_no_lock(five: Servers) -> None:
    with five.store() as store:
        mine = holder(backtrace="x" * 9000)
        uuid, token = take(store, mine)
        for server in five.all:
            empty([server], store)
            pushed = push(store, uuid, token)
            assert isinstance(pushed, Done)
            token = pushed.revision
            assert stands(five, store) == [1] * 5
        assert held(store).backtrace == mine.backtrace
        alike = five.command("HGETALL", store.keys.lock(NAME))
        assert alike == [alike[0]] * 5
        assert all(lasts > 0 for lasts in five.command("PTTL", store.keys.lock(NAME)))
        unlock(store, uuid)
        wait_until(
            lambda: five.command("KEYS", f"{five.root}/[lw]*") == [[]] * 5, what="nothing left"
        )


def test_a_lock_that_is_never_auto_unlocked_gets_it_back_for_good(five: Servers) -> None:
    with five.store() as store:
        uuid, token = take(store, holder(**NEVER))
        empty(five.all[3:], store)
        assert isinstance(ask(store, Push(NAME, uuid, Stamps(1.0, None), token)), Done)
        assert five.command("PTTL", store.keys.lock(NAME)) == [-1] * 5


def test_a_majority_that_has_forgotten_gets_nothing_back(five: Servers) -> None:
    """What a push gives would make it true."""
    with five.store() as store:
        uuid, token = take(store)
        empty(five.all[2:], store)
        assert isinstance(push(store, uuid, token), NotHolder)
        assert stands(five, store) == [1, 1, 0, 0, 0]


def test_what_arrives_late_does_not_bring_a_lock_to_life_that_was_another_s(
    five: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with five.store(expire=True) as store, five.store(expire=True) as other:
        uuid, token = take(store, holder(auto_unlock_after=2.0))
        empty(five.all[3:], store)
        late = HeldBack(store, monkeypatch)
        assert isinstance(push(store, uuid, token, 2.0), Done)
        assert len(late.commands) == 2
        wait_until(lambda: has(other) is None, what="its end")
        unlock(other, take(other)[0])
        assert late.arrives() <= {"late", "refused"}  # where its end is on record
        assert stands(five, store) == [0] * 5


def test_what_was_removed_is_given_nothing_back(
    five: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with five.store() as store, five.store() as other:
        uuid, token = take(store)
        empty(five.all[3:], store)
        late = HeldBack(store, monkeypatch)
        assert isinstance(push(store, uuid, token), Done)
        remove(other, held(other))
        mark = store.keys.tombstone(NAME, uuid)
        wait_until(lambda: five.command("GET", mark) == [b"all"] * 5, what="the marks")
        assert late.arrives() == {"refused"}
        assert has(store) is None


def test_what_is_released_before_an_answer_is_given_nothing_back(
    five: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with five.store() as store:
        uuid, token = take(store)
        empty(five.all[3:], store)
        late = HeldBack(store, monkeypatch)
        assert isinstance(push(store, uuid, token), Done)
        unlock(store, uuid)
        assert late.arrives() == {"refused"}
        assert stands(five, store) == [0] * 5


def test_another_s_vote_is_not_taken(five: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor that of one who is only trying, who gives it back by himself."""
    with five.store() as store:
        uuid, token = take(store)
        empty(five.all[3:], store)
        late = HeldBack(store, monkeypatch)
        assert isinstance(push(store, uuid, token), Done)
        for server in five.all[3:]:
            server.command("HSET", store.keys.lock(NAME), "uuid", "another")
        assert late.arrives() == {"refused"}
        assert has(store) == uuid


def test_people_are_told_on_how_few_servers_a_lock_is(five: Servers) -> None:
    with five.store() as store:
        uuid, token = take(store)
        empty(five.all[3:], store)
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
            assert isinstance(push(store, uuid, token), Done)
            wait_until(lambda: not read(store).warning, what="that all have it again")
            wait_until(lambda: not store.thin_locks(), what="the next look")
