"""Diagnosis of a bucket, for `clustermutex doctor`: permissions, settings, latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any, Final

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.findings import ERROR, FINE, WARNING, Finding
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.wire.http_client import FIRST_TRY_TIMEOUT_S, HttpClient, HttpRequest
from lockclient.stores.request_types import Read

_REQUEST_TIMEOUT_S: Final = 5.0
_LATENCY_READS: Final = 50
_MEASUREMENT_TIMEOUT_S: Final = 10.0
"""Seconds for all reads together; two are enough."""
_PROBE_LOCK: Final = "clustermutex-doctor"
_SLOW_P99_S: Final = 1.0

_PERMISSIONS: Final = {
    "create": "to take a lock",
    "get": "to read a lock, and after an answer that was lost",
    "update": "to push",
    "delete": "to release, and to take a lock over a tombstone",
    "list": "to see that a lock is free, and for lists",
}
"""Permissions on objects, and why each client needs them. (Without `list` a missing object is 403
instead of 404.)"""


def examine(client: HttpClient, read: Callable[[Read, Deadline], object]) -> Iterator[Finding]:
    """Yield the findings, the basic ones first.

    Raises:
        StoreUnavailable, StoreError: the bucket does not answer, or refuses these credentials.
    """
    bucket = client.location.bucket
    lacking = _lacking_permissions(client)
    yield Finding("bucket", FINE, f"{client.location.url()} answers.")
    if not lacking:
        text = f"These credentials may {', '.join(_PERMISSIONS)} objects: all that is needed."
        yield Finding("rights", FINE, text)
    for permission in lacking:
        yield Finding(
            "rights",
            ERROR,
            f"These credentials lack storage.objects.{permission} on the bucket {bucket}, "
            f"which is needed {_PERMISSIONS[permission]}.",
            "Grant them roles/storage.objectUser on the bucket, which has all.",
        )
    yield from _settings_findings(client)
    yield from _latency_findings(read)


def _get(client: HttpClient, path: str, query: Mapping[str, Any]) -> Mapping[str, Any]:
    path = f"/storage/v1/b/{client.location.bucket}{path}"
    call = HttpRequest("GET", path, (200,), query=query)
    return client.ask(call, Deadline.after(_REQUEST_TIMEOUT_S)).json


def _lacking_permissions(client: HttpClient) -> list[str]:
    """Return the permissions that these credentials lack; the request itself needs none."""
    names = {f"storage.objects.{name}": name for name in _PERMISSIONS}
    found = _get(client, "/iam/testPermissions", {"permissions": [*names]}).get("permissions", [])
    return [name for full, name in names.items() if full not in found]


def _settings_findings(client: HttpClient) -> Iterator[Finding]:
    bucket = client.location.bucket
    fields = "lifecycle,softDeletePolicy,retentionPolicy,defaultEventBasedHold"
    try:
        settings = _get(client, "", {"fields": fields})
    except StoreError:
        yield Finding(
            "settings",
            WARNING,
            "Whether the bucket has rules that harm locks is unknown: these credentials lack "
            "storage.buckets.get.",
            "Run this as somebody who has it, or read the settings: `gcloud storage buckets "
            f"describe gs://{bucket}`.",
        )
        return
    found = list(judged(settings, client.location.root, bucket))
    yield from found
    if not found:
        text = "No lifecycle rule, retention, hold or soft delete that harms locks or costs."
        yield Finding("settings", FINE, text)


def judged(settings: Mapping[str, Any], root: str, bucket: str) -> Iterator[Finding]:
    """Judge a bucket's settings, as the API returns them, for locks below a root."""
    change = f"gcloud storage buckets update gs://{bucket}"
    if settings.get("retentionPolicy") or settings.get("defaultEventBasedHold"):
        yield Finding(
            "settings",
            ERROR,
            "The bucket keeps each object for a time (a retention policy, or holds): a lock "
            "can't be released before.",
            "Use another bucket for locks, without retention and holds.",
        )
    rules = (settings.get("lifecycle") or {}).get("rule") or ()
    if deleting := [rule for rule in rules if may_delete(rule, ObjectNames(root).locks)]:
        condition = (deleting[0].get("condition") or {}).items()
        text = ", ".join(f"{key} {value}" for key, value in condition)[:200]
        yield Finding(
            "settings",
            ERROR,
            f"A lifecycle rule deletes locks, even held ones: {text or 'without a condition'}.",
            "Remove it, or restrict it to other names by matchesPrefix: "
            f"`{change} --lifecycle-file=FILE`.",
        )
    kept_s = int((settings.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if kept_s:
        yield Finding(
            "settings",
            WARNING,
            f"The bucket keeps deleted objects for {kept_s / 86400:g} days (soft delete): each "
            "released lock is paid for as long. It harms no lock.",
            f"`{change} --clear-soft-delete`.",
        )


_NONCURRENT_CONDITIONS: Final = {
    "daysSinceNoncurrentTime",
    "noncurrentTimeBefore",
    "numNewerVersions",
}
"""Conditions that only replaced versions meet."""


def may_delete(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a lifecycle rule may delete live objects whose names begin with the prefix."""
    if (rule.get("action") or {}).get("type") != "Delete":
        return False
    condition = rule.get("condition") or {}
    if _NONCURRENT_CONDITIONS & condition.keys() or condition.get("isLive") is False:
        return False
    prefixes = condition.get("matchesPrefix") or [""]
    return any(other.startswith(prefix) or prefix.startswith(other) for other in prefixes)


def _latency_findings(read: Callable[[Read, Deadline], object]) -> Iterator[Finding]:
    until, seconds = Deadline.after(_MEASUREMENT_TIMEOUT_S), list[float]()
    try:
        while len(seconds) < _LATENCY_READS and (len(seconds) < 2 or not until.expired()):
            before = time.perf_counter()
            read(Read(_PROBE_LOCK), Deadline.after(_REQUEST_TIMEOUT_S))
            seconds.append(time.perf_counter() - before)
    except (StoreUnavailable, StoreError) as error:
        advice = "Run this again when the bucket answers steadily, with a right to read."
        yield Finding("latency", ERROR, str(error), advice)
        return
    half, most = (sorted(seconds)[ceil(len(seconds) * part) - 1] for part in (0.5, 0.99))
    text = (
        f"{len(seconds)} reads of a lock that nobody has: p50 {half * 1000:.1f} ms, "
        f"p99 {most * 1000:.1f} ms. A free lock costs two requests."
    )
    if most <= _SLOW_P99_S:
        yield Finding("latency", FINE, text)
        return
    level = ERROR if most > FIRST_TRY_TIMEOUT_S else WARNING
    yield Finding("latency", level, text, "Use a bucket in the region of the locks' users.")
