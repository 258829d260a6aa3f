"""What `/metrics` shows. Computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process; the others are about the cluster, so
that every replica shows the same and a query takes `max by`, not `sum`. Times are timestamps, not
ages: an age that is scraped once is wrong a second later.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from lockclient.record import AUTO_UNLOCK, FORCE_UNLOCK, Holder
from lockclient.timing import monotonic
from unlocker.brake import Braking
from unlocker.policy import ClockCheck

LISTED = 100
"""Locks past their alert, and client hosts, that get series of their own: what comes from outside
must not fill Prometheus."""

_SILENCE = 3600.0
"""Seconds since its last push after which a host's skew is not shown any more."""

_SHOWN = 100
"""Characters of a text in a label."""

REMOVED, CHANGED, GONE, FAILED = "removed", "changed", "gone", "failed"
"""How an attempt to auto-unlock ends: done; the holder, or someone, wrote to the lock first; it
was unlocked or removed first; the store did not answer or refused, so that it is tried again."""

HOWS = (AUTO_UNLOCK, FORCE_UNLOCK, "other")
TASKS = ("sweep", "heartbeat", "clock-check", "resync")

_DURATIONS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Picture:
    """What the service knows at the moment of a scrape.

    Attributes:
        locks: how many in each state.
        undecided: locks of which can't be told yet when they are due.
        lines: how many wait, lock by lock.
        unlockers: how many show a sign of life.
        past_alert: holders past their alert, `LISTED` at most.
        store_up: whether the store is reachable, as far as known.
        loads: how often all locks were read.
        watch_restarts: how often the watch broke.
        check: the last clock check.
        braking: what the brake does.
    """

    locks: Mapping[str, int]
    undecided: int
    lines: Iterable[int]
    unlockers: int
    past_alert: Sequence[Holder]
    store_up: bool
    loads: int
    watch_restarts: int
    check: ClockCheck | None
    braking: Braking


class Skews:
    """How far each client host's clock is behind ours, for the hosts that pushed last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_host: OrderedDict[str, tuple[float, float]] = OrderedDict()  # skew, and when

    def note(self, hostname: str, seconds: float) -> None:
        """Remember a host's skew, and forget the host not heard of for longest if need be."""
        with self._lock:
            self._by_host[shorten(hostname)] = seconds, monotonic()
            self._by_host.move_to_end(shorten(hostname))
            if len(self._by_host) > LISTED:
                self._by_host.popitem(last=False)

    def all(self) -> dict[str, float]:
        """Return host to seconds, without hosts that were silent for long: their alerts end."""
        since = monotonic() - _SILENCE
        with self._lock:
            return {host: skew for host, (skew, at) in self._by_host.items() if at > since}


class Metrics:
    """The unlocker's registry: counters that the service raises, gauges read from a picture."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.skews = Skews()
        self.successes = dict.fromkeys(TASKS, 0.0)
        self._version = version
        self.alerts = self._counter("clustermutex_alerts", "Locks seen to go past their alert.")
        self.auto_unlocks = self._counter(
            "clustermutex_auto_unlocks",
            "Attempts of this unlocker to remove a lock that was due, by how they ended: removed; "
            "changed (somebody, its holder most likely, wrote to it first); gone (unlocked or "
            "removed first); failed (tried again).",
            "result",
            (REMOVED, CHANGED, GONE, FAILED),
        )
        self.removals = self._counter(
            "clustermutex_removals_seen",
            "Locks that anyone was seen to remove for their holders.",
            "how",
            HOWS,
        )
        self.requests = self._counter(
            "clustermutex_unlocker_store_requests",
            "Requests to the store: a page of all locks, a look, a removal, a sign of life, a "
            "round of asking for the time.",
            "task",
            TASKS,
        )
        self.failures = self._counter(
            "clustermutex_unlocker_store_failures",
            "Requests that the store did not answer in time or refused.",
            "task",
            TASKS,
        )
        self.held = Histogram(
            "clustermutex_lock_held_seconds",
            "How long locks were held that ended.",
            buckets=(0.01, 0.1, 1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
            registry=self.registry,
        )
        self.sweeps = Histogram(
            "clustermutex_unlocker_sweep_duration_seconds",
            "How long a look for what is due took, with its removals.",
            buckets=_DURATIONS,
            registry=self.registry,
        )
        self.resyncs = Histogram(
            "clustermutex_unlocker_resync_duration_seconds",
            "How long reading all locks took.",
            buckets=_DURATIONS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def _counter(
        self, name: str, text: str, label: str | None = None, values: Sequence[str] = ()
    ) -> Counter:
        counter = Counter(name, text, [label] if label else [], registry=self.registry)
        for value in values:  # a counter that first appears at 1 never fires `increase()`
            counter.labels(value)
        return counter

    def succeeded(self, task: str) -> None:
        """Take note that one of `TASKS` has just succeeded."""
        self.successes[task] = time.time()

    def show(self, picture: Callable[[], Picture]) -> None:
        """Serve gauges from what `picture` returns at each scrape."""
        self.registry.register(_Gauges(picture, self, self._version))


class _Gauges(Collector):
    def __init__(self, picture: Callable[[], Picture], metrics: Metrics, version: str) -> None:
        self._picture = picture
        self._metrics = metrics
        self._version = version

    def describe(self) -> list[Metric]:
        """Name nothing in advance: else the registry would collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Compute all gauges."""
        picture = self._picture()
        yield from self._of_locks(picture)
        yield from self._past_alert(picture.past_alert)
        yield from self._of_process(picture)
        yield from _of_brake(picture.braking)
        yield from _of_clock(picture.check)
        yield _by_label(
            "clustermutex_client_clock_skew_seconds",
            "Our wall clock minus alive_at as its push arrived: how far the host's clock is behind "
            f"ours, the push's way included. The {LISTED} hosts that pushed last, within an hour.",
            "hostname",
            self._metrics.skews.all(),
        )

    def _of_locks(self, picture: Picture) -> Iterator[Metric]:
        yield _by_label(
            "clustermutex_locks",
            "Locks that are held: ok; alert (past alert_at); overdue (to be removed); broken (data "
            "that can't be read, never removed).",
            "state",
            picture.locks,
        )
        yield GaugeMetricFamily(
            "clustermutex_locks_undecided",
            "Locks that are not removed because neither they nor a clock tell when they are due.",
            picture.undecided,
        )
        lines = list(picture.lines)
        yield GaugeMetricFamily("clustermutex_waiters", "Clients that wait.", sum(lines))
        yield GaugeMetricFamily(
            "clustermutex_longest_line_waiters",
            "Clients that wait for the lock with the longest line.",
            max(lines, default=0),
        )
        yield GaugeMetricFamily(
            "clustermutex_unlockers", "Unlockers with a sign of life.", picture.unlockers
        )

    def _past_alert(self, holders: Sequence[Holder]) -> Iterator[Metric]:
        alert = GaugeMetricFamily(
            "clustermutex_lock_alert_timestamp_seconds",
            f"alert_at of a lock past it, the {LISTED} that have been for longest.",
            labels=["name"],
        )
        unlock = GaugeMetricFamily(
            "clustermutex_lock_auto_unlock_timestamp_seconds",
            "auto_unlock_at of a lock past its alert.",
            labels=["name"],
        )
        info = InfoMetricFamily(
            "clustermutex_lock",
            "Who holds a lock past its alert.",
            labels=["name", "hostname", "pid", "reason"],
        )
        for holder in holders:
            who = (holder.hostname or "", str(holder.pid or ""), holder.reason or "")
            info.add_metric([holder.name, *map(shorten, who)], {})
            if holder.alert_at is not None:
                alert.add_metric([holder.name], holder.alert_at)
            if holder.auto_unlock_at is not None:
                unlock.add_metric([holder.name], holder.auto_unlock_at)
        yield from (alert, unlock, info)

    def _of_process(self, picture: Picture) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "clustermutex_unlocker", "This unlocker.", {"version": self._version}
        )
        yield GaugeMetricFamily(
            "clustermutex_unlocker_store_up",
            "Whether the store is reachable (1) or not (0).",
            float(picture.store_up),
        )
        yield CounterMetricFamily(
            "clustermutex_unlocker_table_loads",
            "How often all locks were read: at the start, at a resync, after a lost watch.",
            picture.loads,
        )
        yield CounterMetricFamily(
            "clustermutex_unlocker_watch_restarts",
            "How often the watch on the store broke and was to be opened again.",
            picture.watch_restarts,
        )
        yield _by_label(
            "clustermutex_unlocker_last_success_timestamp_seconds",
            "When a task of this unlocker last succeeded; 0 is never.",
            "task",
            self._metrics.successes,
        )


def _of_brake(braking: Braking) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "clustermutex_unlocker_brake_engaged",
        "Whether locks that are due are kept back, or were a minute ago, because of --max-removals "
        "(1) or not (0).",
        float(braking.engaged),
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_removals_withheld",
        "Locks that are due and kept back because of --max-removals.",
        braking.withheld,
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_removals_limit",
        "Auto-unlocks of all unlockers together that pass in a minute; infinite with "
        "--max-removals off.",
        braking.limit,
    )


def _of_clock(check: ClockCheck | None) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "clustermutex_unlocker_clock_trusted",
        "Whether our wall clock agrees with the store's members' (1) or not (0).",
        float(check is not None and check.trusted),
    )
    offset = GaugeMetricFamily(
        "clustermutex_unlocker_clock_offset_seconds",
        "How far the members' wall clocks, by their median, are ahead of ours.",
    )
    if check is not None and check.offset is not None:
        offset.add_metric([], check.offset)
    yield offset


def shorten(text: str) -> str:
    """Cut a text from outside so that it can be a label."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, figure in values.items():
        family.add_metric([value], figure)
    return family
