"""Counters and histograms of the unlocker, and the registry in which all its metrics are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import Metric

from lockclient.model.clocks import monotonic
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.service.metrics import ComputedCollector, counter_by_label
from unlocker.metrics.clock_skew import ClockSkews

REMOVED, CHANGED, GONE, FAILED = "removed", "changed", "gone", "failed"
"""Results of an attempt to auto-unlock: removed; changed (a heartbeat or another write came first);
gone (unlocked or removed first); failed (the store did not answer or refused; it is retried)."""

REMOVAL_KINDS = (AUTO_UNLOCK, FORCE_UNLOCK, "other")
TASKS = ("sweep", "heartbeat", "clock-check", "resync")

_DURATIONS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counters and histograms; the registry also serves the gauges.

    Args:
        version: of this unlocker.

    Attributes:
        succeeded_at: when each task last succeeded, or when this object was made (monotonic).
    """

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        program = Info("clustermutex_unlocker", "This unlocker.", registry=registry)
        program.info({"version": version})
        counter = partial(counter_by_label, registry)
        self.skews = ClockSkews()
        self.alerts = Counter(
            "clustermutex_alerts", "Locks seen to go past their alert.", registry=registry
        )
        self.auto_unlocks = counter(
            "clustermutex_auto_unlocks",
            "Attempts of this unlocker to remove a lock that was due, by how they ended: removed; "
            "changed (somebody, its holder most likely, wrote to it first); gone (unlocked or "
            "removed first); failed (tried again).",
            "result",
            (REMOVED, CHANGED, GONE, FAILED),
        )
        self.removals = counter(
            "clustermutex_removals_seen",
            "Locks that this unlocker saw removed from their holders, by itself or by anyone else.",
            "how",
            REMOVAL_KINDS,
        )
        self.notifications = counter(
            "clustermutex_unlocker_notifications",
            "Conditions, ends and removals in messages, for each URL: sent; failed (tried again); "
            "unanswered (given up: never answered, or its text is refused).",
            "result",
            ("sent", "failed", "unanswered"),
        )
        self.requests = counter(
            "clustermutex_unlocker_store_requests",
            "Requests to the store: a page of all locks, a poll, a removal, a heartbeat, a "
            "round of clock checks.",
            "task",
            TASKS,
        )
        self.failures = counter(
            "clustermutex_unlocker_store_failures",
            "Requests that the store did not answer in time or refused.",
            "task",
            TASKS,
        )
        self.succeeded_at = dict.fromkeys(TASKS, monotonic())
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._add_histograms(partial(Histogram, registry=registry))

    def _add_histograms(self, histogram: Callable[..., Histogram]) -> None:
        self.held = histogram(
            "clustermutex_lock_held_seconds",
            "How long locks were held, counted when they end.",
            buckets=(0.01, 0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
        )
        self.sweeps = histogram(
            "clustermutex_unlocker_sweep_duration_seconds",
            "How long a check for due locks took, with its removals.",
            buckets=_DURATIONS_S,
        )
        self.resyncs = histogram(
            "clustermutex_unlocker_resync_duration_seconds",
            "How long reading all locks took.",
            buckets=_DURATIONS_S,
        )

    def add(self, compute: Callable[[], Iterable[Metric]]) -> None:
        """Serve the gauges that `compute` returns at each scrape."""
        self.registry.register(ComputedCollector(compute))
