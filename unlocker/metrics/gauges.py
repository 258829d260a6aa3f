"""Gauges, computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process; the others are about the cluster, so
that every replica shows the same and a query takes `max by`, not `sum`. Times are timestamps, not
ages: an age that is scraped once is wrong a second later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.clocks import Now
from lockclient.model.holder import OVERDUE
from lockclient.model.restore_marker import Restored
from lockclient.service.metrics import gauge_by_label
from unlocker.deadlines import CARRIED_OVER_AFTER_S, JudgedLock
from unlocker.metrics.clock_skew import ClockSkews
from unlocker.metrics.series_limit import (
    MAX_LISTED,
    NEW_AN_HOUR,
    PAST_ALERT,
    SKEWS,
    SeriesLimit,
    holder_labels,
)
from unlocker.policy import NEVER, ClockCheck
from unlocker.rate_limit import RateLimitState


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What the service knows at the moment of a scrape.

    Attributes:
        locks: how many in each state.
        carried_over: locks past their auto-unlock that wait only because counting began anew.
        queue_lengths: how many wait, lock by lock.
        unlockers: how many have a heartbeat.
        past_alert: locks past their alert, `MAX_LISTED` at most, the most urgent first.
        unlisted: how many locks past their alert are not among them, by state.
        failing: names of locks whose removal was tried in vain and is tried on.
        store_up: whether the store is reachable, as far as known.
        out_of_space: whether it has no space for anything new.
        votes: why which of its servers has no vote, see `ServiceStore.votes`.
        proven_at: until when the watch has shown all that is known to be written (Unix seconds).
        loads: how often all locks were read.
        restored: the last restore of the store that is known of.
        watch_restarts: how often the watch broke.
        clock_check: the last one.
        rate_limit: what it does.
    """

    locks: Mapping[str, int]
    carried_over: int
    queue_lengths: Iterable[int]
    unlockers: int
    past_alert: Sequence[JudgedLock]
    unlisted: Mapping[str, int]
    failing: Collection[str]
    store_up: bool
    out_of_space: bool
    votes: Mapping[str, str]
    proven_at: float
    loads: int
    restored: Restored | None
    watch_restarts: int
    clock_check: ClockCheck | None
    rate_limit: RateLimitState


def gauges(
    snapshot: MetricsSnapshot,
    skews: ClockSkews,
    limits: Mapping[str, SeriesLimit],
    successes: Mapping[str, float],
    version: str,
) -> Iterator[Metric]:
    """Yield what a scrape shows of the service's state.

    Args:
        skews: how far the clients' clocks are off.
        limits: which sets of labels may have series, by kind.
        successes: when each of `TASKS` last succeeded, Unix seconds.
        version: of this unlocker.
    """
    yield from _lock_gauges(snapshot)
    yield from _past_alert_gauges(snapshot, limits[PAST_ALERT])
    yield InfoMetricFamily("clustermutex_unlocker", "This unlocker.", {"version": version})
    yield from _store_gauges(snapshot)
    yield from _table_gauges(snapshot)
    yield gauge_by_label(
        "clustermutex_unlocker_last_success_timestamp_seconds",
        "When a task of this unlocker last succeeded; 0 is never.",
        "task",
        successes,
    )
    yield from _rate_limit_gauges(snapshot.rate_limit)
    yield from _clock_gauges(snapshot.clock_check)
    yield gauge_by_label(
        "clustermutex_client_clock_skew_seconds",
        "Our wall clock minus alive_at as its push arrived: how far the host's clock is behind "
        f"ours, the push's way included. The {MAX_LISTED} hosts that pushed last, within an hour.",
        "hostname",
        skews.all(limits[SKEWS]),
    )


def _lock_gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    yield gauge_by_label(
        "clustermutex_locks",
        "Locks that are held: ok; alert (past alert_at); overdue (to be removed); undecided "
        "(their stamps contradict what they say of themselves, or they need what this version "
        "does not know: never removed); broken (data that can't be read, never removed).",
        "state",
        snapshot.locks,
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_locks_kept",
        f"Locks whose auto_unlock_at passed more than {CARRIED_OVER_AFTER_S:.0f} s ago and that "
        "this unlocker does not remove yet, because it counts their whole time from when it first "
        "saw them.",
        snapshot.carried_over,
    )
    lines = list(snapshot.queue_lengths)
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
        "clustermutex_unlockers", "Unlockers with a sign of life.", snapshot.unlockers
    )


def _store_gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "clustermutex_unlocker_store_up",
        "Whether the store is reachable (1) or not (0).",
        float(snapshot.store_up),
    )
    yield GaugeMetricFamily(
        "clustermutex_store_restored_timestamp_seconds",
        "When the store was last said, or noticed, to be restored from a backup; 0 is never.",
        snapshot.restored.time if snapshot.restored else 0,
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_store_out_of_space",
        "Whether the store refused our last sign of life for lack of space (1) or not (0): "
        "then nobody can take a lock, and no lock is auto-unlocked.",
        float(snapshot.out_of_space),
    )
    yield gauge_by_label(
        "clustermutex_unlocker_store_server_votes",
        "Whether a server has a vote on each lock (1) or not (0), of a store whose servers "
        "vote: a majority must.",
        "server",
        {server: float(not why) for server, why in snapshot.votes.items()},
    )


def _table_gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "clustermutex_unlocker_picture_proven_timestamp_seconds",
        "When the watch was last seen to show all that the store had confirmed: it is made to "
        "show our own sign of life, every 3 s.",
        snapshot.proven_at,
    )
    yield CounterMetricFamily(
        "clustermutex_unlocker_table_loads",
        "How often all locks were read: at the start, at a resync, after a lost watch.",
        snapshot.loads,
    )
    yield CounterMetricFamily(
        "clustermutex_unlocker_watch_restarts",
        "How often the watch on the store broke and was to be opened again.",
        snapshot.watch_restarts,
    )


def _rate_limit_gauges(braking: RateLimitState) -> Iterator[Metric]:
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


def _clock_gauges(check: ClockCheck | None) -> Iterator[Metric]:
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


def _past_alert_gauges(snapshot: MetricsSnapshot, limit: SeriesLimit) -> Iterator[Metric]:
    alert, unlock, info, failing = families = _families()
    now, names = Now.read(), set[str]()
    unlisted = Counter(snapshot.unlisted)
    for item in snapshot.past_alert:
        holder, due = item.row.holder, item.verdict.due
        name, *who = labels = holder_labels(holder)
        # Two samples of one name, which two locks may look like, would end a whole scrape.
        if name in names or not limit.admit(labels, urgent=item.state == OVERDUE):
            unlisted[item.state] += 1
            continue
        names.add(name)
        if holder.name in snapshot.failing:
            failing.add_metric([name], 1)
        info.add_metric([name, *who], {})
        if holder.alert_at is not None:
            alert.add_metric([name], holder.alert_at)
        if holder.auto_unlock_at is not None and due != NEVER:
            counted = round(now.wall + due - now.monotonic)  # whole, so that it stays the same
            at = counted if item.row.found else holder.auto_unlock_at
            unlock.add_metric([name], at)
    yield from families
    yield gauge_by_label(
        "clustermutex_locks_unlisted",
        f"Locks past their alert that have no series of their own: beyond {MAX_LISTED}, or beyond "
        f"{NEW_AN_HOUR} new ones in an hour.",
        "state",
        unlisted,
    )


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, InfoMetricFamily, GaugeMetricFamily]:
    alert = GaugeMetricFamily(
        "clustermutex_lock_alert_timestamp_seconds",
        f"alert_at of a lock past it, the {MAX_LISTED} most urgent: overdue ones, those that only "
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
    return alert, unlock, info, failing
