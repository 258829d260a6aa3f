"""Statuses and errors of a bucket: which can be retried, and which exceptions they become."""

from __future__ import annotations

import re
from typing import Final

from google.auth import exceptions as auth
from requests import ConnectTimeout, ReadTimeout
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
)

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.stores.common.network_errors import ADVICE, Cause, Reason, chain
from lockclient.stores.gcs.wire.http_session import HttpAnswer

Unanswered = (HTTPError, auth.TransportError, OSError)
"""Exceptions of a try without an answer; those of `requests` are OSErrors."""

TOO_MANY_REQUESTS = 429
"""Too many requests, or more than one write a second to an object: it was not done."""
RETRYABLE_STATUSES = (TOO_MANY_REQUESTS, 408, 500, 502, 503, 504)
"""Statuses after which a request is sent again. After all but the first it is unknown whether it
was done, or will be."""
_CONFLICT: Final = 409
"""Another client changed the object at the same time. Google documents a retry, and not whether
the request was done. So only a write that names a version is retried: the second one fails."""


def effective_status(answer: HttpAnswer) -> int:
    """Return the status; an older form of 429 is a 403."""
    if answer.status == 403 and b"ateLimitExceeded" in answer.body:  # (user)rateLimitExceeded
        return TOO_MANY_REQUESTS
    return answer.status


def is_retryable(status: Exception | int, *, guarded: bool) -> bool:
    """Return whether a request is sent again; `guarded`: it is a write that names a version."""
    return status in RETRYABLE_STATUSES or (guarded and status == _CONFLICT)


def may_have_happened(error: Exception | int) -> bool:
    """Return whether a request that failed like this may have been done, or may still arrive."""
    if isinstance(error, int):
        return error != TOO_MANY_REQUESTS
    # Without a token or a connection nothing was sent; see `_Connection.connect`. A ProxyError
    # proves nothing: urllib3 raises it, too, if a proxy loses an answer.
    unsent = (auth.GoogleAuthError, NewConnectionError, ConnectTimeoutError)
    return not any(isinstance(cause, unsent) for cause in chain(error))


def cause_of(error: Exception | int, answer: HttpAnswer | None = None) -> Cause:
    """Return why a try was not answered."""
    if answer is not None:
        reason = Reason.BUSY if error == TOO_MANY_REQUESTS else None
        return Cause(reason, f"HTTP status {error}: {_message(answer)}")
    assert isinstance(error, Exception), "a status has an answer"
    if isinstance(error, ReadTimeout | ReadTimeoutError):
        return Cause.of(Reason.NO_ANSWER)
    if isinstance(error, ConnectTimeout):
        return Cause.of(Reason.NO_CONNECTION)
    return Cause.of_error(error)


def _message(answer: HttpAnswer) -> str:
    """Return Google's own text."""
    error = answer.json.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str):
        message = answer.body[:200].decode(errors="replace")
    return " ".join(message.split())[:500] or "no reason was given"


def is_bucket_missing(answer: HttpAnswer) -> bool:
    """Return whether the bucket was not found, and not an object in it."""
    return answer.status == 404 and "bucket does not exist" in _message(answer)


def is_failed_precondition(answer: HttpAnswer, *, guarded: bool) -> bool:
    """Return whether a 412 means that the object has another version than a guarded write names.

    A policy of the organization causes a 412 with another reason; emulators give no reason.
    """
    has_reason = re.search(rb'"reason"\s*:\s*"[^"]', answer.body) is not None
    by_condition = b"conditionNotMet" in answer.body or not has_reason
    return answer.status == 412 and guarded and by_condition


_ADVICE: Final = (
    ("billing|to be billed", "See to the billing of the bucket's project."),
    (
        "requester pays|user project",
        "Let its owner pay: `gcloud storage buckets update --no-requester-pays`.",
    ),
    (
        "retention policy|[Hh]old",
        "Use a bucket without retention and holds for locks.",
    ),
)
"""Advice by Google's own words, for statuses with several meanings."""
_ADVICE_BY_STATUS: Final = {
    404: "Create the bucket, or correct its name.",
    412: "Change that policy, or use a bucket that it does not cover.",
    401: "The credentials are not accepted: see GOOGLE_APPLICATION_CREDENTIALS.",
    403: "Each user of locks needs storage.objects.create, get, list, update and delete on the "
    "bucket: the role roles/storage.objectUser has them.",
}


_NETWORK_ADVICE: Final = {
    **ADVICE,
    Reason.BUSY: "Count the programs that use it, and those that want, or write to, that lock.",
    Reason.FILES: "REQUESTS_CA_BUNDLE must be a PEM file that can be read.",
    Reason.UNTRUSTED: "REQUESTS_CA_BUNDLE must name the authority of the server that answers for "
    "Google: a proxy, or an endpoint of your own.",
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
        f"In the bucket {bucket} the object {name} is neither a lock nor a tombstone: it is "
        "somebody else's, and is left alone. Give the locks a prefix of their own "
        "(gs://bucket/prefix), or delete it if nobody needs it."
    )


def listing_too_large(bucket: str, prefix: str, objects: int, size: int) -> StoreError:
    """Return the exception for a listing that is too large to be read."""
    return StoreError(
        f"In the bucket {bucket} more than {objects:,} objects have a name that begins with "
        f"{prefix!r}, or their metadata more than {size >> 20} MiB. That is not read: until there "
        "is less, no lock is shown or auto-unlocked. List them (gcloud storage ls "
        f"'gs://{bucket}/{prefix}**'), delete those that nobody needs, and give the locks a prefix "
        "of their own."
    )


def stale_listing(bucket: str, name: str) -> StoreUnavailable:
    """Return the exception for a listing without the announcement that we wrote before it."""
    return StoreUnavailable(
        f"A listing of the bucket {bucket} has no {name}, or an old one, though this announcement "
        "was written before the listing was requested: a cache or a proxy answers in place of "
        "Google, or somebody deletes announcements. The listing is not used.",
        unknown=False,
    )


def no_credentials(bucket: str, error: Exception) -> StoreError:
    """Return the exception for a program without credentials, or with refused ones."""
    message = error.args[0] if error.args else error  # the second argument is the answer
    text = " ".join(str(message).split())[:300].rstrip(".")
    return StoreError(
        f"The bucket {bucket} could not be asked, for want of credentials: {text}. Set "
        "GOOGLE_APPLICATION_CREDENTIALS to a service account's file, or run `gcloud auth "
        "application-default login`, or run on a machine or pod with a service account."
    )


def unavailable(bucket: str, last: Cause, *, unknown: bool) -> StoreUnavailable:
    """Return the exception for a bucket that did not answer in time; `last`: the last try."""
    busy = last.reason is Reason.BUSY
    does = "asks us to slow down" if busy else "did not answer in time"
    advice = _NETWORK_ADVICE.get(last.reason, "Check the network and its proxy.")
    text = f"The bucket {bucket} {does} ({last.text.rstrip('.')}). {advice}"
    return StoreUnavailable(text, unknown=unknown, busy=busy)
