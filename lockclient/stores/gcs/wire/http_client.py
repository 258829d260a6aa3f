"""HTTP client of one bucket: retries each request until it is answered or the time is up.

The JSON API by a session that repeats nothing. All repeating is done here, where it is noted in
the `Delivery` what is not known afterwards. What was answered with 401 was not done: it is sent
once more, with another access token.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import requests
from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from urllib3 import Timeout

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.fields import json_object
from lockclient.stores.common.lifecycle import closed
from lockclient.stores.common.network_errors import Cause, Reason, no_descriptors
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.location import GcsLocation, emulator
from lockclient.stores.gcs.wire.access_tokens import AccessToken, AccessTokens
from lockclient.stores.gcs.wire.http_session import HttpAnswer, session_with_deadlines
from lockclient.stores.requests import Delivery
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

_GOOGLE_URL = "https://storage.googleapis.com"

FIRST_TRY_TIMEOUT_S = 2.0
"""Seconds that the first try may take; each later one may take twice as long."""
MAX_TRY_TIMEOUT_S = 8.0
_RETRY_PAUSES_S: Final = (0.1, 0.2, 2.0)
"""Seconds between two tries; an object takes one write a second."""
MAX_ANSWER_BYTES = 1 << 20
MAX_PAGE_BYTES = 32 << 20
"""Bytes of an answer, and of a page of a thousand objects with 8 KiB of metadata each."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: its method, its path behind the host, and which statuses are answers to it.

    With `truncate_at` no more than so many bytes of the answer are read; else one of more than
    `max_bytes` is an error. One that is to be sent `once` is not sent again where it may have been
    done, or may arrive yet.
    """

    method: str
    path: str
    expected: tuple[int, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = ""
    truncate_at: int = 0
    max_bytes: int = MAX_ANSWER_BYTES
    once: bool = False

    @property
    def guarded(self) -> bool:
        """True for a write that compares the version that it changes."""
        return "ifGenerationMatch" in self.query


class HttpClient:
    """HTTP client of one bucket; safe to share between threads.

    Args:
        location: which one.
        credentials: see `AccessTokens`; an emulator is asked without any, and an endpoint of the
            location's own with them.
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

    # ------------------------------------------------------------ asking

    def ask(
        self, call: HttpRequest, deadline: Deadline, delivery: Delivery | None = None
    ) -> HttpAnswer:
        """Return the answer; what is not known of it is noted in `delivery`.

        Raises:
            StoreUnavailable: nobody answered by the deadline.
            StoreError: it refuses, for a reason that trying again won't cure.
            StoreClosed: the connections are closed.
        """
        delivery = delivery or Delivery()
        pauses, max_timeout_s = Backoff(*_RETRY_PAUSES_S), FIRST_TRY_TIMEOUT_S
        last, renewed = Cause(None, "the time was up before it was asked"), False
        timeout = max_timeout_s
        while True:
            if not self._time_left(deadline, delivery):
                delivery.in_flight = False  # whoever has handed it over may have said otherwise
                raise self._unanswered(last, unknown=delivery.ambiguous)
            answer: HttpAnswer | None = None
            try:
                token = None if self._tokens is None else self._tokens.current(deadline)
                # In this order: who abandons it says so first, and then looks whether it is sent.
                delivery.in_flight = True
                if not (timeout := min(self._time_left(deadline, delivery), max_timeout_s)):
                    continue
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
            # What only reads does nothing, however late.
            delivery.ambiguous |= call.method != "GET" and errors.may_have_happened(failure)
            cause = errors.cause_of(failure, answer)
            if cause.reason is Reason.NO_DESCRIPTORS:
                raise no_descriptors(self.location.url(), unknown=delivery.ambiguous)
            # It is there after a 429, though a later try may have too little time to hear so.
            is_short = timeout < max_timeout_s and cause.reason is Reason.NO_ANSWER
            if not (is_short and last.reason is Reason.BUSY):
                last = cause
            if last.reason is not Reason.BUSY:
                self._log_outage(last)
            if call.once and delivery.ambiguous:
                raise self._unanswered(last, unknown=True)
            max_timeout_s = min(2 * max_timeout_s, MAX_TRY_TIMEOUT_S)
            time.sleep(min(pauses.next(), deadline.remaining()))

    def _time_left(self, deadline: Deadline, delivery: Delivery) -> float:
        """Return the seconds for further tries; 0: there is to be none."""
        return 0.0 if self.closed or delivery.abandoned else deadline.remaining()

    def _unanswered(self, last: Cause, *, unknown: bool) -> ClusterMutexError:
        """Return the exception for a request of which no try was answered."""
        if self.closed:
            return closed(self.location, unknown=unknown)
        if last.reason is Reason.BUSY:  # all the time: by now that is news
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
        refusal.unknown = delivery.ambiguous
        raise refusal

    def _try_once(
        self, call: HttpRequest, token: AccessToken | None, timeout: float
    ) -> tuple[HttpAnswer | None, Exception | int]:
        """Make one try, of so many seconds; return what was answered, and what that means."""
        headers = {} if token is None else dict(token.headers)
        if call.content_type:
            headers["Content-Type"] = call.content_type
        response = self._session.request(
            call.method,
            f"{self._url}{call.path}",
            params=dict(call.query),
            data=call.body or None,
            headers=headers,
            timeout=cast(Any, Timeout(total=timeout)),  # which requests hands on
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
                    raise requests.ReadTimeout("The answer is too long.")
        answer = HttpAnswer(response.status_code, bytes(body))
        # A deletion has no content, and what an emulator says of a missing object may be no JSON.
        has_json = {200: call.method != "DELETE", 404: self._tokens is not None}
        is_checked = has_json.get(answer.status, False) and not call.truncate_at
        if is_checked and json_object(answer.body) is None:
            # A proxy's or load balancer's page: the bucket has not answered.
            return None, ValueError("what was answered is no JSON")
        if answer.status in call.expected:  # else it may be a page, by another clock
            with suppress(ValueError, TypeError):  # it tells no time
                wall = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
                self._clock = wall, monotonic()
        return answer, errors.effective_status(answer)

    # ------------------------------------------------------------ the bucket's clock

    def now(self) -> float:
        """Return the bucket's wall-clock time, to a second or two; 0 before its first answer."""
        clock = self._clock
        return 0.0 if clock is None else clock[0] + monotonic() - clock[1]

    def _log_outage(self, trouble: Cause | None) -> None:
        """Log the begin and the end of an outage, or of a pause that it asks for, once each."""
        down, where = self._outage, self.location.url()
        if (trouble is None) == (down is None):
            return
        self._outage = None if trouble is None else (monotonic(), trouble.reason is Reason.BUSY)
        if down is not None:
            does = "takes requests" if down[1] else "answers"
            log.warning("%s %s again after %.1f s.", where, does, monotonic() - down[0])
        elif trouble is not None:
            does = "asks us to slow down" if trouble.reason is Reason.BUSY else "does not answer"
            log.warning("%s %s (%s); retrying.", where, does, trouble.text)

    def close(self) -> None:
        """Close the connections; requests under way, and those to come, end with `StoreClosed`."""
        self.closed = True
        if self._tokens is not None:
            self._tokens.close()
        self._session.close()
