"""The series of locks past their alert: which lock, who holds it, and when it is removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.clocks import Now
from lockclient.model.holder import OVERDUE
from lockclient.service.metrics import gauge_by_label
from unlocker.metrics.labels import LISTED, labels_of
from unlocker.metrics.series_limit import NEW, SeriesLimit
from unlocker.metrics.snapshot import MetricsSnapshot
from unlocker.policy import NEVER


def past_alert_gauges(snapshot: MetricsSnapshot, limit: SeriesLimit) -> Iterator[Metric]:
    """Yield the series of the most urgent locks past their alert, and how many have none."""
    alert, unlock, info, failing = families = _families()
    now, names = Now.read(), set[str]()
    unlisted = Counter(snapshot.unlisted)
    for item in snapshot.past_alert:
        holder, due = item.row.holder, item.verdict.due
        name, *who = labels = labels_of(holder)
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
        f"Locks past their alert that have no series of their own: beyond {LISTED}, or beyond "
        f"{NEW} new ones in an hour.",
        "state",
        unlisted,
    )


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, InfoMetricFamily, GaugeMetricFamily]:
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
    return alert, unlock, info, failing
