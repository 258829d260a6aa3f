"""HTTP client of one bucket: sends each request until it is answered, or its deadline has passed.

The session below repeats nothing. The client alone retries, and notes in the `Delivery` what is
unknown afterwards. A request that was answered with 401 was not done: it is sent again, with
another access token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from urllib3 import Timeout

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.fields import json_object
from lockclient.stores.common.network_errors import Cause, Reason, no_descriptors
from lockclient.stores.common.store_lifecycle import closed
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.location import GcsLocation, emulator
from lockclient.stores.gcs.wire.access_tokens import AccessToken, AccessTokens
from lockclient.stores.gcs.wire.http_session import HttpAnswer, session_with_deadlines
from lockclient.stores.request_types import Delivery
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_GOOGLE_URL = "https://storage.googleapis.com"

FIRST_TRY_TIMEOUT_S = 2.0
"""Seconds of the first try; each later one has twice as long, up to `MAX_TRY_TIMEOUT_S`."""
MAX_TRY_TIMEOUT_S = 8.0
_RETRY_PAUSES_S: Final = (0.1, 0.2, 2.0)
"""Seconds between two tries; an object takes one write a second."""
MAX_ANSWER_BYTES = 1 << 20
MAX_PAGE_BYTES = 32 << 20
"""Bytes of an answer; of a page of a thousand objects with 8 KiB of metadata each."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request to the bucket.

    Attributes:
        path: behind the host.
        expected: the statuses that answer it; any other is an error.
        truncate_at: bytes of the answer that are read; 0: more than `max_bytes` are an error.
        once: it is not sent again if it may have been done, or may still arrive.
    """

    method: str
    path: str
    expected: tuple[int, ...]
    query: Mapping[str, str | list[str]] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = ""
    truncate_at: int = 0
    max_bytes: int = MAX_ANSWER_BYTES
    once: bool = False

    @property
    def guarded(self) -> bool:
        """True for a write that names the version that it changes."""
        return "ifGenerationMatch" in self.query


class HttpClient:
    """HTTP client of one bucket; safe to share between threads.

    Args:
        location: of the bucket.
        credentials: see `AccessTokens`; an emulator gets none, the location's own endpoint does.
    """

    def __init__(self, location: GcsLocation, credentials: Credentials | str | None = None) -> None:
        self.location = location
        self.closed = False
        emulator_url = None if location.endpoint else emulator()
        self._url = location.endpoint or emulator_url or _GOOGLE_URL
        self._session = session_with_deadlines()
        if location.endpoint.startswith("http:"):
            self._session.trust_env = False  # no proxy sees the credentials
        self._tokens: AccessTokens | None = None
        if emulator_url is None:
            self._tokens = AccessTokens(credentials)
        self._clock: tuple[float, float] | None = None
        self._outage: tuple[float, bool] | None = None

    def ask(
        self, call: HttpRequest, deadline: Deadline, delivery: Delivery | None = None
    ) -> HttpAnswer:
        """Return the answer, and note in `delivery` what is unknown.

        Raises:
            StoreUnavailable: there was no answer by the deadline.
            StoreError: the bucket refuses, for a reason that trying again won't change.
            StoreClosed: the connections are closed.
        """
        delivery = delivery or Delivery()
        pauses, max_timeout_s = Backoff(*_RETRY_PAUSES_S), FIRST_TRY_TIMEOUT_S
        last, renewed = Cause(None, "the time was up before it was asked"), False
        while self._time_left(deadline, delivery):
            answer: HttpAnswer | None = None
            timeout = max_timeout_s
            try:
                token = None if self._tokens is None else self._tokens.current(deadline)
                # This thread sets `in_flight`, then reads `is_given_up`. A caller that gives up
                # sets `is_given_up`, then reads `in_flight`. So at least one sees the other.
                delivery.in_flight = True
                if not (left := self._time_left(deadline, delivery)):
                    break
                timeout = min(left, max_timeout_s)
                answer, failure = self._try_once(call, token, timeout)
            except errors.Unanswered as error:
                failure = error
            except auth.GoogleAuthError as error:  # of a token, so that nothing was sent
                delivery.in_flight = False
                raise errors.no_credentials(self.location.bucket, error) from error
            if answer is not None and not errors.is_retryable(failure, guarded=call.guarded):
                self._log_outage(None)
                if failure != 401 or renewed or self._tokens is None or token is None:
                    return self._check(call, answer, delivery)
                renewed = True  # it may have expired on the way; the next one is the last
                self._tokens.reject(token)
                continue
            delivery.in_flight = False
            # A request that only reads changes nothing, however late.
            delivery.is_unknown |= call.method != "GET" and errors.may_have_happened(failure)
            cause = errors.cause_of(failure, answer)
            if cause.reason is Reason.NO_DESCRIPTORS:
                raise no_descriptors(self.location.url(), unknown=delivery.is_unknown)
            # After a 429 the bucket is reachable, though the last try may be too short to show it.
            is_short = timeout < max_timeout_s and cause.reason is Reason.NO_ANSWER
            if not (is_short and last.reason is Reason.BUSY):
                last = cause
            if last.reason is not Reason.BUSY:
                self._log_outage(last)
            if call.once and delivery.is_unknown:
                break
            max_timeout_s = min(2 * max_timeout_s, MAX_TRY_TIMEOUT_S)
            time.sleep(min(pauses.next(), deadline.remaining()))
        delivery.in_flight = False
        raise self._unanswered(last, unknown=delivery.is_unknown)

    def _time_left(self, deadline: Deadline, delivery: Delivery) -> float:
        """Return the seconds for further tries; 0: none is to begin."""
        return 0.0 if self.closed or delivery.is_given_up else deadline.remaining()

    def _unanswered(self, last: Cause, *, unknown: bool) -> ClusterMutexError:
        if self.closed:
            return closed(self.location, unknown=unknown)
        if last.reason is Reason.BUSY:  # until the deadline: no short pause
            self._log_outage(last)
        return errors.unavailable(self.location.bucket, last, unknown=unknown)

    def _check(self, call: HttpRequest, answer: HttpAnswer, delivery: Delivery) -> HttpAnswer:
        if answer.status == 412:
            is_expected = errors.is_failed_precondition(answer, guarded=call.guarded)
        else:
            is_expected = answer.status in call.expected and not errors.is_bucket_missing(answer)
        if is_expected:
            return answer
        delivery.in_flight = False
        refusal = errors.refusal(answer, self.location.bucket)
        refusal.unknown = delivery.is_unknown
        raise refusal

    def _try_once(
        self, call: HttpRequest, token: AccessToken | None, timeout: float
    ) -> tuple[HttpAnswer | None, Exception | int]:
        """Send it once; return the answer and its status, or None and why it is no answer."""
        headers = {} if token is None else dict(token.headers)
        if call.content_type:
            headers["Content-Type"] = call.content_type
        response = self._session.request(
            call.method,
            f"{self._url}{call.path}",
            params=dict(call.query),
            data=call.body or None,
            headers=headers,
            timeout=cast(Any, Timeout(total=timeout)),  # requests passes it on
            allow_redirects=False,
            stream=True,
        )
        with response:
            body = bytearray()
            while piece := response.raw.read1(1 << 16, decode_content=True):
                body += piece
                if call.truncate_at and len(body) >= call.truncate_at:
                    del body[call.truncate_at :]
                    break
                if len(body) > call.max_bytes:
                    raise OSError(f"the answer has more than {call.max_bytes} bytes")
        json = json_object(bytes(body))
        answer = HttpAnswer(response.status_code, bytes(body), json or {})
        # A deletion has no content, and an emulator's 404 may have no JSON.
        has_json = {200: call.method != "DELETE", 404: self._tokens is not None}
        if json is None and has_json.get(answer.status, False) and not call.truncate_at:
            # A page of a proxy or load balancer: the bucket has not answered.
            return None, ValueError("the answer is no JSON")
        if answer.status in call.expected:  # else a proxy may have answered, by its own clock
            with suppress(ValueError, TypeError):  # without a time
                wall = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
                self._clock = wall, monotonic()
        return answer, errors.effective_status(answer)

    def now(self) -> float:
        """Return the bucket's wall-clock time, to a second or two; 0 before its first answer."""
        clock = self._clock
        return 0.0 if clock is None else clock[0] + monotonic() - clock[1]

    def _log_outage(self, trouble: Cause | None) -> None:
        """Log the begin and the end of an outage, or of a pause for a busy bucket, once each."""
        down = self._outage
        if (trouble is None) == (down is None):
            return
        self._outage = None if trouble is None else (monotonic(), trouble.reason is Reason.BUSY)
        where = self.location.url()
        if down is not None:
            does = "takes requests" if down[1] else "answers"
            log.warning("%s %s again after %.1f s.", where, does, monotonic() - down[0])
        elif trouble is not None:
            does = "asks us to slow down" if trouble.reason is Reason.BUSY else "does not answer"
            log.warning("%s %s (%s); retrying.", where, does, trouble.text)

    def close(self) -> None:
        """Close the connections; requests in flight and later ones end with `StoreClosed`."""
        self.closed = True
        if self._tokens is not None:
            self._tokens.close()
        self._session.close()
