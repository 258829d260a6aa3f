"""HTTP to an etcd member, which it speaks on its client port beside gRPC; its wall clock."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from email.message import Message
from email.utils import parsedate_to_datetime
from types import MappingProxyType

from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.location import EtcdLocation

MAX_ANSWER_BYTES = 4 << 20
"""How much of an answer is read; etcd's own are shorter, and who knows what listens there."""


def fetch(
    location: EtcdLocation,
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
    if location.secure:
        context = ssl.create_default_context(cafile=location.cacert)
        if location.cert is not None:
            context.load_cert_chain(location.cert, location.key)
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read(MAX_ANSWER_BYTES)
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


def clock_offsets(location: EtcdLocation, timeout: float) -> list[float]:
    """Return how many seconds each member's clock is ahead of ours, for those that answered."""
    found = []
    deadline = Deadline.after(timeout)
    for endpoint in location.endpoints:
        try:
            # At least a moment for each: a frozen member must not keep the others from being asked.
            patience = max(0.2, deadline.remaining() / 2)
            before = time.time()
            _, headers, _ = fetch(location, endpoint, "/version", patience)
            ahead = clock_ahead(headers, before, time.time())
        except (OSError, http.client.HTTPException):
            continue  # a member that can't say is no witness; the caller counts those that can
        if ahead is not None:
            found.append(ahead)
    return found
