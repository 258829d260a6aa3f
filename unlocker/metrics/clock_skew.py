"""Clock skews of the client hosts, measured by their heartbeats."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

from prometheus_client.core import Metric

from lockclient.model.auto_unlock import ClockCheck
from lockclient.model.clocks import monotonic
from lockclient.service.metrics import gauge_by_label
from lockclient.text.escaping import label
from unlocker.metrics.series import MAX_LISTED

_MAX_SILENCE_S = 300.0
"""Seconds since a host's last heartbeat after which its skew is no longer exported."""


class ClockSkews:
    """Seconds by which client hosts' clocks are behind ours, for the hosts heard last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def note(self, hostname: str, seen_at: float, alive_at: float) -> None:
        """Store when we saw a host's heartbeat (monotonic), and the host's wall clock in it.

        Beyond `MAX_LISTED` hosts, the one heard longest ago goes.
        """
        host = label(hostname)
        with self._lock:
            self._by_host[host] = seen_at, alive_at
            self._by_host.move_to_end(host)
            if len(self._by_host) > MAX_LISTED:
                self._by_host.popitem(last=False)

    def gauges(self, check: ClockCheck | None, poll: float) -> Iterator[Metric]:
        """Yield the gauge of the hosts heard lately; heartbeats are seen up to `poll` s later."""
        skews: dict[str, float] = {}
        if check is not None and check.trusted:
            since = monotonic() - _MAX_SILENCE_S
            with self._lock:
                for host, (seen_at, alive_at) in self._by_host.items():
                    if seen_at > since:
                        skew = seen_at - check.by_own_clock(alive_at)
                        skews[host] = min(skew, max(0.0, skew - poll))
        yield gauge_by_label(
            "clustermutex_client_clock_skew_seconds",
            "How far a host's clock is behind ours, by its last heartbeat, whose way is included "
            f"(beyond the poll interval). The {MAX_LISTED} hosts heard last, within 5 minutes; "
            "none while our clock is not trusted.",
            "hostname",
            skews,
        )
