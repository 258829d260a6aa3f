"""The rate limit of removals: when very many locks are due at once, most likely their holders live
and their network or their clocks do not.

In any minute no more than `limit` auto-unlocks pass: the larger of `--max-removals` and a fifth of
all locks (those removed within that minute included). What is due beyond that waits for its turn,
so the limit passes by itself: that many pass each minute, and a lock whose holder comes back and
pushes is not due any more. A person who knows better runs one more unlocker for a while, with
`--max-removals off`, or removes single locks by `clustermutex force-unlock`, which is not counted.

Why N unlockers do not remove N times the limit. Each counts every auto-unlock that the table of all
locks tells, whoever did it, from when it is told: never earlier than it happened, so it stays in
the count for its minute. And each waits after a removal of its own, at revision R, until the table
has told it (`Remover` does that): all removals up to R are then in its count, as they are told in
the order of revisions. Let the limit be reached at revision L. Another unlocker can be at most one
removal behind: one that it began with a count from before L. The next it begins with a count that
includes L, that is, not at all. So N unlockers remove at most limit + N - 1 a minute, each of those
more than once only on paper: a transaction that finds the lock gone removes nothing.
(Where a store is looked at, each looks after a removal of its own, and R is that look: it shows all
that was removed before it began.)

What can add to that: one for each request whose answer was lost (counted when given up, by who
sent it); and an etcd so full that records can't be written, when each unlocker knows only its own:
N times the limit. One that starts counts the records of the last minute, by their removers' clocks.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockclient.model.clocks import monotonic

log = logging.getLogger(__name__)

WINDOW_S = 60.0
"""Seconds in which `--max-removals` pass. The limit disengages when for as long nothing was kept
back, so that a scrape once a minute does not miss it, and it is told once and not ten times."""

SHARE_OF_LOCKS = 0.2
"""The part of all locks that may be removed in a minute, if that is more."""

Key = tuple[str, str | None]
"""A lock's name and its holder's uuid."""


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """The state now: `limit` is what passes in a minute, infinite if there is none."""

    engaged: bool
    withheld: int
    limit: float


class RateLimit:
    """Counts removals, and tells when it is enough; several threads may use it.

    Args:
        max_removals: removals in a minute that always pass; None: no limit.
        clock: a monotonic one; None: `monotonic`.
    """

    def __init__(self, max_removals: int | None, clock: Callable[[], float] | None = None) -> None:
        self._max_removals = max_removals
        self._clock = clock or monotonic
        self._lock = threading.Lock()
        self._counted: OrderedDict[Key, float] = OrderedDict()  # → monotonic, the oldest first
        self._withheld = 0
        self._engaged_until = -math.inf
        self._logged = False

    @property
    def unlimited(self) -> bool:
        """Whether everything passes."""
        return self._max_removals is None

    def count(self, removals: Iterable[Key]) -> None:
        """Count removals that were made, or may have been, just now; each lock counts once."""
        with self._lock:
            now = self._clock()
            for key in removals:
                self._counted[key] = now
                self._counted.move_to_end(key)
            self._forget(now)

    def is_full(self, held: int) -> bool:
        """Tell whether no more may be removed now; `held` is how many locks there are."""
        with self._lock:
            self._forget(self._clock())
            return len(self._counted) >= self._limit(held)

    def withhold(self, number: int, held: int) -> None:
        """Take note of how many locks that are due were kept back by the run that ends now."""
        now = self._clock()
        with self._lock:
            self._withheld = number
            limit = self._limit(held)
            if number:
                self._engaged_until = now + WINDOW_S
        engaged = self.engaged()
        if engaged and not self._logged:
            log.warning(
                "The rate limit holds locks back: %d are due beyond the %g that may be removed in "
                "a minute (the larger of --max-removals and %g %% of all locks), and stay for "
                "now. So many at once usually means a broken network or clock, not dead "
                "holders. First check whether the holders are alive. If they are, fix the "
                "network or clock; their heartbeats then keep the locks. If they are dead, "
                "either wait (some are removed each minute) or start one more unlocker with "
                "--max-removals off to remove them all at once.",
                number,
                limit,
                100 * SHARE_OF_LOCKS,
                extra={"event": "brake-on"},
            )
        elif self._logged and not engaged:
            log.warning(
                "The rate limit holds nothing back any more: for a minute no lock was kept back.",
                extra={"event": "brake-off"},
            )
        self._logged = engaged

    def engaged(self) -> bool:
        """Tell whether locks that are due are kept back, or were within `WINDOW_S`."""
        return self._clock() < self._engaged_until

    def state(self, held: int) -> RateLimitState:
        """Return what the metrics show."""
        with self._lock:
            self._forget(self._clock())
            return RateLimitState(self.engaged(), self._withheld, self._limit(held))

    def _limit(self, held: int) -> float:
        if self._max_removals is None:
            return math.inf
        return max(self._max_removals, math.floor(SHARE_OF_LOCKS * (held + len(self._counted))))

    def _forget(self, now: float) -> None:
        while self._counted and next(iter(self._counted.values())) <= now - WINDOW_S:
            self._counted.popitem(last=False)
