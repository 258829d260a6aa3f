"""Credentials from Google's metadata server, which may hang, refuse or be unreachable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from google.auth.compute_engine import _metadata

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable, open_store
from lockclient.model.clocks import monotonic
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import holder
from tests.support.bucket.server import BucketServer
from tests.support.locks import ask, take
from tests.support.processes import wait_until
from tests.support.web_server import serving

PATIENCE_S = 10.0
"""Seconds by which a call is over that has one: google-auth itself tries for 12 to 31."""


class MetadataServer:
    """Answers what a machine's metadata server is asked.

    Attributes:
        status: what it answers; 0: nothing, until `let_on` is set.
    """

    def __init__(self) -> None:
        self.status = 200
        self.let_on = threading.Event()
        self.running = ExitStack()
        self.address = self.running.enter_context(
            serving(self._answer, headers={"Metadata-Flavor": "Google"})
        )

    def _answer(self, _: bytes) -> tuple[int, object]:
        if not self.status:
            self.let_on.wait(60)
            return 500, {}
        token = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
        return self.status, {**token, "email": "locks@example.com"}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """One that google-auth in this process takes for its machine's."""
    server = MetadataServer()
    monkeypatch.setenv("GCE_METADATA_HOST", server.address)
    monkeypatch.setenv("GCE_METADATA_IP", server.address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", server.address)  # read on import
    with server.running:
        yield server
        server.let_on.set()


@pytest.fixture
def server(
    metadata: MetadataServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[BucketServer]:
    """A bucket that is taken for Google's own, which wants the token."""
    del metadata  # it has begun
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with BucketServer() as running:
        monkeypatch.setattr("lockclient.stores.gcs.wire.http_client._GOOGLE_URL", running.url)
        running.token = "token"
        yield running


@pytest.fixture
def store(server: BucketServer) -> Iterator[ServiceStore]:
    with closing(open_store(Settings.load(f"gs://{server.bucket.name}"))) as opened:
        yield opened


@pytest.mark.parametrize("how", ["hangs", "is ill", "is away"])
def test_without_a_metadata_server_timeouts_hold(
    server: BucketServer, store: ServiceStore, metadata: MetadataServer, how: str
) -> None:
    metadata.status = 0 if how == "hangs" else 503
    if how == "is away":
        metadata.running.close()
    took_s: list[float] = []

    def one() -> None:
        began = monotonic()
        with pytest.raises(StoreUnavailable, match="no access token") as told:
            ask(store, Take(holder()), 1.0)
        assert not told.value.unknown
        took_s.append(monotonic() - began)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(took_s) == 4
    assert max(took_s) < PATIENCE_S
    assert not server.asked


def test_the_metadata_server_is_retried(
    server: BucketServer, store: ServiceStore, metadata: MetadataServer
) -> None:
    metadata.status = 503
    with pytest.raises(StoreUnavailable):
        ask(store, Take(holder()), 0.5)
    metadata.status = 200
    take(store)
    assert server.counted("POST") == 1


def test_a_refusal_is_final(
    server: BucketServer, store: ServiceStore, metadata: MetadataServer
) -> None:
    """It is there, and says that the machine has no service account."""
    metadata.status = 404
    with pytest.raises(StoreError, match="for want of credentials"):
        ask(store, Take(holder()), 60.0)
    assert not server.asked


def test_a_missing_metadata_server_means_no_credentials(
    server: BucketServer,
    store: ServiceStore,
    metadata: MetadataServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata.running.close()
    monkeypatch.setattr("lockclient.stores.gcs.wire.access_tokens._METADATA_SIGNS", ())
    with pytest.raises(StoreError, match="gcloud auth application-default login"):
        ask(store, Take(holder()), 60.0)


def test_a_holder_with_a_refused_token_keeps_its_lock(
    server: BucketServer, store: ServiceStore, metadata: MetadataServer
) -> None:
    mutex = ClusterMutex("x", store=store, expected_runtime=600)
    mutex.acquire()
    metadata.status, server.token = 0, "another"
    began = monotonic()
    wait_until(lambda: not _confirmed(mutex), what="no push is confirmed")
    assert monotonic() - began < 2 * PATIENCE_S
    metadata.status, server.token = 200, "token"
    metadata.let_on.set()
    wait_until(lambda: _confirmed(mutex), what="the push goes on")
    mutex.release()
    assert server.bucket.names() == []


def _confirmed(mutex: ClusterMutex) -> bool:
    try:
        mutex.alive(force=True)
    except StoreUnavailable:
        return False
    return True
