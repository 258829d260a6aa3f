"""Gauges, computed from memory: a scrape never asks the store.

Names with `clustermutex_unlocker_` are about this process; the others are about the cluster, so
that every replica shows the same and a query takes `max by`, not `sum`. Times are timestamps, not
ages: an age that is scraped once is wrong a second later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.service.metrics import gauge_by_label
from unlocker.deadlines import KEPT
from unlocker.metrics.clock_skew import Skews
from unlocker.metrics.labels import LISTED, PAST_ALERT, SKEWS
from unlocker.metrics.past_alert import past_alert_gauges
from unlocker.metrics.series_limit import SeriesLimit
from unlocker.metrics.snapshot import MetricsSnapshot
from unlocker.policy import ClockCheck
from unlocker.rate_limit import Braking


def gauges(
    snapshot: MetricsSnapshot,
    skews: Skews,
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
    yield from past_alert_gauges(snapshot, limits[PAST_ALERT])
    yield InfoMetricFamily("clustermutex_unlocker", "This unlocker.", {"version": version})
    yield from _store_gauges(snapshot)
    yield from _table_gauges(snapshot)
    yield gauge_by_label(
        "clustermutex_unlocker_last_success_timestamp_seconds",
        "When a task of this unlocker last succeeded; 0 is never.",
        "task",
        successes,
    )
    yield from _rate_limit_gauges(snapshot.braking)
    yield from _clock_gauges(snapshot.check)
    yield gauge_by_label(
        "clustermutex_client_clock_skew_seconds",
        "Our wall clock minus alive_at as its push arrived: how far the host's clock is behind "
        f"ours, the push's way included. The {LISTED} hosts that pushed last, within an hour.",
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
        f"Locks whose auto_unlock_at passed more than {KEPT:.0f} s ago and that this unlocker "
        "does not remove yet, because it counts their whole time from when it first saw them.",
        snapshot.kept,
    )
    lines = list(snapshot.lines)
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


def _rate_limit_gauges(braking: Braking) -> Iterator[Metric]:
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
