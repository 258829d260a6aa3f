"""Prometheus: an instrument that counts and times what happens to this process's own locks.

    from lockclient.instruments.prometheus import PrometheusInstrument

    ClusterMutex.setup(instruments=[PrometheusInstrument()])

It is for the program that takes locks. What is held in a whole cluster, the unlocker's own metrics
say. Of prometheus_client's multiprocess mode it asks what all metrics ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from lockclient.instruments import (
    Acquired,
    Asked,
    Event,
    EventsDropped,
    GaveUp,
    LockEvent,
    Lost,
    Pushed,
    PushFailed,
    Released,
    Requested,
)
from lockclient.instruments.metric_names import (
    BUCKETS_S,
    DROPPED,
    HELD,
    HOLD,
    LOSSES,
    PUSHES,
    REQUEST,
    WAIT,
    WAITING,
    wait_outcome,
)

PUSH_OUTCOMES: Final = ("done", "failed")
WAIT_OUTCOMES: Final = ("acquired", "timeout", "cancelled", "error")
HOLD_OUTCOMES: Final = ("released", "lost")


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
        of_lock = [] if lock_label is None else ["lock"]
        how: dict[str, Any] = {"registry": registry}
        self._wait = Histogram(*WAIT, [*of_lock, "outcome"], buckets=buckets, **how)
        self._hold = Histogram(*HOLD, [*of_lock, "outcome"], buckets=buckets, **how)
        self._held = Gauge(*HELD, of_lock, multiprocess_mode="livesum", **how)
        self._waiting = Gauge(*WAITING, of_lock, multiprocess_mode="livesum", **how)
        self._losses = Counter(*LOSSES, of_lock, **how)
        self._pushes = Counter(*PUSHES, [*of_lock, "outcome"], **how)
        self._request = Histogram(*REQUEST, ["request", "outcome"], **how)
        self._dropped = Counter(*DROPPED, **how)
        self._gauged: set[tuple[str, ...]] = set()
        self._pid = os.getpid()
        if lock_label is None:  # what has not happened yet is 0, and not missing
            for family, outcomes in (
                (self._wait, WAIT_OUTCOMES),
                (self._hold, HOLD_OUTCOMES),
                (self._pushes, PUSH_OUTCOMES),
            ):
                for outcome in outcomes:
                    family.labels(outcome)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        if os.getpid() != self._pid:
            self._forget_parent()
        if isinstance(event, Requested):
            if type(event) is Requested:  # what is told beside it, is the same request
                self._request.labels(event.request, event.outcome).observe(event.took_s)
        elif isinstance(event, EventsDropped):
            self._dropped.inc(event.count)
        elif isinstance(event, LockEvent):
            self._count(event, () if self._lock_label is None else (self._lock_label(event.lock),))

    def _count(self, event: LockEvent, lock: tuple[str, ...]) -> None:
        if isinstance(event, Asked):
            self._of(self._waiting, lock).inc()
        elif isinstance(event, Acquired | GaveUp):
            self._of(self._waiting, lock).dec()
            self._wait.labels(*lock, wait_outcome(event)).observe(event.waited_s)
            if isinstance(event, Acquired):
                self._of(self._held, lock).inc()
                self._of(self._losses, lock)
        elif isinstance(event, Pushed | PushFailed):
            outcome = PUSH_OUTCOMES[isinstance(event, PushFailed)]
            self._pushes.labels(*lock, outcome).inc()
        elif isinstance(event, Released | Lost):
            self._of(self._held, lock).dec()
            lost = isinstance(event, Lost)
            self._hold.labels(*lock, HOLD_OUTCOMES[lost]).observe(event.held_s)
            if lost:
                self._of(self._losses, lock).inc()

    def _of(self, family: Any, lock: tuple[str, ...]) -> Any:
        self._gauged.add(lock)
        return family.labels(*lock) if lock else family

    def _forget_parent(self) -> None:
        """After fork, in the child: what the parent holds and waits for is not its own."""
        self._pid = os.getpid()
        for lock in self._gauged:
            self._of(self._held, lock).set(0)
            self._of(self._waiting, lock).set(0)
