"""Prometheus: an instrument that counts and times what happens to this process's own locks.

    from lockclient.instruments.prometheus import PrometheusInstrument

    ClusterMutex.setup(instruments=[PrometheusInstrument()])

The unlocker's own metrics show all locks of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lockclient.instruments import Event, measures
from lockclient.instruments.measures import LockLabel, Metric, measure

BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)
"""From the fastest store to the jobs of a night."""


class PrometheusInstrument:
    """An instrument for `ClusterMutex.setup(instruments=[…])`; make one for a registry.

    Args:
        registry: where its metrics are.
        lock_label: returns for a lock's name what the label `lock` is to be, so that few values
            come of many names, like `lambda name: name.partition("/")[0]`. None: there is no such
            label.
        buckets: of the histograms of waiting and holding, in seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        *,
        lock_label: LockLabel = None,
        buckets: Sequence[float] = BUCKETS_S,
    ) -> None:
        self._lock_label = lock_label
        self._pid = os.getpid()
        self._held: set[Any] = set()

        def family(kind: Any, metric: Metric, **how: Any) -> Any:
            of_lock = ["lock"] if lock_label and metric in measures.OF_A_LOCK else []
            labels = (*of_lock, *metric.labels)
            made = kind(metric.name, metric.help, labels, registry=registry, **how)
            if not of_lock:  # what has not happened yet is 0, and not missing
                for outcome in metric.outcomes:
                    made.labels(outcome)
            return made

        self._families: dict[Metric, Any] = {
            measures.WAIT: family(Histogram, measures.WAIT, buckets=buckets),
            measures.HOLD: family(Histogram, measures.HOLD, buckets=buckets),
            measures.REQUEST: family(Histogram, measures.REQUEST),
            measures.HELD: family(Gauge, measures.HELD, multiprocess_mode="livesum"),
            **{metric: family(Counter, metric) for metric in measures.COUNTERS},
        }

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if os.getpid() != self._pid:  # the child of a fork holds none of its parent's locks
            self._pid = os.getpid()
            for held in self._held:
                held.set(0)
        for metric, value, labels in measure(event, self._lock_label):
            family = self._families[metric]
            child = family.labels(**labels) if labels else family
            if metric is measures.HELD:
                self._held.add(child)
            (child.observe if metric in measures.HISTOGRAMS else child.inc)(value)

    def dropped(self, count: int) -> None:
        """Count events that were dropped."""
        self._families[measures.DROPPED].inc(count)
