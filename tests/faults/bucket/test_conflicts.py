"""409, which Google documents for concurrent changes of an object as one to be tried again."""

from __future__ import annotations

import pytest

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.requests import Take
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import BucketServer
from tests.support.locks import ask, has, held, removal_of, remove

CONFLICT = 409


@pytest.mark.parametrize("times", [1, 3])
def test_each_write_of_a_lock_is_tried_again(
    server: BucketServer, store: GcsStore, times: int
) -> None:
    mutex = ClusterMutex(NAME, store=store, expected_runtime=600)
    server.fault("POST", CONFLICT, times=times)
    mutex.acquire()
    server.fault("PATCH", CONFLICT, times=times)
    mutex.alive(force=True)
    server.fault("DELETE", CONFLICT, times=times)
    server.fault("POST", CONFLICT, times=times)  # of a trace, if it leaves one
    mutex.release()
    assert has(store) is None


def test_a_removal_is_tried_again(server: BucketServer, store: GcsStore) -> None:
    ask(store, Take(holder()))
    for method in ("PATCH", "POST"):
        server.fault(method, CONFLICT, times=2)
    removed = held(store)
    remove(store, removed)
    assert has(store) is None
    assert removal_of(store, removed).how


def test_one_that_does_not_end_is_an_outage(server: BucketServer, store: GcsStore) -> None:
    """As with 503 it may have been done."""
    server.fault("POST", CONFLICT, times=1000)
    with pytest.raises(StoreUnavailable, match="409") as told:
        ask(store, Take(holder()), 1.0)
    assert told.value.unknown


@pytest.mark.parametrize("status", [200, 204])
def test_a_deletion_has_no_content(server: BucketServer, store: GcsStore, status: int) -> None:
    """Google says so by 204, and some emulators by 200 with nothing."""
    server.deleted = status
    with ClusterMutex(NAME, store=store):
        pass
    assert server.counted("DELETE") == 1
    assert has(store) is None
