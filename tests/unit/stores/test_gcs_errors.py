"""Whether a try of a bucket that failed may have been done."""

from __future__ import annotations

from http.client import RemoteDisconnected
from typing import Any

import pytest
import requests
from google.auth import exceptions as auth
from urllib3.exceptions import (
    ConnectTimeoutError,
    MaxRetryError,
    NameResolutionError,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
)

from lockclient.stores.gcs.errors import may_have_happened

_POOL: Any = None
_TRICKY_URL = "/o?name=NewConnectionError-Tunnel connection failed"
"""A lock's name stands in the URL, and that in some texts."""


def _retried(reason: Exception) -> MaxRetryError:
    return MaxRetryError(_POOL, _TRICKY_URL, reason)


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError(_retried(NewConnectionError(_POOL, "Connection refused"))),
        requests.ConnectionError(_retried(NameResolutionError("host", _POOL, OSError()))),  # type: ignore[arg-type]
        requests.ConnectTimeout(_retried(ConnectTimeoutError(_POOL, "timed out"))),
        requests.exceptions.ProxyError(
            _retried(ProxyError("no", NewConnectionError(_POOL, "refused")))
        ),
        auth.TransportError("no access token"),  # type: ignore[no-untyped-call]
        429,
    ],
)
def test_what_was_not_sent_was_not_done(error: Exception | int) -> None:
    assert not may_have_happened(error)


@pytest.mark.parametrize(
    "error",
    [
        requests.ReadTimeout(ReadTimeoutError(_POOL, _TRICKY_URL, "Read timed out.")),
        requests.ConnectionError(ProtocolError("aborted", RemoteDisconnected(_TRICKY_URL))),
        requests.exceptions.ProxyError(_retried(ProxyError("no", RemoteDisconnected("closed")))),
        ValueError("what was answered is no JSON"),
        *(408, 409, 503),
    ],
)
def test_what_was_lost_may_have_been(error: Exception | int) -> None:
    assert may_have_happened(error)
