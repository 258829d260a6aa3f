"""A bucket that answers "too many requests" for a long time."""

from __future__ import annotations

import logging

import pytest

from lockclient import ClusterMutex, StoreUnavailable
from lockclient.model.clocks import Deadline, Stamps, monotonic
from lockclient.stores.outcomes import Taken
from lockclient.stores.request_types import Delivery, Push, Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import DROP, Asked, BucketServer, Fault
from tests.support.locks import PATIENCE, ask, has, take
from tests.support.processes import wait_until

BUSY = Fault("", 429)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which a bucket that does not answer is an error."""
    monkeypatch.setattr("lockclient.stores.timeouts.STORE_TIMEOUT_S", 0.5)
    return 0.5


def test_a_waiter_survives_a_busy_bucket(
    server: BucketServer, store: ServiceStore, impatient: float
) -> None:
    first: list[float] = []

    def refuse(_: Asked) -> Fault | None:
        first.append(monotonic())
        return BUSY if monotonic() < first[0] + 2 * impatient else None

    server.trouble = refuse
    assert ClusterMutex(NAME, store=store).acquire()
    assert server.counted("POST") > 1


@pytest.mark.usefixtures("impatient")
def test_a_holder_keeps_its_lock_and_releases_it_afterwards(
    server: BucketServer, store: ServiceStore
) -> None:
    held = ClusterMutex(NAME, store=store, expected_runtime=600, auto_unlock_after=6000)
    held.acquire()
    server.trouble = lambda _: BUSY
    with pytest.raises(StoreUnavailable):
        held.alive(force=True)
    assert held.healthy
    with pytest.raises(StoreUnavailable):
        held.release()
    server.trouble = lambda _: None
    wait_until(lambda: has(store) is None, what="the release")


def test_a_busy_bucket_is_named_as_busy(
    server: BucketServer,
    store: ServiceStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery, asked = Delivery(), server.counted("POST")
    take = Take(holder(), delivery=delivery)

    def refuse(_: Asked) -> Fault:
        delivery.is_given_up = server.counted("POST") >= asked + 3
        return BUSY

    server.trouble = refuse
    with (
        caplog.at_level(logging.WARNING, "lockclient.stores.gcs"),
        pytest.raises(StoreUnavailable, match="asks us to slow down") as caught,
    ):
        store.send(take, Deadline.after(PATIENCE))
    assert (caught.value.busy, caught.value.unknown) == (True, False)
    server.trouble = lambda _: None
    with caplog.at_level(logging.WARNING, "lockclient.stores.gcs"):
        delivery.is_given_up = False
        assert isinstance(ask(store, take), Taken)
    ours = (record for record in caplog.records if ".gcs." in record.name)
    first, last = (record.getMessage() for record in ours)
    assert "asks us to slow down (HTTP status 429: " in first
    assert "takes requests again after" in last


def test_a_later_network_failure_is_named(server: BucketServer, store: ServiceStore) -> None:
    uuid, token = take(store)
    server.fault("PATCH", 429)
    server.fault("PATCH", DROP, times=1000)
    with pytest.raises(StoreUnavailable, match="the connection was closed") as told:
        ask(store, Push(NAME, uuid, Stamps(250.0, 350.0), token), 1.0)
    assert not told.value.busy


def test_an_endless_conflict_is_an_outage(server: BucketServer, store: ServiceStore) -> None:
    server.fault("POST", 409, times=1000)
    with pytest.raises(StoreUnavailable, match="409") as told:
        ask(store, Take(holder()), 1.0)
    assert told.value.unknown
