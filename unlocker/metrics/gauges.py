"""Gauges, computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process. The others are about the cluster: all
replicas export the same, so a query takes `max by`, not `sum`. Times are timestamps, as an age is
wrong a second after the scrape.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.auto_unlock import NEVER, ClockCheck
from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.overview.live_table import Table
from lockclient.service.metrics import gauge_by_label
from unlocker.deadlines import CARRIED_OVER_AFTER_S, Deadlines, PastAlert
from unlocker.metrics.series import HOLDER_LABELS, MAX_LISTED, series, unique
from unlocker.rate_limit import RateLimitState


def lock_gauges(deadlines: Deadlines, table: Table, thin: int) -> Iterator[Metric]:
    """Yield the numbers of locks, waiters and unlockers; `thin`: locks on few servers."""
    yield gauge_by_label(
        "clustermutex_locks",
        "Locks that are held: ok; alert (past alert_at); overdue (to be removed); undecided "
        "(a timestamp was moved or deleted, or their format is newer than this version's: "
        "never removed); broken (data that can't be read, never removed).",
        "state",
        deadlines.counts(),
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_locks_kept",
        f"Locks whose auto_unlock_at passed more than {CARRIED_OVER_AFTER_S:.0f} s ago and that "
        "this unlocker does not remove yet, because it counts their whole time from when it first "
        "saw them.",
        deadlines.carried_over(time.time()),
    )
    queues = list(table.waiters().values())
    yield GaugeMetricFamily(
        "clustermutex_waiters",
        "Clients that wait in a queue; 0 in a store without queues.",
        sum(queues),
    )
    yield GaugeMetricFamily(
        "clustermutex_longest_queue_waiters",
        "Clients waiting in the longest queue for one lock.",
        max(queues, default=0),
    )
    yield GaugeMetricFamily(
        "clustermutex_unlockers", "Unlockers with a recent heartbeat.", len(table.unlockers())
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_locks_on_few_servers",
        "Held locks that are missing on some servers of a voting store: a server that "
        "lost them gets them back with their holders' next heartbeats.",
        thin,
    )


def rate_limit_gauges(state: RateLimitState) -> Iterator[Metric]:
    """Yield the state of the rate limit."""
    yield GaugeMetricFamily(
        "clustermutex_unlocker_rate_limit_engaged",
        "Whether due locks are held back because of --max-removals, or were within the last "
        "minute (1), or not (0).",
        float(state.engaged),
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_removals_withheld",
        "Due locks that are held back because of --max-removals.",
        state.withheld,
    )
    yield GaugeMetricFamily(
        "clustermutex_unlocker_removals_limit",
        "Auto-unlocks that all unlockers together may make in a minute; infinite with "
        "--max-removals off.",
        state.limit,
    )


def clock_gauges(check: ClockCheck | None) -> Iterator[Metric]:
    """Yield the result of the last clock check."""
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


def past_alert_gauges(past_alert: PastAlert, failing: Collection[str]) -> Iterator[Metric]:
    """Yield the series of locks past their alert, and the number of those without one.

    Args:
        past_alert: the locks.
        failing: names of locks whose removal failed and is retried.
    """
    alert, unlock, info, refused = families = _families()
    now = Now.read()
    unlisted = Counter(past_alert.unlisted) + Counter(lock.state for lock in past_alert.listed)
    for labels, item in unique((item.row.holder, item) for item in past_alert.listed):
        holder, due = item.row.holder, item.times.due
        unlisted[item.state] -= 1
        if holder.name in failing:
            refused.add_metric(labels[:1], 1)
        info.add_metric(labels, {})
        if holder.alert_at is not None:
            alert.add_metric(labels[:1], holder.alert_at)
        if holder.auto_unlock_at is not None and due != NEVER:
            # Rounded, so that each scrape gives the same.
            counted = round(now.wall + due - now.monotonic)
            at = counted if item.row.found else holder.auto_unlock_at
            unlock.add_metric(labels[:1], at)
    yield from families
    yield gauge_by_label(
        "clustermutex_locks_unlisted",
        f"Locks past their alert that have no series of their own: beyond {MAX_LISTED}.",
        "state",
        {state: unlisted[state] for state in past_alert.unlisted},
    )


def held_too_long_gauges(found: Sequence[tuple[Holder, float]]) -> Iterator[Metric]:
    """Yield gauges of `Deadlines.held_too_long`, by the holders' clocks."""
    yield GaugeMetricFamily(
        "clustermutex_locks_held_too_long",
        "Locks that are held for longer than their max_hold.",
        len(found),
    )
    yield from series(
        "held_too_long",
        "When the max_hold of such a lock was over, the ones that were first.",
        found,
        "Who holds such a lock.",
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
        "When a lock past its alert is to be removed: its auto_unlock_at, or, for a lock "
        "that this unlocker found at its start, a whole auto_unlock_after later.",
        labels=["name"],
    )
    info = InfoMetricFamily(
        "clustermutex_lock",
        "Who holds a lock past its alert.",
        labels=HOLDER_LABELS,
    )
    refused = GaugeMetricFamily(
        "clustermutex_unlocker_removal_failing",
        "A lock past its alert that this unlocker has not been able to remove yet; it keeps "
        "retrying.",
        labels=["name"],
    )
    return alert, unlock, info, refused
