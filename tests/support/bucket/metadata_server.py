"""The metadata server of Google's machines, which gives access tokens; it may hang or refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from google.auth.compute_engine import _metadata

from tests.support.bucket.server import BucketServer
from tests.support.web_server import serving


class MetadataServer:
    """Answers what a machine's metadata server is asked.

    Attributes:
        status: what it answers; 0: nothing, until `let_on` is set.
        tokens: how many it gave.
    """

    def __init__(self) -> None:
        self.status = 200
        self.let_on = threading.Event()
        self.tokens = 0
        self.expires_in = 3600
        self.running = ExitStack()
        self.address = self.running.enter_context(
            serving(self._answer, headers={"Metadata-Flavor": "Google"})
        )

    def _answer(self, _: bytes) -> tuple[int, object]:
        if not self.status:
            self.let_on.wait(60)
            return 500, {}
        self.tokens += self.status == 200
        token = {"access_token": "token", "expires_in": self.expires_in, "token_type": "Bearer"}
        return self.status, {**token, "email": "locks@example.com"}


@contextmanager
def metadata_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """Run one, which google-auth in this process takes for its machine's."""
    server = MetadataServer()
    monkeypatch.setenv("GCE_METADATA_HOST", server.address)
    monkeypatch.setenv("GCE_METADATA_IP", server.address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", server.address)  # read on import
    monkeypatch.setattr(_metadata, "_NO_GCE_CHECK", False)
    with server.running:
        yield server
        server.let_on.set()


@contextmanager
def google_bucket(monkeypatch: pytest.MonkeyPatch, no_config: Path) -> Iterator[BucketServer]:
    """Run a bucket that is taken for Google's own, which wants the token."""
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(no_config))
    with BucketServer() as running:
        monkeypatch.setattr("lockclient.stores.gcs.wire.http_client._GOOGLE_URL", running.url)
        running.token = "token"
        yield running
