"""Access tokens for one bucket: one refresh at a time, in a background thread.

Google's credentials know no deadline. Asking a metadata server, a token endpoint or a program may
take any time: google-auth tries the metadata server for half a minute. So one worker thread runs
their code, and callers wait for it until their own deadlines.

A token is refreshed before it expires, while callers use it. A caller without a token (none was
fetched yet, it has expired, or the bucket has rejected it) waits for the refresh.

Some credentials call an unreachable server a refusal. So the last request tells whether a failure
is one of the network: it was not answered, or answered with a status that can be retried.
"""

from __future__ import annotations

import os
import threading
import warnings
from copy import copy
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from google.auth import default as default_credentials
from google.auth import exceptions as auth
from google.auth import load_credentials_from_file
from google.auth.credentials import Credentials, with_scopes_if_required
from google.auth.transport.requests import Request

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.gcs import errors
from lockclient.stores.gcs.wire.http_session import session_with_deadlines
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

_SCOPE: Final = "https://www.googleapis.com/auth/devstorage.read_write"
_REQUEST_TIMEOUT_S: Final = 10.0
"""Seconds for a connection to a server of tokens, and as many for its answer."""
_REFRESH_AHEAD_S: Final = 225.0
"""Seconds before its end at which a token is refreshed; the metadata server gives the same token
again before that. A token with less than twice that left is refreshed after half of the time."""
_LEAST_USE_S: Final = 10.0
"""Seconds for which a new token is used even if our clock calls it expired: a clock that is far
ahead does so with each token, and the bucket knows better."""
_FAILURE_RETENTION_S: Final = 1.0
"""Seconds after a failed refresh in which callers get that failure and begin no other one."""
_METADATA_SIGNS: Final = (
    "GCE_METADATA_HOST",
    "GCE_METADATA_ROOT",
    "GCE_METADATA_IP",
    "K_SERVICE",
    "CLOUD_RUN_JOB",
    "GAE_SERVICE",
    "KUBERNETES_SERVICE_HOST",
)
"""Variables of machines that have a metadata server. Without any of them, an unreachable metadata
server means that there are no credentials."""


def checked_credentials(given: Any) -> Credentials | str | None:
    """Return a program's own credentials: an object of google-auth, or a file's path.

    Raises:
        ValueError: these are no credentials, or there is no such file.
    """
    if given is None or isinstance(given, Credentials):
        return given
    if not isinstance(given, str | os.PathLike):
        raise ValueError(
            "credentials must be an object of google-auth (google.auth.credentials.Credentials) or "
            f"the path of a file, not {type(given).__name__}."
        )
    path = os.fsdecode(given)
    if not Path(path).is_file():
        raise ValueError(f"There is no file of credentials at {path!r}.")
    return path


class AccessToken(NamedTuple):
    """A token as headers of a request, with its times on our monotonic clock."""

    headers: dict[str, str]
    refresh_at: float
    expires_at: float

    @classmethod
    def of(cls, credentials: Credentials) -> AccessToken:
        """Return the token of credentials that were just refreshed."""
        headers: dict[str, str] = {}
        credentials.apply(headers)  # type: ignore[no-untyped-call]
        left = inf
        if credentials.expiry is not None:  # in UTC, without a time zone
            now = datetime.now(timezone.utc).replace(tzinfo=None)
            left = max((credentials.expiry - now).total_seconds(), _LEAST_USE_S)
        now_s = monotonic()
        return cls(headers, now_s + max(left - _REFRESH_AHEAD_S, left / 2), now_s + left)


class AccessTokens:
    """The access tokens of one client; safe to share between threads.

    Args:
        credentials: of google-auth, or the path of a file of such; None: Google's own search.
    """

    def __init__(self, credentials: Credentials | str | None) -> None:
        self._given = credentials
        self._changed = threading.Condition()
        self._token: AccessToken | None = None
        self._failure: auth.GoogleAuthError | None = None  # of the last refresh
        self._retry_at = -inf
        self._is_refreshing = self._is_closed = False
        # Only the worker's thread writes these:
        self._request = _NotedRequest()
        self._credentials: Credentials | None = None
        self._worker = WorkerPool("token", 1)

    def current(self, deadline: Deadline) -> AccessToken:
        """Return a valid token; wait for one until the deadline.

        Raises:
            TransportError: there was none by then, or the server of tokens is unreachable.
            GoogleAuthError: there are no credentials, or they are refused.
        """
        with self._changed:
            while True:
                token, now = self._token, monotonic()
                is_due = (token is None or now >= token.refresh_at) and now >= self._retry_at
                if is_due and not (self._is_refreshing or self._is_closed):
                    self._is_refreshing = True
                    self._worker.submit(self._refresh)
                if token is not None and now < token.expires_at:
                    return token
                if not self._is_refreshing and self._failure is not None:
                    raise copy(self._failure)
                if self._is_closed or now >= deadline:
                    raise auth.TransportError(f"no access token in time from {self._request.host}")  # type: ignore[no-untyped-call]
                self._changed.wait(min(deadline.remaining(), threading.TIMEOUT_MAX))

    def reject(self, token: AccessToken) -> None:
        """Forget a token that the bucket does not accept, unless there is another one by now."""
        with self._changed:
            if self._token is token:
                self._token = None

    def close(self) -> None:
        """End all waits: `current` raises."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._worker.close()

    def _refresh(self) -> None:
        """Fetch a token, or note why that failed. Called by the worker's thread."""
        request = self._request = _NotedRequest(session_with_deadlines())
        token = failure = None
        try:
            credentials, is_opened = self._credentials, self._credentials is not None
            if credentials is None:
                credentials = self._credentials = _opened(self._given, request)
            if is_opened or not credentials.valid:
                credentials.refresh(request)  # type: ignore[no-untyped-call]
            token = AccessToken.of(credentials)
        except BaseException as error:  # noqa: BLE001 - the callers that wait raise it
            failure = request.failure(error)
        with self._changed:
            kept, is_first = self._token, self._failure is None
            self._token, self._failure, self._is_refreshing = token or kept, failure, False
            self._retry_at = -inf if failure is None else monotonic() + _FAILURE_RETENTION_S
            self._changed.notify_all()
        left = 0.0 if kept is None else kept.expires_at - monotonic()
        if failure is not None and is_first and left > 0:
            text = "The access token can't be refreshed (%s) and expires in %.0f s; retrying."
            log.warning(text, failure, left)


def _opened(given: Credentials | str | None, request: Request) -> Credentials:
    if given is None:
        found: Credentials = default_credentials([_SCOPE], request)[0]
    elif isinstance(given, str):
        with warnings.catch_warnings():  # that a file may be a stranger's: it is the program's
            warnings.simplefilter("ignore", DeprecationWarning)
            found = load_credentials_from_file(given, [_SCOPE], request=request)[0]  # type: ignore[no-untyped-call]
    else:
        found = with_scopes_if_required(given, [_SCOPE])  # type: ignore[no-untyped-call]
    return found


class _NotedRequest(Request):
    """Sends requests for tokens, and notes why the last one was not answered, if so."""

    host = "Google's credentials"
    """The server of the last request."""
    _unanswered = ""

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: Any = None,
        headers: Any = None,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        timeout = min(timeout or _REQUEST_TIMEOUT_S, _REQUEST_TIMEOUT_S)
        self.host, self._unanswered = urlsplit(url).hostname or "", ""
        try:
            response = super().__call__(url, method, body, headers, timeout, **how)  # type: ignore[no-untyped-call]
        except auth.TransportError as error:
            self._unanswered = f"{self.host}: {errors.cause_of(error.args[0]).text}"
            raise
        if response.status in errors.RETRYABLE_STATUSES:
            self._unanswered = f"{self.host}: HTTP status {response.status}"
        return response

    def failure(self, error: BaseException) -> auth.GoogleAuthError:
        """Return the meaning of an exception after the last request: a `TransportError` if the
        network, or the server of tokens, is to be tried again."""
        kind: type[auth.GoogleAuthError] = auth.RefreshError
        is_missing = isinstance(error, auth.DefaultCredentialsError)
        if self._unanswered and not (is_missing and not {*_METADATA_SIGNS} & {*os.environ}):
            kind, text = auth.TransportError, f"no access token from {self._unanswered}"
        elif isinstance(error, auth.GoogleAuthError):
            text = str(error.args[0] if error.args else error)  # the second argument is the answer
            kind = auth.TransportError if error.retryable else kind
        else:  # like the errors of a file that has no credentials
            text = f"they can't be read ({error})"
        return kind(text)
