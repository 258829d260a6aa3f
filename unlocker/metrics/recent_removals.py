"""Recent auto-unlocks, with the holders that lost them, for the alert on auto-unlocks.

A counter has no names, and the lock's own series has ended by then. The names come from the removal
records in the store, so a restart loses nothing while its clock is trusted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.model.auto_unlock import AGREEMENT, ClockCheck
from lockclient.model.clocks import monotonic
from lockclient.model.removal import AUTO_UNLOCK, Removal
from unlocker.metrics.series import HOLDER_LABELS, MAX_LISTED, holder_labels

SHOWN_S: Final = 600.0
"""Seconds for which a removal is shown: longer than the alert rule looks back."""
COUNTED_S: Final = 300.0
"""Seconds for which a removal that is not shown is counted."""
MAX_COUNTED: Final = 10_000

_Key = tuple[str, str | None]


class RecentRemovals:
    """The locks that were auto-unlocked recently; several threads may use it.

    The newest are shown with the holder's name, from their records; the others are counted. A
    removal's age counts from when we learned of it, not by the remover's clock. A removal before
    our start has an age while our own clock is trusted, unless its record is from the future.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_at: OrderedDict[_Key, float] = OrderedDict()
        self._found: dict[_Key, float] = {}  # wall-clock times, by the removers' clocks

    def add(self, removals: Iterable[Removal], found: bool) -> None:
        """Add removals; `found`: their records are older than this process."""
        now = monotonic()
        with self._lock:
            for removal in removals:
                if removal.how == AUTO_UNLOCK and not found:
                    self._heard_at[_key(removal)] = now
                elif removal.how == AUTO_UNLOCK and removal.removed_at is not None:
                    self._found[_key(removal)] = removal.removed_at
            while len(self._heard_at) > MAX_COUNTED:
                self._heard_at.popitem(last=False)

    def gauges(self, newest: Iterable[Removal], check: ClockCheck | None) -> Iterator[Metric]:
        """Yield a gauge for each of these removals, and the number of the others.

        Args:
            newest: the newest first; at most as many as may be shown.
            check: the latest clock check.
        """
        family = GaugeMetricFamily(
            "clustermutex_lock_auto_unlocked_age_seconds",
            f"Seconds since a lock was auto-unlocked, up to {SHOWN_S:.0f} s, and whose it was.",
            labels=HOLDER_LABELS,
        )
        ages = self._ages(check)
        shown: dict[tuple[str, ...], float] = {}
        for removal in newest:
            if (age := ages.get(_key(removal))) is not None:
                # A process can lose one lock twice; two samples of one name end a whole scrape.
                labels = holder_labels(removal.holder)
                shown[labels] = min(age, shown.get(labels, age))
                del ages[_key(removal)]
        for labels, age in shown.items():
            family.add_metric(labels, age)
        yield family
        yield GaugeMetricFamily(
            "clustermutex_locks_auto_unlocked_unlisted",
            f"Locks auto-unlocked in the last {COUNTED_S:.0f} s that have no series of their own: "
            f"beyond the newest {MAX_LISTED}. At most {MAX_COUNTED} are counted.",
            sum(age < COUNTED_S for age in ages.values()),
        )

    def _ages(self, check: ClockCheck | None) -> dict[_Key, float]:
        now = monotonic()
        with self._lock:
            ages = {key: now - at for key, at in self._heard_at.items()}
            if check is not None and check.trusted:
                for key, wall in self._found.items():
                    age = now - check.by_own_clock(wall)
                    if age > -AGREEMENT:
                        ages.setdefault(key, max(0.0, age))
        return {key: age for key, age in ages.items() if age < SHOWN_S}


def _key(removal: Removal) -> _Key:
    return removal.holder.name, removal.holder.uuid
