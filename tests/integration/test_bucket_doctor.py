"""What `clustermutex doctor` finds of a bucket, healthy and ill."""

from __future__ import annotations

from typing import Any

import pytest

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.stores.diagnosis_protocol import FINE
from lockclient.stores.gcs import diagnosis, listing
from lockclient.stores.gcs.diagnosis import may_delete
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import SLOW, BucketServer

Found = dict[str, list[tuple[str, str, str]]]


def examine(server: BucketServer, bucket: str = "locks") -> Found:
    store = GcsStore(GcsLocation(bucket, "of/us/"))
    found: Found = {}
    try:
        for one in store.examine():
            found.setdefault(one.check, []).append((one.level, one.text, one.advice))
            assert bool(one.advice) == (one.level != FINE)
    finally:
        store.close()
    return found


def test_a_healthy_one(server: BucketServer) -> None:
    """And nothing is written."""
    found = examine(server)
    assert list(found) == ["bucket", "rights", "settings", "latency"]
    assert [level for [(level, _, _)] in found.values()] == [FINE] * 4
    assert found["bucket"][0][1] == "gs://locks/of/us answers."
    assert "create, get, update, delete, list" in found["rights"][0][1]
    assert found["latency"][0][1].startswith("50 reads of a lock that nobody has: p50 ")
    assert {asked.method for asked in server.asked} == {"GET"}
    assert server.bucket.names() == []


def test_more_objects_than_a_look_reads(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From half of them on it warns."""
    for number in range(4):
        server.bucket.insert(f"of/us/locks{number}", b"", Conditions())
    for most, level in ((4, "error"), (6, "warning")):
        for module in (listing, diagnosis):
            monkeypatch.setattr(module, "MAX_OBJECTS", most)
        ((found, text, _),) = examine(server)["objects"]
        assert found == level
        assert f"reads 4 objects{' at least' if most == 4 else ''}, of {most} at most" in text


def test_rights_that_are_missing_are_named_one_by_one(server: BucketServer) -> None:
    """With what they are for."""
    server.denied = {"storage.objects.update", "storage.objects.list"}
    assert [(level, text) for level, text, _ in examine(server)["rights"]] == [
        (
            "error",
            "These credentials lack storage.objects.update on the bucket locks, which is needed to "
            "push.",
        ),
        (
            "error",
            "These credentials lack storage.objects.list on the bucket locks, which is "
            "needed to see that a lock is free, and for lists.",
        ),
    ]


def test_who_may_not_read_is_told_so(server: BucketServer) -> None:
    server.denied = {"storage.objects.get"}
    ((level, text, _),) = examine(server)["latency"]
    assert (level, "storage.objects.get" in text) == ("error", True)


@pytest.mark.parametrize(
    ("settings", "level", "said"),
    [
        ({"versioning": {"enabled": True}}, "warning", "object versioning"),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
            "warning",
            "deleted for 7 days (soft delete)",
        ),
        ({"storageClass": "NEARLINE"}, "warning", "NEARLINE"),
        ({"hierarchicalNamespace": {"enabled": True}}, "warning", "empty folder"),
        ({"billing": {"requesterPays": True}}, "error", "requester pays"),
        ({"retentionPolicy": {"retentionPeriod": "60"}}, "error", "can't be given back"),
        ({"defaultEventBasedHold": True}, "error", "can't be given back"),
        (
            {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]}},
            "error",
            "deletes locks, even held ones: age 3.",
        ),
        ({"versioning": {"enabled": False}}, FINE, ""),
        ({"hierarchicalNamespace": {"enabled": False}}, FINE, ""),
        ({"softDeletePolicy": {"retentionDurationSeconds": "0"}}, FINE, ""),
        ({"storageClass": "STANDARD", "billing": {}, "lifecycle": {}}, FINE, ""),
    ],
)
def test_what_harms_locks_or_costs_and_what_does_not(
    server: BucketServer, settings: dict[str, Any], level: str, said: str
) -> None:
    server.settings = settings
    ((found, text, advice),) = examine(server)["settings"]
    assert (found, said in text) == (level, True), text
    assert level == FINE or "bucket" in advice


@pytest.mark.parametrize(
    ("condition", "harms"),
    [
        ({"age": 30}, True),
        ({}, True),
        ({"age": 30, "matchesPrefix": ["of/"]}, True),
        ({"age": 30, "matchesPrefix": ["of/us/locks/a"]}, True),
        ({"age": 30, "matchesPrefix": ["of/them/", "of/us/removed/"]}, False),
        ({"isLive": False, "age": 1}, False),
        ({"isLive": True, "age": 1}, True),
        ({"numNewerVersions": 3}, False),
        ({"daysSinceNoncurrentTime": 3}, False),
    ],
)
def test_which_lifecycle_rules_may_delete_a_lock(condition: dict[str, Any], harms: bool) -> None:
    """Those of the live version of what has a name like that."""
    rule = {"action": {"type": "Delete"}, "condition": condition}
    assert may_delete(rule, "of/us/locks/") == harms
    assert not may_delete({**rule, "action": {"type": "SetStorageClass"}}, "of/us/locks/")


def test_who_may_not_see_how_it_is_set_up_is_told_how_to(server: BucketServer) -> None:
    """The role that locks need does not have that right."""
    server.denied = {"storage.buckets.get"}
    ((level, text, advice),) = examine(server)["settings"]
    assert (level, "storage.buckets.get" in text) == ("warning", True)
    assert "gcloud storage buckets describe gs://locks" in advice


def test_a_slow_one(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockclient.stores.gcs.diagnosis._LATENCY_READS", 3)
    server.fault("GET", SLOW, part="/o/", seconds=1.2)
    ((level, text, advice),) = examine(server)["latency"]
    assert (level, text.startswith("3 reads")) == ("warning", True)
    assert "region" in advice


def test_no_bucket_and_no_answer_are_errors(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="Create the bucket, or correct its name"):
        examine(server, "another")
    monkeypatch.setattr("lockclient.stores.gcs.diagnosis._REQUEST_TIMEOUT_S", 0.5)
    server.fault("GET", 503, times=1000)
    with pytest.raises(StoreUnavailable):
        examine(server)
