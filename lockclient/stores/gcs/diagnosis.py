"""What a bucket must be like for locks, and how to see that it is; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding
from lockclient.stores.gcs.keys import Names
from lockclient.stores.gcs.listing import MOST, Listing
from lockclient.stores.gcs.wire.http_client import FIRST_TRY, HttpAnswer, HttpClient, HttpRequest
from lockclient.stores.requests import Read, RequestState

_PATIENCE: Final = 5.0
"""Seconds for an answer."""
_READS: Final = 50
_MEASURING: Final = 10.0
"""Seconds for all of them together: so many as were done are enough."""
_NOBODY_S: Final = "clustermutex-doctor"
_SLOW: Final = 1.0
"""Seconds that one request in a hundred may take, before it is a warning."""

_RIGHTS: Final = {
    "create": "to take a lock",
    "get": "to see who has one, and after an answer that was lost",
    "update": "to push",
    "delete": "to release, and to take over what another one left",
    "list": "to be told that nobody has a lock, and for lists",
}
"""What each permission on objects is for; without any one of them no lock is taken, held and given
back. (What is not there is 403 and not 404 to who may not list.)"""


def examine(
    calls: HttpClient, look: Callable[[Read, Deadline], object], listing: Listing
) -> Iterator[Finding]:
    """Yield what is found, the basic things first.

    Args:
        calls: the way to the bucket.
        look: reads a lock.
        listing: reads all of them.

    Raises:
        StoreUnavailable, StoreError: the bucket does not answer, or not to us.
    """
    lacking = [right for right in _RIGHTS if not _has(calls, right)]
    yield Finding("bucket", FINE, f"{calls.place.url()} answers.")
    yield from _rights(lacking, calls.place.bucket)
    yield from _settings(calls)
    if "list" not in lacking:
        yield from _size(listing)
    yield from _latency(look)


def _size(listing: Listing) -> Iterator[Finding]:
    try:
        found = listing.count(Deadline.after(_MEASURING))
    except StoreError as error:
        yield Finding("objects", WARNING, str(error), "Run this again when the bucket answers.")
        return
    if found <= MOST // 2:
        return
    yield Finding(
        "objects",
        ERROR if found >= MOST else WARNING,
        f"Each look at all locks reads {found:,} objects{' at least' if found >= MOST else ''}, of "
        f"{MOST:,} at most: with more no lock is shown or auto-unlocked.",
        "Delete what is no lock, and give the locks a prefix of their own, or several prefixes.",
    )


def _ask(calls: HttpClient, call: HttpRequest) -> HttpAnswer:
    return calls.ask(call, Deadline.after(_PATIENCE), RequestState(Read(_NOBODY_S)))


def _has(calls: HttpClient, right: str) -> bool:
    """Ask whether we have a right, which one needs no right to ask."""
    path = f"/storage/v1/b/{calls.place.bucket}/iam/testPermissions"
    call = HttpRequest("GET", path, (200,), query={"permissions": f"storage.objects.{right}"})
    return bool(_ask(calls, call).said().get("permissions"))


def _rights(lacking: Sequence[str], bucket: str) -> Iterator[Finding]:
    if not lacking:
        listed = ", ".join(_RIGHTS)
        yield Finding(
            "rights", FINE, f"These credentials may {listed} objects: all that is needed."
        )
    for right in lacking:
        yield Finding(
            "rights",
            ERROR,
            f"These credentials lack storage.objects.{right} on the bucket {bucket}, "
            f"which is needed {_RIGHTS[right]}.",
            "Grant them roles/storage.objectUser on the bucket, which has all.",
        )


# ---------------------------------------------------------------- how the bucket is set up

_FIELDS: Final = (
    "lifecycle,versioning,softDeletePolicy,retentionPolicy,defaultEventBasedHold,"
    "storageClass,billing,iamConfiguration"
)


def _settings(calls: HttpClient) -> Iterator[Finding]:
    bucket = calls.place.bucket
    call = HttpRequest("GET", f"/storage/v1/b/{bucket}", (200,), query={"fields": _FIELDS})
    try:
        said = _ask(calls, call).said()
    except StoreError:
        yield Finding(
            "settings",
            WARNING,
            "Whether the bucket has rules that harm locks can't be told: these credentials lack "
            "storage.buckets.get.",
            f"Run this as somebody who has it, or see for yourself: `gcloud storage buckets "
            f"describe gs://{bucket}`.",
        )
        return
    found = list(judged(said, calls.place.root, bucket))
    yield from found
    if not found:
        text = "No lifecycle rule, retention, versioning or soft delete that harms locks or costs."
        yield Finding("settings", FINE, text)


def judged(said: Mapping[str, Any], root: str, bucket: str) -> Iterator[Finding]:
    """Judge a bucket by what the API says of it, for locks below a root."""
    change = f"gcloud storage buckets update gs://{bucket}"
    if said.get("retentionPolicy") or said.get("defaultEventBasedHold"):
        yield Finding(
            "settings",
            ERROR,
            "The bucket keeps each object for a time (a retention policy, or holds): a lock that "
            "is taken can't be given back before.",
            "Use another bucket: what is kept for a reason is no place for locks.",
        )
    names = Names(root)
    if rules := [each for each in _rules(said) if deletes(each, names.locks)]:
        yield Finding(
            "settings",
            ERROR,
            f"A lifecycle rule deletes locks, whoever has them: {_condition(rules[0])}.",
            f"Take it away, or let it match other names only, by matchesPrefix: `{change} "
            "--lifecycle-file=FILE`.",
        )
    if (said.get("versioning") or {}).get("enabled"):
        yield Finding(
            "settings",
            WARNING,
            "The bucket keeps old versions (object versioning): all locks that ever were are kept "
            "and paid for. They harm nobody else.",
            f"`{change} --no-versioning`.",
        )
    kept = int((said.get("softDeletePolicy") or {}).get("retentionDurationSeconds") or 0)
    if kept:
        yield Finding(
            "settings",
            WARNING,
            f"The bucket keeps what is deleted for {kept / 86400:g} days (soft delete): each lock "
            "that was given back is paid for as long. It harms nobody else.",
            f"`{change} --clear-soft-delete`.",
        )
    kind = said.get("storageClass", "STANDARD")
    if kind not in ("STANDARD", "MULTI_REGIONAL", "REGIONAL"):
        yield Finding(
            "settings",
            WARNING,
            f"The bucket's storage class is {kind}: an object that is deleted early is paid for as "
            "if it had stood there for a month or more, and locks are.",
            f"`{change} --default-storage-class=STANDARD`.",
        )
    if (said.get("billing") or {}).get("requesterPays"):
        yield Finding(
            "settings",
            ERROR,
            "Who asks the bucket must say who pays (requester pays), and no request of ours does.",
            f"`{change} --no-requester-pays`.",
        )


def _rules(said: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (said.get("lifecycle") or {}).get("rule") or ()


_OLD_ONES: Final = {"daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions"}
"""Conditions that only versions meet which something newer has replaced."""


def deletes(rule: Mapping[str, Any], prefix: str) -> bool:
    """Tell whether a rule may delete what has a name that begins with the prefix."""
    if (rule.get("action") or {}).get("type") != "Delete":
        return False
    condition = rule.get("condition") or {}
    if _OLD_ONES & condition.keys() or condition.get("isLive") is False:
        return False
    prefixes = condition.get("matchesPrefix") or [""]
    return any(each.startswith(prefix) or prefix.startswith(each) for each in prefixes)


def _condition(rule: Mapping[str, Any]) -> str:
    said = rule.get("condition") or {}
    return ", ".join(f"{key} {value}" for key, value in said.items())[:200] or "without a condition"


# ---------------------------------------------------------------- how fast it is


def _latency(look: Callable[[Read, Deadline], object]) -> Iterator[Finding]:
    until, seconds = Deadline.after(_MEASURING), list[float]()
    try:
        while len(seconds) < _READS and (len(seconds) < 2 or not until.expired()):
            before = time.perf_counter()
            look(Read(_NOBODY_S), Deadline.after(_PATIENCE))
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
    if most <= _SLOW:
        yield Finding("latency", FINE, text)
        return
    level = ERROR if most > FIRST_TRY else WARNING
    yield Finding("latency", level, text, "Use a bucket in the region of those who use the locks.")
