"""Locks that are held for longer than they say (`max_hold`), however often they are pushed.

A holder that pushes in the background, or in a loop that never ends, is past no alert. Where it has
said how long it holds the lock at most, that is over by its own clock, from when it got the lock.
Nothing is removed for it: people are alerted, and only on locks that say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric

from lockclient.model.holder import Holder
from lockclient.overview.rows import Transition
from unlocker.metrics.series_limit import (
    HOLDER_LABELS,
    MAX_LISTED,
    SeriesLimit,
    unlisted_gauge,
)


@dataclass(eq=False)
class HeldTooLong:
    """The locks with a `max_hold`; several threads may use it.

    Attributes:
        limit: says which of them may have series.
    """

    limit: SeriesLimit
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _bounded: dict[str, Holder] = field(default_factory=dict)

    def update(self, changes: Iterable[Transition]) -> None:
        """Take in what the table brought."""
        with self._lock:
            for change in changes:
                after = change.after
                if after is not None and after.held and after.holder.too_long_at is not None:
                    self._bounded[change.name] = after.holder
                else:
                    self._bounded.pop(change.name, None)

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauges of what is held too long now."""
        now = time.time()
        with self._lock:
            bounded = list(self._bounded.values())
        stamped = [(holder.too_long_at or 0.0, holder) for holder in bounded]
        late = [(at, holder) for at, holder in stamped if at < now]
        yield GaugeMetricFamily(
            "clustermutex_locks_held_too_long",
            "Locks that are held for longer than their max_hold.",
            len(late),
        )
        since = GaugeMetricFamily(
            "clustermutex_lock_held_too_long_timestamp_seconds",
            f"When the max_hold of such a lock was over, the {MAX_LISTED} that were first.",
            labels=["name"],
        )
        info = InfoMetricFamily(
            "clustermutex_lock_held_too_long",
            "Who holds such a lock.",
            labels=HOLDER_LABELS,
        )
        first = nsmallest(MAX_LISTED, late, key=lambda item: item[0])
        listed = list(self.limit.admitted((holder, at) for at, holder in first))
        for labels, at in listed:
            since.add_metric(labels[:1], at)
            info.add_metric(labels, {})
        yield from (since, info)
        yield unlisted_gauge("clustermutex_locks_held_too_long_unlisted", len(late) - len(listed))
