"""`clustermutex doctor` on a bucket: what it finds of the bucket, and of any store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.gcs.store import GcsStore
from tests.acceptance.test_command_doctor import examine, of
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of, store_of
from tests.support.processes import wait_until
from tests.support.unlocker_process import unlocker


@pytest.fixture
def settings(server: BucketServer) -> Settings:
    return settings_of(server)


@pytest.fixture
def store(settings: Settings) -> Iterator[GcsStore]:
    opened = store_of(settings)
    yield opened
    opened.close()


def test_a_healthy_one(settings: Settings, server: BucketServer, store: GcsStore) -> None:
    """With an unlocker, and a lock that somebody has: nothing is written by it."""
    with (
        unlocker(settings, "--poll", "0.5") as running,
        ClusterMutex("x", store=store),
    ):
        assert running.url
        wait_until(lambda: len(server.bucket.names()) == 2, what="the unlocker's heartbeat")
        before = server.bucket.names()
        found = examine(settings, "--listen", "20s", status=0)
        assert server.bucket.names() == before
    checks = ["bucket", "rights", "settings", "latency", "unlocker", "clock", "locks"]
    assert [finding["check"] for finding in found] == checks
    assert "1 running: unlocker@" in of(found, "unlocker")[0][1]
    assert "Google Cloud Storage" in of(found, "clock")[0][1]
    assert "1 lock held" in of(found, "locks")[0][1]
    assert not [finding for finding in found if "etcd" in finding["text"]]


def test_an_ill_one(settings: Settings, server: BucketServer) -> None:
    """A wrong clock, rules that delete locks, a right that is missing: each with what to do."""
    server.ahead = 120.0
    server.denied = {"storage.objects.update"}
    server.settings = {
        "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]},
        "versioning": {"enabled": True},
    }
    found = examine(settings, status=2)
    assert [level for level, _ in of(found, "settings")] == ["error", "warning"]
    ((level, text),) = of(found, "rights")
    assert (level, "storage.objects.update" in text) == ("error", True)
    ((level, text),) = of(found, "clock")
    assert level == "warning"
    assert "The clock of Google Cloud Storage is" in text
    assert "ahead of this machine's" in text
    assert of(found, "unlocker")[0][0] == "error"


def test_no_bucket_and_no_right_to_list(settings: Settings, server: BucketServer) -> None:
    """What can be looked at is; the rest is left out with the reason."""
    found = examine(Settings.load("gs://another"), status=2)
    ((level, text),) = of(found, "gcs")
    assert (level, "Create the bucket" in text) == ("error", True)
    assert len(found) == 1
    server.denied = {"storage.objects.list"}
    found = examine(settings, status=2)
    assert of(found, "rights")[0][0] == "error"
    ((level, text),) = of(found, "gcs")
    assert (level, "storage.objects.list" in text) == ("error", True)
