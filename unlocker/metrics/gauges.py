"""Gauges, computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process. The others are about the cluster: all
replicas export the same, so a query takes `max by`, not `sum`.

Times are ages in seconds by our monotonic clock, so an alert rule compares no two hosts' clocks.
Prometheus advises timestamps, because an age that a stuck loop writes stops growing; these are
computed at the scrape and grow. What happened before our start has an age only if our wall clock is
trusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.model.auto_unlock import NEVER, ClockCheck
from lockclient.model.clocks import monotonic
from lockclient.overview.live_table import Table
from lockclient.service.metrics import gauge_by_label
from unlocker.deadlines import CARRIED_OVER_AFTER_S, Deadlines, PastAlert
from unlocker.metrics.series import MAX_LISTED, holders_info, unique
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
        "saw them. Absent while our clock is not trusted.",
        deadlines.carried_over(monotonic()),
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
    yield GaugeMetricFamily(
        "clustermutex_unlocker_clock_offset_seconds",
        "How far the members' wall clocks, by their median, are ahead of ours.",
        None if check is None else check.offset,
    )


def past_alert_gauges(past_alert: PastAlert, failing: Collection[str]) -> Iterator[Metric]:
    """Yield the series of locks past their alert, and the number of those without one.

    Args:
        past_alert: the locks.
        failing: names of locks whose removal failed and is retried.
    """
    now = monotonic()
    listed = dict(unique((item.row.holder, item) for item in past_alert.listed))
    by_name = {labels[0]: item for labels, item in listed.items()}
    yield gauge_by_label(
        "clustermutex_lock_past_alert_seconds",
        f"For how long a lock has been past its alert, the {MAX_LISTED} most urgent: overdue ones, "
        "those that only a person can free, those that have been for longest.",
        "name",
        {name: now - item.alerted_at for name, item in by_name.items()},
    )
    yield gauge_by_label(
        "clustermutex_lock_overdue_seconds",
        "For how long this unlocker has been due to remove a lock past its alert; negative: the "
        "time that is left.",
        "name",
        {name: now - item.times.due for name, item in by_name.items() if item.times.due != NEVER},
    )
    yield holders_info("clustermutex_lock", "Who holds a lock past its alert.", listed)
    yield gauge_by_label(
        "clustermutex_unlocker_removal_failing",
        "A lock past its alert that this unlocker has not been able to remove yet; it keeps "
        "retrying.",
        "name",
        {name: 1 for name, item in by_name.items() if item.row.holder.name in failing},
    )
    unlisted = Counter(past_alert.unlisted) + Counter(lock.state for lock in past_alert.listed)
    unlisted.subtract(item.state for item in by_name.values())
    yield gauge_by_label(
        "clustermutex_locks_unlisted",
        f"Locks past their alert that have no series of their own: beyond {MAX_LISTED}.",
        "state",
        {state: unlisted[state] for state in past_alert.unlisted},
    )
