"""The members' wall clocks, from the `Date` header that each sends with `/version`."""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime

from lockclient.settings import Settings
from lockclient.timing import Deadline


def offsets(settings: Settings, timeout: float) -> list[float]:
    """Return how many seconds each member's clock is ahead of ours, for those that answered.

    The header is in whole seconds: each figure is right within half a second and half the time
    that the question took.
    """
    found = []
    deadline = Deadline.after(timeout)
    for endpoint in settings.endpoints:
        try:
            # At least a moment for each: a frozen member must not keep the others from being asked.
            patience = max(0.2, deadline.remaining() / 2)
            found.append(_offset(settings, endpoint, patience))
        except (OSError, http.client.HTTPException, ValueError, TypeError):
            continue  # a member that can't say is no witness; the caller counts those that can
    return found


def _offset(settings: Settings, endpoint: str, timeout: float) -> float:
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
        before = time.time()
        connection.request("GET", "/version")
        header = connection.getresponse().getheader("Date")
        after = time.time()
    finally:
        connection.close()
    theirs = parsedate_to_datetime(header or "").timestamp() + 0.5
    return theirs - (before + after) / 2
