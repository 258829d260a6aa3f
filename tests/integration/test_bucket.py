"""Locks in a bucket that only the URL chooses: what the contract suite leaves out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, Settings, StoreError
from lockclient.stores.service_store import ServiceStore
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of, store_of
from tests.support.locks import has, held
from tests.support.processes import wait_until
from tests.support.terminal import COMMAND, piped

OBJECT = "of/the/test/locks/x"


@pytest.fixture
def settings(server: BucketServer) -> Settings:
    return settings_of(server)


@pytest.fixture
def store(settings: Settings) -> Iterator[ServiceStore]:
    opened = store_of(settings)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", [ClusterMutex, AsyncClusterMutex])
def test_missing_capabilities_of_a_bucket_are_errors_before_a_take(
    server: BucketServer, store: ServiceStore, kind: Callable[..., ClusterMutex]
) -> None:
    mutex = kind("x", store=store)
    for what, said in (
        (lambda: mutex.fencing_token, "Google Cloud Storage has no number that only grows"),
        (lambda: mutex.guard, "Google Cloud Storage has no transactions"),
    ):
        with pytest.raises(StoreError, match=said):
            what()
    if isinstance(mutex, ClusterMutex):
        with pytest.raises(StoreError, match="Google Cloud Storage keeps no queue"):
            mutex.waiters()
    assert not server.asked


def foreign(server: BucketServer) -> None:
    server.bucket.insert(OBJECT, b"{}", Conditions(), metadata={"uuid": str(uuid4())})


def deleted(server: BucketServer) -> None:
    server.bucket.delete(OBJECT, Conditions())


@pytest.mark.parametrize(
    ("how", "keepalive"), [(foreign, False), (foreign, True), (deleted, False)]
)
def test_a_holder_learns_that_it_lost_the_lock(
    server: BucketServer,
    store: ServiceStore,
    how: Callable[[BucketServer], None],
    keepalive: bool,
) -> None:
    """It learns so with and without a push, and writes nothing over the present content."""
    told: list[LockLost] = []
    runtime = 4.0 if keepalive else 600.0
    mutex = ClusterMutex(
        "x", store=store, expected_runtime=runtime, keepalive=keepalive, on_lost=told.append
    )
    mutex.acquire()
    how(server)
    wait_until(lambda: told, what="the loss")
    before = server.bucket.names()
    with pytest.raises(LockLost):
        mutex.release()
    assert server.bucket.names() == before


def test_the_command_has_no_token_to_give(settings: Settings, store: ServiceStore) -> None:
    script = f'echo "$CLUSTERMUTEX_UUID/$CLUSTERMUTEX_FENCING_TOKEN/"; {COMMAND} show x --json'
    words = ("run", "x", "--", "sh", "-c", script)
    told, _, seen = piped(settings, *words, CLUSTERMUTEX_FENCING_TOKEN="17").stdout.partition("\n")
    assert told.endswith("//")
    assert json.loads(seen)["uuid"] == told[:-2]
    exported = piped(settings, "lock", "x", "--export").stdout
    given = dict(word.partition("=")[::2] for word in shlex.split(exported)[1:])
    assert given == {
        "CLUSTERMUTEX_NAME": "x",
        "CLUSTERMUTEX_UUID": held(store, "x").uuid,
        "CLUSTERMUTEX_FENCING_TOKEN": "",
    }
    before = held(store, "x").alert_at or 0
    piped(settings, "alive", status=0, **given)
    assert (held(store, "x").alert_at or 0) > before
    piped(settings, "unlock", status=0, **given)
    assert has(store, "x") is None
    assert "Nobody holds it now" in piped(settings, "alive", status=76, **given).stderr
