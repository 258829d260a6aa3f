"""Foreign objects under the names of locks are left alone, and block no name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient import ClusterMutex, StoreError
from lockclient.stores.request_types import Read, Reclaim, Remove, Take, Withdraw
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder, removal
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import Answer, BucketServer
from tests.support.bucket_store import OBJECT
from tests.support.locks import ask, held, remove, soon, take, unlock

BODY = b"somebody else's data"


def listed(store: ServiceStore) -> list[str]:
    """Return the kinds of all that lists show."""
    batches = store.load(("locks", "withdrawn", "removed"), soon())
    return [change.kind for batch in batches for change in batch.changes]


OF_OTHERS: list[dict[str, str]] = [{}, {"owner": "ann"}, {"removing": "{}"}, {"late_until": "0"}]


@pytest.mark.parametrize("metadata", OF_OTHERS)
class TestForeignHolder:
    """An object that is neither a lock nor a trace."""

    def test_a_foreign_object_is_never_overwritten(
        self, server: BucketServer, store: ServiceStore, metadata: dict[str, str]
    ) -> None:
        before = server.bucket.insert(OBJECT, BODY, Conditions(), metadata=metadata)
        mine = holder(identity="me")
        previous = replace(mine, fencing_token=1, stamp_revisions=(1, 1))
        for request in (
            Take(mine),
            Reclaim(mine, previous),
            Withdraw(NAME, mine.uuid or "", tombstone=True),
            Remove(removal(mine), None),
            Read(NAME),
        ):
            with pytest.raises(StoreError, match=OBJECT):
                ask(store, request)
        with pytest.raises(StoreError, match=r"is left alone.*prefix of their own"):
            ClusterMutex(NAME, store=store).acquire()
        assert server.bucket.get(OBJECT) == (before, BODY)

    def test_a_foreign_object_is_in_no_list(
        self, server: BucketServer, store: ServiceStore, metadata: dict[str, str]
    ) -> None:
        before = server.bucket.insert(OBJECT, BODY, Conditions(), metadata=metadata)
        store.announce("unlocker-1", "{}", 60, soon())
        for _ in range(3):
            assert not listed(store)
        assert server.bucket.get(OBJECT) == (before, BODY)


@pytest.mark.parametrize(
    "metadata",
    [
        {"uuid": ""},
        {"uuid": "u" * 300},
        {"uuid": "u" * 8000},
        {"uuid": "u1", "x": "y" * 8180},
        {"uuid": "u1", "hostname": "h" * 8000},
        {"uuid": "u1", "about": "z" * 8000},
    ],
    ids=["empty", "300", "8000", "full", "hostname", "about"],
)
def test_a_foreign_object_can_be_removed(
    server: BucketServer, store: ServiceStore, metadata: dict[str, str]
) -> None:
    server.bucket.insert(OBJECT, b"{}", Conditions(), metadata=metadata)
    remove(store, held(store), "\x01" * 180, "ann" * 30)
    take(store)


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "junk", ""])
def test_an_invalid_time_counts_as_a_day(
    server: BucketServer, store: ServiceStore, said: str
) -> None:
    metadata = {"gone": "z", "late_until": said}
    server.bucket.insert(OBJECT, b"", Conditions(), metadata=metadata)
    assert listed(store) == ["withdrawn"]
    uuid, _ = take(store)
    unlock(store, uuid)
    assert server.bucket.names() == [OBJECT], "a tombstone for late requests"
    server.ahead = 86400 + 60
    unlock(store, take(store)[0])
    unlock(store, take(store)[0])
    assert server.bucket.names() == []


def test_an_answer_without_a_generation_is_an_error(
    server: BucketServer, store: ServiceStore
) -> None:
    server.instead = lambda _: Answer(200, b"{}")
    with pytest.raises(StoreError, match="has no generation"):
        ClusterMutex(NAME, store=store).acquire()


def test_an_older_form_of_too_many_requests_is_a_pause(
    server: BucketServer, store: ServiceStore
) -> None:
    said = b'{"error":{"message":"slow","errors":[{"reason":"rateLimitExceeded"}]}}'
    answers = [Answer(403, said)]
    server.instead = lambda _: answers.pop() if answers else None
    take(store)
    assert not answers


def test_a_tombstone_is_overwritten_by_a_client_that_may_delete(
    server: BucketServer, store: ServiceStore
) -> None:
    server.bucket.insert(OBJECT, b"", Conditions(), metadata={"gone": "z"})
    server.denied = {"storage.objects.delete"}
    with pytest.raises(StoreError, match=r"storage\.objects\.delete"):
        ask(store, Take(holder()))
    server.denied = {"storage.objects.list"}
    with pytest.raises(StoreError, match=r"storage\.objects\.list"):
        ask(store, Read("another"))
