"""The members' wall clocks, from the `Date` header that each sends with `/version`."""

from __future__ import annotations

import http.client
import time

from lockclient.model.clocks import Deadline
from lockclient.settings import Settings
from lockclient.stores.etcd.wire.member_http import clock_ahead, fetch


def offsets(settings: Settings, timeout: float) -> list[float]:
    """Return how many seconds each member's clock is ahead of ours, for those that answered."""
    found = []
    deadline = Deadline.after(timeout)
    for endpoint in settings.endpoints:
        try:
            # At least a moment for each: a frozen member must not keep the others from being asked.
            patience = max(0.2, deadline.remaining() / 2)
            before = time.time()
            _, headers, _ = fetch(settings, endpoint, "/version", patience)
            ahead = clock_ahead(headers, before, time.time())
        except (OSError, http.client.HTTPException):
            continue  # a member that can't say is no witness; the caller counts those that can
        if ahead is not None:
            found.append(ahead)
    return found
