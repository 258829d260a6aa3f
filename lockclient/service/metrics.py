"""Prometheus helpers of both services: collectors that compute, counters that begin at zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lockclient.stores.service_store import ServiceStore


class ComputedCollector(Collector):
    """Computes its metrics at each scrape, and not before there is anything.

    Args:
        compute: returns them.
    """

    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance: else the registry would collect at registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Compute them."""
        return self._compute()


def gauge_by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, figure in values.items():
        family.add_metric([value], figure)
    return family


def votes_gauge(name: str, store: ServiceStore) -> Metric:
    """Return the gauge of the servers that vote."""
    return gauge_by_label(
        name,
        "Whether a server has a vote on each lock (1) or not (0), of a store whose servers "
        "vote: a majority must.",
        "server",
        {server: float(not why_not) for server, why_not in store.votes().items()},
    )


def counter_by_label(
    registry: CollectorRegistry, name: str, text: str, label: str, values: Iterable[str]
) -> Counter:
    """Return a counter with one label, from 0 on: one that first appears at 1 is no increase."""
    counter = Counter(name, text, [label], registry=registry)
    for value in values:
        counter.labels(value)
    return counter
