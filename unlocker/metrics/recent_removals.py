"""Recent auto-unlocks, with the holders that lost them, for the alert on auto-unlocks.

A counter has no names, and the lock's own series has ended by then. The names come from the removal
records in the store, so all replicas show the same, and a restart loses nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.model.clocks import monotonic
from lockclient.model.removal import AUTO_UNLOCK, Removal
from unlocker.metrics.series import HOLDER_LABELS, MAX_LISTED, holder_labels

SHOWN_S: Final = 600.0
"""Seconds for which a removal is shown: longer than the alert rule looks back."""
COUNTED_S: Final = 300.0
"""Seconds for which a removal that is not shown is counted. Less than `SHOWN_S`, so that a small
difference of clocks does not count a removal that was shown until now."""
MAX_COUNTED: Final = 10_000

_Key = tuple[str, str | None]


class RecentRemovals:
    """The locks that were auto-unlocked recently; several threads may use it.

    The newest are shown with the holder's name, from their records. The others are counted by the
    time at which we learned of them, not by the remover's clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_at: OrderedDict[_Key, float] = OrderedDict()

    def add(self, removals: Iterable[Removal], found: bool) -> None:
        """Add removals; `found`: their records are older than this process."""
        now, wall = monotonic(), time.time()
        with self._lock:
            for removal in removals:
                age = max(0.0, wall - (removal.removed_at or 0.0)) if found else 0.0
                if removal.how == AUTO_UNLOCK and age < COUNTED_S:
                    self._heard_at[_key(removal)] = now - age
            while len(self._heard_at) > MAX_COUNTED:
                self._heard_at.popitem(last=False)

    def gauges(self, newest: Iterable[Removal]) -> Iterator[Metric]:
        """Yield a gauge for each of these removals, and the number of the others.

        Args:
            newest: the newest first; at most as many as may be shown.
        """
        family = GaugeMetricFamily(
            "clustermutex_lock_auto_unlocked_timestamp_seconds",
            f"removed_at of a lock auto-unlocked in the last {SHOWN_S:.0f} s, and whose it was.",
            labels=HOLDER_LABELS,
        )
        since = time.time() - SHOWN_S
        found: dict[tuple[str, ...], list[Removal]] = {}
        for removal in newest:
            at = removal.removed_at
            if removal.how == AUTO_UNLOCK and at is not None and at > since:
                # A process can lose one lock twice; two samples of one name end a whole scrape.
                found.setdefault(holder_labels(removal.holder), []).append(removal)
        shown: set[_Key] = set()
        for labels, removals in found.items():
            family.add_metric(labels, removals[0].removed_at or 0.0)
            shown.update(map(_key, removals))
        yield family
        yield GaugeMetricFamily(
            "clustermutex_locks_auto_unlocked_unlisted",
            f"Locks auto-unlocked in the last {COUNTED_S:.0f} s that have no series of their own: "
            f"beyond the newest {MAX_LISTED}. At most {MAX_COUNTED} are counted.",
            self._count_without(shown),
        )

    def _count_without(self, shown: set[_Key]) -> int:
        since = monotonic() - COUNTED_S
        with self._lock:
            return sum(at > since and key not in shown for key, at in self._heard_at.items())


def _key(removal: Removal) -> _Key:
    return removal.holder.name, removal.holder.uuid
