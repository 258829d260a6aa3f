"""Maps the bucket's statuses and errors to our exceptions, and tells which can be retried."""

from __future__ import annotations

import re
from typing import Any, Final

import requests
import urllib3
from google.auth import exceptions as auth
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.fields import json_object
from lockclient.stores.common.network_errors import ADVICE, Cause, Reason, chain
from lockclient.stores.gcs.wire.http_session import HttpAnswer

Unanswered = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    auth.TransportError,
    OSError,
)
"""Exceptions of a try that nobody has answered."""

TOO_MANY_REQUESTS = 429
"""Too many requests, or more than one write a second to an object: a pause, and nothing else."""
RETRYABLE_STATUSES = (TOO_MANY_REQUESTS, 408, 500, 502, 503, 504)
"""Statuses that are no answer, so that the request is sent again: all but the first do not tell
whether it was done, or will be."""
_CONFLICT: Final = 409
"""Somebody else has changed the object at the same time. Google wants it tried again, and does not
say that it was never done: so it is taken as 503 is, and only where the write names the version
that it changes, so that it does nothing the second time."""


def effective_status(answer: HttpAnswer) -> int:
    """Return the status that is meant: "too many requests" has an older form, of a refusal."""
    if answer.status == 403 and b"ateLimitExceeded" in answer.body:  # (user)rateLimitExceeded
        return TOO_MANY_REQUESTS
    return answer.status


def is_retryable(status: Exception | int, *, guarded: bool) -> bool:
    """Tell whether a status is no answer; `guarded`: of a write that names a version."""
    return status in RETRYABLE_STATUSES or (guarded and status == _CONFLICT)


def may_have_happened(error: Exception | int) -> bool:
    """Tell whether what failed like this may have been done, or may arrive yet."""
    if isinstance(error, int):
        return error != TOO_MANY_REQUESTS
    return not any(map(_is_unsent, chain(error)))


def _is_unsent(error: BaseException) -> bool:
    """Tell whether this came before a request was sent: no token, or no connection.

    (All that goes wrong before there is one, tunnel and TLS too, is such an error: `http_session`.)
    A proxy's error in general tells nothing: urllib3 calls an answer that was lost by one the same.
    """
    return isinstance(error, auth.GoogleAuthError | NewConnectionError | ConnectTimeoutError)


def cause_of(error: Exception | int, answer: HttpAnswer | None = None) -> Cause:
    """Return why a try was not answered."""
    if answer is not None:
        reason = Reason.BUSY if error == TOO_MANY_REQUESTS else None
        return Cause(reason, f"HTTP status {error}: {_message(answer)}")
    assert isinstance(error, Exception), "a status has an answer"
    if isinstance(error, requests.ReadTimeout | ReadTimeoutError):
        return Cause.of(Reason.NO_ANSWER)
    if isinstance(error, requests.ConnectTimeout):
        return Cause.of(Reason.NO_CONNECTION)
    return Cause.of_error(error)


def _error(answer: HttpAnswer) -> dict[str, Any]:
    error = (json_object(answer.body) or {}).get("error")
    return error if isinstance(error, dict) else {}


def _message(answer: HttpAnswer) -> str:
    """Return Google's own sentence."""
    message = _error(answer).get("message")
    if not isinstance(message, str):
        message = answer.body[:200].decode(errors="replace")
    return " ".join(message.split())[:500] or "no reason was given"


def is_bucket_missing(answer: HttpAnswer) -> bool:
    """Tell whether it is the bucket that was not found, and not an object in it."""
    return answer.status == 404 and "bucket does not exist" in _message(answer)


def is_failed_precondition(answer: HttpAnswer, *, guarded: bool) -> bool:
    """Tell whether a 412 says that the object has another version than a guarded write names.

    A policy of the organization is a 412 as well, with another reason; emulators give no reason.
    """
    reports = _error(answer).get("errors")
    reasons = [
        report.get("reason")
        for report in (reports if isinstance(reports, list) else ())
        if isinstance(report, dict)
    ]
    return answer.status == 412 and guarded and (not any(reasons) or "conditionNotMet" in reasons)


_ADVICE: Final = (
    ("billing|to be billed", "See to the billing of the bucket's project."),
    (
        "requester pays|user project",
        "Let its owner pay: `gcloud storage buckets update --no-requester-pays`.",
    ),
    (
        "retention policy|[Hh]old",
        "What is kept for a reason is no place for locks: take a bucket without retention and "
        "holds.",
    ),
)
"""What to do by Google's own words, where the status says too little."""
_ADVICE_BY_STATUS: Final = {
    404: "Create the bucket, or correct its name.",
    412: "See to that policy, or take a bucket that it allows locks in.",
    401: "The credentials are not accepted: see GOOGLE_APPLICATION_CREDENTIALS.",
    403: "Whoever uses locks needs storage.objects.create, get, list, update and delete on the "
    "bucket: the role roles/storage.objectUser has them.",
}


_NETWORK_ADVICE: Final = {
    **ADVICE,
    Reason.BUSY: "See how many programs use it, and how many want, or write to, that lock.",
    Reason.FILES: "REQUESTS_CA_BUNDLE must be a PEM file that can be read.",
    Reason.UNTRUSTED: "REQUESTS_CA_BUNDLE must name the authority of what answers for Google: a "
    "proxy, or an endpoint of your own.",
}


def refusal(answer: HttpAnswer, bucket: str) -> StoreError:
    """Return the exception for a status that trying again won't change."""
    message = _message(answer)
    by_status = _ADVICE_BY_STATUS.get(
        answer.status, "This answer is unexpected, and the request was not repeated."
    )
    advice = next((text for pattern, text in _ADVICE if re.search(pattern, message)), by_status)
    return StoreError(
        f"The bucket {bucket} refused the request (HTTP status {answer.status}): "
        f"{message.rstrip('.')}. {advice}"
    )


def foreign_object(bucket: str, name: str) -> StoreError:
    """Return the exception for an object under a lock's name that is not ours."""
    return StoreError(
        f"In the bucket {bucket} stands an object {name} that is neither a lock nor what one "
        "leaves: it is somebody else's, and is left alone. Give the locks a prefix of their own "
        "(gs://bucket/prefix), or delete it if nobody needs it."
    )


def listing_too_large(bucket: str, prefix: str, objects: int, size: int) -> StoreError:
    """Return the exception for a listing that is not read to its end."""
    return StoreError(
        f"In the bucket {bucket} more than {objects:,} objects have a name that begins with "
        f"{prefix!r}, or they say more than {size >> 20} MiB: so much is not read, and until there "
        "is less no lock is shown or auto-unlocked. Look what it is (gcloud storage ls "
        f"'gs://{bucket}/{prefix}**'), delete what nobody needs, and give the locks a prefix of "
        "their own."
    )


def stale_listing(bucket: str, name: str) -> StoreUnavailable:
    """Return the exception for a listing without the announcement that we wrote before it."""
    return StoreUnavailable(
        f"A listing of the bucket {bucket} has no {name}, or an old one, though this heartbeat "
        "was written before it was asked for: something between here and Google answers from "
        "memory, or for another bucket, or somebody deletes heartbeats. What it says of locks "
        "is not believed.",
        unknown=False,
    )


def no_credentials(bucket: str, error: Exception) -> StoreError:
    """Return the exception for a program that is nobody, or that Google does not let in."""
    message = error.args[0] if error.args else error  # behind it comes the same as JSON
    text = " ".join(str(message).split())[:300].rstrip(".")
    return StoreError(
        f"The bucket {bucket} could not be asked, for want of credentials: {text}. Set "
        "GOOGLE_APPLICATION_CREDENTIALS to a service account's file, or run `gcloud auth "
        "application-default login`, or run on a machine or pod with a service account."
    )


def unavailable(bucket: str, last: Cause, *, unknown: bool) -> StoreUnavailable:
    """Return the exception for a bucket that did not answer in time, for the last try's reason."""
    busy = last.reason is Reason.BUSY
    does = "asks us to slow down" if busy else "did not answer in time"
    advice = _NETWORK_ADVICE.get(last.reason, "Check the network and its proxy.")
    text = f"The bucket {bucket} {does} ({last.text.rstrip('.')}). {advice}"
    return StoreUnavailable(text, unknown=unknown, busy=busy)
