"""Diagnosis of a bucket, for `clustermutex doctor`: permissions, settings, size, latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.gcs.wire.http_client import FIRST_TRY_TIMEOUT_S, HttpClient, HttpRequest
from lockclient.stores.gcs.wire.http_session import HttpAnswer
from lockclient.stores.requests import Read

_REQUEST_TIMEOUT_S: Final = 5.0
_LATENCY_READS: Final = 50
_MEASUREMENT_TIMEOUT_S: Final = 10.0
"""Seconds for all reads together: as many as were done are enough."""
_PROBE_LOCK: Final = "clustermutex-doctor"
_SLOW_P99_S: Final = 1.0
"""Seconds that one request in a hundred may take, before it is a warning."""

_PERMISSIONS: Final = {
    "create": "to take a lock",
    "get": "to see who has one, and after an answer that was lost",
    "update": "to push",
    "delete": "to release, and to take over what another one left",
    "list": "to see that a lock is free, and for lists",
}
"""What each permission on objects is for; without any one of them no lock is taken, held and given
back. (What is not there is 403 and not 404 to who may not list.)"""


def examine(client: HttpClient, read: Callable[[Read, Deadline], object]) -> Iterator[Finding]:
    """Yield what is found, the basic things first.

    Raises:
        StoreUnavailable, StoreError: the bucket does not answer, or not to us.
    """
    lacking = [permission for permission in _PERMISSIONS if not _has_permission(client, permission)]
    yield Finding("bucket", FINE, f"{client.location.url()} answers.")
    yield from _permission_findings(lacking, client.location.bucket)
    yield from _settings_findings(client)
    yield from _latency_findings(read)


def _ask(client: HttpClient, call: HttpRequest) -> HttpAnswer:
    return client.ask(call, Deadline.after(_REQUEST_TIMEOUT_S))


def _has_permission(client: HttpClient, permission: str) -> bool:
    """Ask whether we have a right, which one needs no right to ask."""
    path = f"/storage/v1/b/{client.location.bucket}/iam/testPermissions"
    call = HttpRequest("GET", path, (200,), query={"permissions": f"storage.objects.{permission}"})
    return bool(_ask(client, call).json().get("permissions"))


def _permission_findings(lacking: Sequence[str], bucket: str) -> Iterator[Finding]:
    if not lacking:
        listed = ", ".join(_PERMISSIONS)
        yield Finding(
            "rights", FINE, f"These credentials may {listed} objects: all that is needed."
        )
    for permission in lacking:
        yield Finding(
            "rights",
            ERROR,
            f"These credentials lack storage.objects.{permission} on the bucket {bucket}, "
            f"which is needed {_PERMISSIONS[permission]}.",
            "Grant them roles/storage.objectUser on the bucket, which has all.",
        )


# ---------------------------------------------------------------- how the bucket is set up

_harm: Final = partial(Finding, "settings", ERROR)
_cost: Final = partial(Finding, "settings", WARNING)
_SETTINGS_FIELDS: Final = "lifecycle,softDeletePolicy,retentionPolicy,defaultEventBasedHold"


def _settings_findings(client: HttpClient) -> Iterator[Finding]:
    bucket = client.location.bucket
    call = HttpRequest("GET", f"/storage/v1/b/{bucket}", (200,), query={"fields": _SETTINGS_FIELDS})
    try:
        settings = _ask(client, call).json()
    except StoreError:
        yield _cost(
            "Whether the bucket has rules that harm locks is unknown: these credentials lack "
            "storage.buckets.get.",
            f"Run this as somebody who has it, or see for yourself: `gcloud storage buckets "
            f"describe gs://{bucket}`.",
        )
        return
    found = list(judged(settings, client.location.root, bucket))
    yield from found
    if not found:
        text = "No lifecycle rule, retention, hold or soft delete that harms locks or costs."
        yield Finding("settings", FINE, text)


def judged(settings: Mapping[str, Any], root: str, bucket: str) -> Iterator[Finding]:
    """Judge a bucket by its settings as the API returns them, for locks below a root."""
    change = f"gcloud storage buckets update gs://{bucket}"
    if settings.get("retentionPolicy") or settings.get("defaultEventBasedHold"):
        yield _harm(
            "The bucket keeps each object for a time (a retention policy, or holds): a lock that "
            "is taken can't be given back before.",
            "Use another bucket: what is kept for a reason is no place for locks.",
        )
    rules = (settings.get("lifecycle") or {}).get("rule") or ()
    if deleting := [rule for rule in rules if may_delete(rule, ObjectNames(root).locks)]:
        yield _harm(
            f"A lifecycle rule deletes locks, even held ones: {_condition_text(deleting[0])}.",
            f"Remove it, or let it match other names only, by matchesPrefix: `{change} "
            "--lifecycle-file=FILE`.",
        )
    kept_s = int((settings.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if kept_s:
        yield _cost(
            f"The bucket keeps what is deleted for {kept_s / 86400:g} days (soft delete): each "
            "lock that was given back is paid for as long. It harms nobody else.",
            f"`{change} --clear-soft-delete`.",
        )


_NONCURRENT_CONDITIONS: Final = {
    "daysSinceNoncurrentTime",
    "noncurrentTimeBefore",
    "numNewerVersions",
}
"""Conditions that only versions meet which something newer has replaced."""


def may_delete(rule: Mapping[str, Any], prefix: str) -> bool:
    """Tell whether a rule may delete what has a name that begins with the prefix."""
    if (rule.get("action") or {}).get("type") != "Delete":
        return False
    condition = rule.get("condition") or {}
    if _NONCURRENT_CONDITIONS & condition.keys() or condition.get("isLive") is False:
        return False
    prefixes = condition.get("matchesPrefix") or [""]
    return any(other.startswith(prefix) or prefix.startswith(other) for other in prefixes)


def _condition_text(rule: Mapping[str, Any]) -> str:
    condition = rule.get("condition") or {}
    text = ", ".join(f"{key} {value}" for key, value in condition.items())
    return text[:200] or "without a condition"


# ---------------------------------------------------------------- how fast it is


def _latency_findings(read: Callable[[Read, Deadline], object]) -> Iterator[Finding]:
    until, seconds = Deadline.after(_MEASUREMENT_TIMEOUT_S), list[float]()
    try:
        while len(seconds) < _LATENCY_READS and (len(seconds) < 2 or not until.expired()):
            before = time.perf_counter()
            read(Read(_PROBE_LOCK), Deadline.after(_REQUEST_TIMEOUT_S))
            seconds.append(time.perf_counter() - before)
    except (StoreUnavailable, StoreError) as error:
        advice = "Run this again when the bucket answers steadily, and to who may read."
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
    yield Finding("latency", level, text, "Use a bucket in the region of those who use the locks.")
