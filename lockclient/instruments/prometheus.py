"""Prometheus: an instrument that counts and times what happens to this process's own locks.

    from lockclient.instruments.prometheus import PrometheusInstrument

    ClusterMutex.setup(instruments=[PrometheusInstrument()])

The unlocker's own metrics show all locks of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lockclient.instruments import Event
from lockclient.instruments.measures import (
    BUCKETS_S,
    DROPPED,
    HELD,
    HOLD,
    LOSSES,
    PUSHES,
    REQUEST,
    WAIT,
    Metric,
    measure,
)


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
        lock_label: Callable[[str], str] | None = None,
        buckets: Sequence[float] = BUCKETS_S,
    ) -> None:
        self._lock_label = lock_label
        self._pid = os.getpid()
        of_lock = [] if lock_label is None else ["lock"]
        how: dict[str, Any] = {"registry": registry}

        def histogram(metric: Metric) -> Histogram:
            labels = [*of_lock, "outcome"]
            return Histogram(metric.name, metric.help, labels, buckets=buckets, **how)

        def counter(metric: Metric, *labels: str) -> Counter:
            return Counter(metric.name, metric.help, [*of_lock, *labels], **how)

        self._held = Gauge(HELD.name, HELD.help, of_lock, multiprocess_mode="livesum", **how)
        self._held_labels: list[dict[str, str]] = []
        self._dropped = Counter(DROPPED.name, DROPPED.help, **how)
        self._families: dict[Metric, Any] = {
            WAIT: histogram(WAIT),
            HOLD: histogram(HOLD),
            HELD: self._held,
            LOSSES: counter(LOSSES),
            PUSHES: counter(PUSHES, "outcome"),
            REQUEST: Histogram(REQUEST.name, REQUEST.help, ["request", "outcome"], **how),
        }
        if lock_label is None:  # what has not happened yet is 0, and not missing
            for metric, family in self._families.items():
                for outcome in metric.outcomes:
                    family.labels(outcome)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if os.getpid() != self._pid:
            self._forget_parent()
        lock = {} if self._lock_label is None else {"lock": self._lock_label(event.lock)}
        for metric, value, labels in measure(event):
            labels = labels if metric is REQUEST else {**lock, **labels}
            family = self._families[metric]
            child = family.labels(**labels) if labels else family
            if metric is HELD and labels not in self._held_labels:
                self._held_labels.append(labels)
            (child.observe if isinstance(family, Histogram) else child.inc)(value)

    def dropped(self, count: int) -> None:
        """Count events that were dropped."""
        self._dropped.inc(count)

    def _forget_parent(self) -> None:
        """After fork, in the child: what the parent holds is not its own."""
        self._pid = os.getpid()
        for labels in self._held_labels:
            (self._held.labels(**labels) if labels else self._held).set(0)
