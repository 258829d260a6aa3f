"""Recent removals: who lost a lock a moment ago, which an alert on an auto-unlock has to name.

A counter can't say it, and the lock's own series are gone by then. It is read from the removal
records in the store, so that every replica shows the same and one that starts again loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.model.removal import AUTO_UNLOCK, Removal
from unlocker.metrics.series_limit import NEW_AN_HOUR, SeriesLimit, holder_labels

SHOWN_S = 600.0
"""Seconds that a removal is shown: longer than an alert looks back, so that none slips through."""


def recent_removal_gauges(removals: Iterable[Removal], limit: SeriesLimit) -> Iterator[Metric]:
    """Yield a gauge for each lock that was auto-unlocked lately, if `limit` says that it may be.

    Args:
        removals: the newest, the newest first, not more than may be shown.
    """
    family = GaugeMetricFamily(
        "clustermutex_lock_auto_unlocked_timestamp_seconds",
        f"removed_at of a lock auto-unlocked in the last {SHOWN_S:.0f} s, and whose it was.",
        labels=["name", "hostname", "pid", "reason"],
    )
    since = time.time() - SHOWN_S
    newest: dict[tuple[str, ...], float] = {}
    for removal in removals:
        at = removal.removed_at
        if removal.how == AUTO_UNLOCK and at is not None and at > since:
            # A process can lose one lock twice; two samples of one name end a whole scrape.
            newest.setdefault(holder_labels(removal.holder), at)
    shown = [labels for labels in newest if limit.admit(labels)]
    for labels in shown:
        family.add_metric(labels, newest[labels])
    yield family
    yield GaugeMetricFamily(
        "clustermutex_locks_auto_unlocked_unlisted",
        f"Such locks that have no series of their own: beyond {NEW_AN_HOUR} new ones in an hour.",
        len(newest) - len(shown),
    )
