"""`expire=1`: a lock expires with its time, and the next taker records that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient.model.clocks import Deadline, Stamps
from lockclient.model.removal import AUTO_UNLOCK
from lockclient.stores.outcomes import NotHolder, Taken
from lockclient.stores.request_types import Push, Take
from lockclient.stores.valkey.voting.take import EXPIRED_TEXT
from tests.contract.asking import NAME, NEVER, holder
from tests.support.locks import PATIENCE, ask, has, read, take, unlock
from tests.support.processes import wait_until
from tests.support.valkey_servers import Servers, ValkeyStore, running


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers that nothing happens to."""
    folder: Path = tmp_path_factory.mktemp("servers")
    with running(folder, 3) as servers:
        yield servers


@pytest.fixture
def store(three: Servers) -> Iterator[ValkeyStore]:
    with three.store(expire=True) as opened:
        yield opened


@pytest.fixture
def other(three: Servers) -> Iterator[ValkeyStore]:
    with three.store(expire=True) as opened:
        yield opened


def names(store: ValkeyStore) -> list[str]:
    return store.names("", 10, Deadline.after(PATIENCE))


def test_an_expiry_is_recorded(store: ValkeyStore, other: ValkeyStore) -> None:
    mine = holder(auto_unlock_after=0.5, backtrace="x" * 9000)
    uuid, token = take(store, mine)
    wait_until(lambda: has(other) is None, what="the expiry")
    assert not names(other)
    unlock(other, take(other)[0])
    removal = read(other, NAME, uuid).removal
    assert removal is not None
    assert (removal.how, removal.why) == (AUTO_UNLOCK, EXPIRED_TEXT)
    assert (removal.holder.uuid, removal.holder.backtrace) == (uuid, mine.backtrace)
    outcome = ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token))
    assert isinstance(outcome, NotHolder)
    assert outcome.removal == removal


def test_a_push_in_time_keeps_the_lock(store: ValkeyStore) -> None:
    uuid, token = take(store, holder(auto_unlock_after=60.0))
    assert not isinstance(ask(store, Push(NAME, uuid, Stamps(2.0, 3.0), token)), NotHolder)
    assert has(store) == uuid
    assert names(store) == [NAME]
    unlock(store, uuid)


def test_a_lock_without_auto_unlock_does_not_expire(three: Servers, store: ValkeyStore) -> None:
    uuid, _ = take(store, holder(**NEVER))
    assert three.command("PTTL", store.keys.lock(NAME)) == [-1] * 3
    assert has(store) == uuid
    unlock(store, uuid)


def test_a_released_lock_has_not_expired(
    three: Servers, store: ValkeyStore, other: ValkeyStore
) -> None:
    uuid, _ = take(store, holder(auto_unlock_after=1.0))
    key = store.keys.lock(NAME)
    left = three.all[0].command("DUMP", key)
    unlock(store, uuid)
    three.all[0].command("RESTORE", key, "80000000", left)
    unlock(other, take(other)[0])
    assert read(other, NAME, uuid).removal is None


def test_the_former_holder_of_an_expired_lock_can_not_retake_it(
    store: ValkeyStore, other: ValkeyStore
) -> None:
    mine = holder(auto_unlock_after=0.5)
    take(store, mine)
    wait_until(lambda: has(other) is None, what="the expiry")
    uuid, _ = take(other)
    assert not isinstance(ask(store, Take(mine)), Taken)
    unlock(other, uuid)
