"""Clock skews of the client hosts, measured by their heartbeats."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

from prometheus_client.core import Metric

from lockclient.model.clocks import monotonic
from lockclient.service.metrics import gauge_by_label
from lockclient.text.escaping import label
from unlocker.metrics.series import MAX_LISTED

_MAX_SILENCE_S = 3600.0
"""Seconds since a host's last heartbeat after which its skew is no longer exported."""


class ClockSkews:
    """Seconds by which client hosts' clocks are behind ours, for the hosts heard last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: OrderedDict[str, tuple[float, float]] = OrderedDict()  # skew, and when

    def note(self, hostname: str, seconds: float) -> None:
        """Store a host's skew; beyond `MAX_LISTED` hosts, the one heard longest ago goes."""
        host = label(hostname)
        with self._lock:
            self._by_host[host] = seconds, monotonic()
            self._by_host.move_to_end(host)
            if len(self._by_host) > MAX_LISTED:
                self._by_host.popitem(last=False)

    def all(self) -> dict[str, float]:
        """Return host to seconds, without silent hosts, so that their alerts end."""
        since = monotonic() - _MAX_SILENCE_S
        with self._lock:
            return {host: skew for host, (skew, at) in self._by_host.items() if at > since}

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauge of these hosts."""
        yield gauge_by_label(
            "clustermutex_client_clock_skew_seconds",
            "Our wall clock minus alive_at as its push arrived: how far the host's clock is behind "
            f"ours, the push's way included. The {MAX_LISTED} hosts that pushed last, within an "
            "hour.",
            "hostname",
            self.all(),
        )
