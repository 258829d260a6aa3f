"""Settings of a bucket that `doctor` reports; more in `doctor_cases.py`."""

from __future__ import annotations

from typing import Any

import pytest

from lockclient.stores.findings import ERROR, WARNING
from lockclient.stores.gcs.diagnosis import judged


def deleting(**condition: Any) -> dict[str, Any]:
    return {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": condition}]}}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"softDeletePolicy": {"retentionDurationSeconds": "0"}}, {}),
        ({"lifecycle": {}}, {}),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
            {"keeps deleted objects for 7 days (soft delete)": WARNING},
        ),
        ({"defaultEventBasedHold": True}, {"can't be released": ERROR}),
        # A rule harms if it may delete the live version of what is named like a lock.
        (deleting(age=3), {"deletes locks, even held ones: age 3.": ERROR}),
        (deleting(), {"without a condition": ERROR}),
        (deleting(age=30, matchesPrefix=["of/"]), {"age 30": ERROR}),
        (deleting(age=30, matchesPrefix=["of/us/locks/a"]), {"age 30": ERROR}),
        (deleting(isLive=True, age=1), {"isLive True": ERROR}),
        (deleting(age=30, matchesPrefix=["of/them/", "of/us/removed/"]), {}),
        (deleting(isLive=False, age=1), {}),
        (deleting(numNewerVersions=3), {}),
        (deleting(daysSinceNoncurrentTime=3), {}),
        ({"lifecycle": {"rule": [{"action": {"type": "SetStorageClass"}}]}}, {}),
    ],
)
def test_harmful_or_costly_settings_are_found(
    settings: dict[str, Any], expected: dict[str, str]
) -> None:
    found = list(judged(settings, "of/us/", "locks"))
    assert [finding.level for finding in found] == list(expected.values())
    for finding, said in zip(found, expected, strict=True):
        assert said in finding.text
        assert "bucket" in finding.advice
