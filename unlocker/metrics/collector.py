"""What `/metrics` shows. Computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process; the others are about the cluster, so
that every replica shows the same and a query takes `max by`, not `sum`. Times are timestamps, not
ages: an age that is scraped once is wrong a second later.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Counts
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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

from lockclient.model.clocks import Now, monotonic
from lockclient.model.holder import OVERDUE, Holder, Ticket
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.model.restore_marker import Restored
from lockclient.text.confusables import told_apart
from lockclient.text.escaping import label
from unlocker.deadlines import KEPT, Item
from unlocker.metrics.series_limit import NEW, SeriesLimit
from unlocker.policy import NEVER, ClockCheck
from unlocker.rate_limit import Braking

LISTED = 100
"""Locks past their alert, and client hosts, that get series of their own: what comes from outside
must not fill Prometheus. The locks beyond are counted, and the counts ring."""

OTHERS = "another host"
"""Stands for hosts that are left out."""

_SILENCE = 3600.0
"""Seconds since its last push after which a host's skew is not shown any more."""

REMOVED, CHANGED, GONE, FAILED = "removed", "changed", "gone", "failed"
"""How an attempt to auto-unlock ends: done; the holder, or someone, wrote to the lock first; it
was unlocked or removed first; the store did not answer or refused, so that it is tried again."""

KINDS = PAST_ALERT, SKEWS, UNLOCKED, FREE = "past-alert", "skew", "auto-unlocked", "free"
"""Of series whose labels come from locks; see `labels`."""

HOWS = (AUTO_UNLOCK, FORCE_UNLOCK, "other")
TASKS = ("sweep", "heartbeat", "clock-check", "resync")

_DURATIONS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What the service knows at the moment of a scrape.

    Attributes:
        locks: how many in each state.
        kept: locks that are past their auto-unlock and wait only because counting began anew.
        lines: how many wait, lock by lock.
        unlockers: how many show a sign of life.
        past_alert: locks past their alert, `LISTED` at most, the most urgent first.
        unlisted: how many locks past their alert are not among them, by state.
        failing: names of locks whose removal was tried in vain and is tried on.
        store_up: whether the store is reachable, as far as known.
        out_of_space: whether it has no space for anything new.
        votes: why which of its servers has no vote, see `ServiceStore.votes`.
        proven_at: until when the watch has shown all that is known to be written (Unix seconds).
        loads: how often all locks were read.
        restored: the last restore of the store that is known of.
        watch_restarts: how often the watch broke.
        check: the last clock check.
        braking: what the brake does.
    """

    locks: Mapping[str, int]
    kept: int
    lines: Iterable[int]
    unlockers: int
    past_alert: Sequence[Item]
    unlisted: Mapping[str, int]
    failing: Collection[str]
    store_up: bool
    out_of_space: bool
    votes: Mapping[str, str]
    proven_at: float
    loads: int
    restored: Restored | None
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
        host = label(hostname)
        with self._lock:
            self._by_host[host] = seconds, monotonic()
            self._by_host.move_to_end(host)
            if len(self._by_host) > LISTED:
                self._by_host.popitem(last=False)

    def all(self, labels: SeriesLimit) -> dict[str, float]:
        """Return host to seconds, without hosts that were silent for long: their alerts end.

        Of those that are too many new ones the worst is told, as `OTHERS`.
        """
        since = monotonic() - _SILENCE
        with self._lock:
            found = {host: skew for host, (skew, at) in self._by_host.items() if at > since}
        left_out = [host for host in found if not labels.admit((host,))]
        skews = [found.pop(host) for host in left_out]
        return found | ({OTHERS: max(skews, key=abs)} if skews else {})


class Metrics:
    """The unlocker's registry: counters that the service raises, gauges read from a picture."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.skews = Skews()
        self.successes = dict.fromkeys(TASKS, 0.0)
        left_out = self._counter(
            "clustermutex_unlocker_label_sets_left_out",
            f"Sets of labels that a scrape left out: more than {NEW} new ones in an hour.",
            "of",
            KINDS,
        )
        self.labels = {kind: SeriesLimit(left_out.labels(kind).inc) for kind in KINDS}
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

    def show(self, picture: Callable[[], MetricsSnapshot]) -> None:
        """Serve gauges from what `picture` returns at each scrape."""
        self.registry.register(_Gauges(picture, self, self._version))


class _Gauges(Collector):
    def __init__(
        self, picture: Callable[[], MetricsSnapshot], metrics: Metrics, version: str
    ) -> None:
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
        yield from self._past_alert(picture)
        yield from self._of_process(picture)
        yield from _of_brake(picture.braking)
        yield from _of_clock(picture.check)
        yield _by_label(
            "clustermutex_client_clock_skew_seconds",
            "Our wall clock minus alive_at as its push arrived: how far the host's clock is behind "
            f"ours, the push's way included. The {LISTED} hosts that pushed last, within an hour.",
            "hostname",
            self._metrics.skews.all(self._metrics.labels[SKEWS]),
        )

    def _of_locks(self, picture: MetricsSnapshot) -> Iterator[Metric]:
        yield _by_label(
            "clustermutex_locks",
            "Locks that are held: ok; alert (past alert_at); overdue (to be removed); undecided "
            "(their stamps contradict what they say of themselves, or they need what this version "
            "does not know: never removed); broken (data that can't be read, never removed).",
            "state",
            picture.locks,
        )
        yield GaugeMetricFamily(
            "clustermutex_unlocker_locks_kept",
            f"Locks whose auto_unlock_at passed more than {KEPT:.0f} s ago and that this unlocker "
            "does not remove yet, because it counts their whole time from when it first saw them.",
            picture.kept,
        )
        lines = list(picture.lines)
        yield GaugeMetricFamily(
            "clustermutex_waiters",
            "Clients that wait in line; 0 in a store without one.",
            sum(lines),
        )
        yield GaugeMetricFamily(
            "clustermutex_longest_line_waiters",
            "Clients that wait for the lock with the longest line.",
            max(lines, default=0),
        )
        yield GaugeMetricFamily(
            "clustermutex_unlockers", "Unlockers with a sign of life.", picture.unlockers
        )

    def _past_alert(self, picture: MetricsSnapshot) -> Iterator[Metric]:
        alert = GaugeMetricFamily(
            "clustermutex_lock_alert_timestamp_seconds",
            f"alert_at of a lock past it, the {LISTED} most urgent: overdue ones, those that only "
            "a person can free, those that have been for longest.",
            labels=["name"],
        )
        unlock = GaugeMetricFamily(
            "clustermutex_lock_auto_unlock_timestamp_seconds",
            "When a lock past its alert is to be removed: its auto_unlock_at, or for one that this "
            "unlocker found when its whole time has passed since.",
            labels=["name"],
        )
        info = InfoMetricFamily(
            "clustermutex_lock",
            "Who holds a lock past its alert.",
            labels=["name", "hostname", "pid", "reason"],
        )
        failing = GaugeMetricFamily(
            "clustermutex_unlocker_removal_failing",
            "A lock past its alert that this unlocker has tried to remove in vain, and tries on.",
            labels=["name"],
        )
        now, names = Now.read(), set[str]()
        unlisted = Counts(picture.unlisted)
        for item in picture.past_alert:
            holder, due = item.row.holder, item.verdict.due
            name, *who = labels = labels_of(holder)
            # Two samples of one name, which two locks may look like, would end a whole scrape.
            room, urgent = self._metrics.labels[PAST_ALERT], item.state == OVERDUE
            if name in names or not room.admit(labels, urgent=urgent):
                unlisted[item.state] += 1
                continue
            names.add(name)
            if holder.name in picture.failing:
                failing.add_metric([name], 1)
            info.add_metric([name, *who], {})
            if holder.alert_at is not None:
                alert.add_metric([name], holder.alert_at)
            if holder.auto_unlock_at is not None and due != NEVER:
                counted = round(now.wall + due - now.monotonic)  # whole, so that it stays the same
                at = counted if item.row.found else holder.auto_unlock_at
                unlock.add_metric([name], at)
        yield from (alert, unlock, info, failing)
        yield _by_label(
            "clustermutex_locks_unlisted",
            f"Locks past their alert that have no series of their own: beyond {LISTED}, or beyond "
            f"{NEW} new ones in an hour.",
            "state",
            unlisted,
        )

    def _of_process(self, picture: MetricsSnapshot) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "clustermutex_unlocker", "This unlocker.", {"version": self._version}
        )
        yield GaugeMetricFamily(
            "clustermutex_unlocker_store_up",
            "Whether the store is reachable (1) or not (0).",
            float(picture.store_up),
        )
        yield GaugeMetricFamily(
            "clustermutex_store_restored_timestamp_seconds",
            "When the store was last said, or noticed, to be restored from a backup; 0 is never.",
            picture.restored.time if picture.restored else 0,
        )
        yield GaugeMetricFamily(
            "clustermutex_unlocker_store_out_of_space",
            "Whether the store refused our last sign of life for lack of space (1) or not (0): "
            "then nobody can take a lock, and no lock is auto-unlocked.",
            float(picture.out_of_space),
        )
        yield _by_label(
            "clustermutex_unlocker_store_server_votes",
            "Whether a server has a vote on each lock (1) or not (0), of a store whose servers "
            "vote: a majority must.",
            "server",
            {server: float(not why) for server, why in picture.votes.items()},
        )
        yield GaugeMetricFamily(
            "clustermutex_unlocker_picture_proven_timestamp_seconds",
            "When the watch was last seen to show all that the store had confirmed: it is made to "
            "show our own sign of life, every 3 s.",
            picture.proven_at,
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


def labels_of(who: Holder | Ticket) -> tuple[str, str, str, str]:
    """Return a lock's name, as it is shown, and host, process and reason of its holder or head."""
    said = (who.hostname or "", str(who.pid or ""), who.reason or "")
    return told_apart(who.name), label(said[0]), label(said[1]), label(said[2])


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, figure in values.items():
        family.add_metric([value], figure)
    return family
