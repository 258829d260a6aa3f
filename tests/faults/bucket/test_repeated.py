"""A front end that sends each write on twice, and tells the second answer alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.outcomes import Done, NotHolder, Taken
from lockclient.stores.requests import Push, Reclaim, Remove, Unlock, Withdraw
from tests.contract.asking import NAME, holder, removal
from tests.support.bucket.server import REPEAT, Asked, BucketServer, Fault
from tests.support.bucket_store import OBJECT
from tests.support.locks import ask, has, removal_of, take


@pytest.fixture
def repeating(server: BucketServer) -> BucketServer:
    """A bucket behind one."""

    def repeat(asked: Asked) -> Fault | None:
        return None if asked.method == "GET" else Fault(asked.method, REPEAT)

    server.trouble = repeat
    return server


@pytest.fixture(params=[False, True], ids=["nothing", "trace"])
def mine(request: pytest.FixtureRequest, repeating: BucketServer, store: GcsStore) -> Holder:
    """Who has the lock, which it created, or took over a trace."""
    if request.param:
        ask(store, Withdraw(NAME, "nobody", tombstone=True))
        assert repeating.bucket.names() == [OBJECT]
    mine = holder(identity="me")
    _, token = take(store, mine)
    return replace(mine, fencing_token=token)


def test_a_take_and_a_push_are_had(store: GcsStore, mine: Holder) -> None:
    uuid = mine.uuid or ""
    assert has(store) == uuid
    push = Push(NAME, uuid, Stamps(250.0, 350.0), mine.fencing_token)
    assert isinstance(ask(store, push), Done)


def test_a_release_is_done_by_its_own_trace(
    store: GcsStore, mine: Holder, repeating: BucketServer
) -> None:
    """What is refused is its own second trace. A second deletion might be somebody else's."""
    traced = "late_until" in repeating.bucket.get(OBJECT)[0]["metadata"]
    gone = ask(store, Unlock(NAME, mine.uuid or ""))
    assert gone == NotHolder(None, None, resent=traced)
    assert has(store) is None


def test_a_removal_has_its_record(store: GcsStore, other: GcsStore, mine: Holder) -> None:
    """And who was removed is told so, by its push as by its release."""
    assert isinstance(ask(other, Remove(removal(mine), None)), Done)
    assert has(store) is None
    gone = ask(store, Unlock(NAME, mine.uuid or ""))
    assert isinstance(gone, NotHolder)
    assert gone.removal == removal_of(store, mine)


def test_an_heir_takes_over(store: GcsStore, mine: Holder) -> None:
    heir = holder(identity="me")
    assert isinstance(ask(store, Reclaim(heir, mine)), Taken)
    assert has(store) == heir.uuid


def test_who_gives_up_writes_once_onto_another_one_s_lock(
    repeating: BucketServer, store: GcsStore, mine: Holder
) -> None:
    """And is not refused for ever because of its own writing."""
    asked = repeating.counted("PATCH")
    assert isinstance(ask(store, Withdraw(NAME, "nobody", tombstone=True)), Done)
    assert repeating.counted("PATCH") <= asked + 1
    said, _ = repeating.bucket.get(OBJECT)
    assert (said["metadata"]["uuid"], "late_until" in said["metadata"]) == (mine.uuid, True)
