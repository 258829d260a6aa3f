"""Asking an etcd member over HTTP, which it speaks on its client port beside gRPC."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from types import MappingProxyType

from lockclient.settings import Settings

LONGEST = 4 << 20
"""Bytes of an answer that are read; etcd's own are shorter, and who knows what listens there."""


def fetch(
    settings: Settings,
    endpoint: str,
    path: str,
    timeout: float,
    body: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, Message, bytes]:
    """Ask a member over HTTP on its client port: GET, or POST with a body.

    Raises:
        OSError, http.client.HTTPException: there is no answer, or none in time.
    """
    host, _, port = endpoint.rpartition(":")
    connection: http.client.HTTPConnection
    if settings.secure:
        context = ssl.create_default_context(cafile=settings.cacert)
        if settings.cert is not None:
            context.load_cert_chain(settings.cert, settings.key)
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read(LONGEST)
    finally:
        connection.close()


def clock_ahead(headers: Message, before: float, after: float) -> float | None:
    """Return how many seconds a member's clock is ahead of ours, None if it did not say.

    The `Date` header is in whole seconds: the figure is right within half a second and half the
    time that the question took.

    Args:
        headers: of the answer.
        before, after: our wall clock, when the question was sent and answered.
    """
    try:
        theirs = parsedate_to_datetime(headers.get("Date", "")).timestamp() + 0.5
    except (ValueError, TypeError):
        return None
    return theirs - (before + after) / 2
