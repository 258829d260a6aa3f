"""A bucket of a test's own, with a store in it, and clients that die."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockclient import Settings
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from tests.contract.asking import NAME
from tests.support.bucket.server import BucketServer

OBJECT = ObjectNames("").lock(NAME)

_HOLDER = """
import sys, time
from lockclient import ClusterMutex, Settings, open_store

_, url, name, expected, after = sys.argv
store = open_store(Settings.load(url))
mutex = ClusterMutex(
    name, expected_runtime=float(expected), auto_unlock_after=float(after), store=store
)
mutex.acquire()
print(mutex.uuid, flush=True)
time.sleep(600)
"""


@contextmanager
def bucket_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """Run a bucket that all stores of this process, and of those that it starts, use."""
    with BucketServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def settings_of(server: BucketServer, prefix: str = "of/the/test") -> Settings:
    """Return what leads to it."""
    return Settings.load(f"gs://{server.bucket.name}/{prefix}")


def store_of(settings: Settings, poll: float = 0.2) -> GcsStore:
    """Open a store that is looked at so often."""
    assert isinstance(settings.location, GcsLocation)
    store = GcsStore(settings.location)
    store.poll = poll
    return store


def die_with(settings: Settings, name: str, expected: float, after: float) -> str:
    """Have a process take a lock, kill it, and return the uuid."""
    words = [sys.executable, "-c", _HOLDER, settings.url(), name, f"{expected}", f"{after}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        uuid = process.stdout.readline().strip()
        process.kill()
    assert uuid
    return uuid
