"""A bucket of a test's own, with a store in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockclient import Settings, open_store
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME
from tests.support.bucket.server import BucketServer

OBJECT = ObjectNames("").lock(NAME)


@contextmanager
def bucket_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """Run a bucket that all stores of this process, and of those that it starts, use."""
    with BucketServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def settings_of(server: BucketServer, prefix: str = "of/the/test") -> Settings:
    return Settings.load(f"gs://{server.bucket.name}/{prefix}")


def store_of(settings: Settings, poll: float = 0.2) -> ServiceStore:
    """Open a store that is looked at so often."""
    store = open_store(settings)
    store.poll = poll
    return store
