"""The rate limit of removals.

If very many locks are due at once, most likely their holders are alive and their network or their
clocks are broken. So in any minute at most `limit` auto-unlocks pass: the larger of
`--max-removals` and a fifth of all locks, those removed in that minute included. The other due
locks wait, and pass in the following minutes; a lock that gets a heartbeat meanwhile is no longer
due. A person who knows that the holders are dead starts one more unlocker with
`--max-removals off`, or removes single locks by `clustermutex force-unlock`, which is not counted.

Why N unlockers do not remove N times the limit.

1. Each unlocker counts every auto-unlock that its table shows, also those of other unlockers, from
   the time when the table shows it. That is never before it happened, so it is counted for at least
   a minute.
2. After each removal of its own, at revision R, an unlocker waits until its table shows it
   (`Remover` waits). The table shows removals in the order of revisions, so all removals up to R
   are then counted.
3. Suppose that the limit is reached at revision L. Another unlocker may have begun one removal with
   a count from before L. By step 2, it begins the next with a count that includes L: not at all.

So N unlockers remove at most limit + N - 1 locks a minute. (A polled store shows everything up to
the beginning of the poll; an unlocker polls after each removal, and R is that poll.)

Beyond that: one removal for each request whose answer was lost, which its sender counts when it
gives up. If etcd is so full that no records can be written, each unlocker knows only its own
removals: N times the limit. An unlocker that starts counts the records of the last minute by the
removers' clocks.
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
"""Seconds in which `--max-removals` pass. The limit disengages after this time without a lock that
was held back, so that a scrape once a minute sees it and people are notified once."""

SHARE_OF_LOCKS = 0.2
"""Share of all locks that may be removed in a minute, if that is more."""

Key = tuple[str, str | None]
"""A lock's name and its holder's uuid."""


@dataclass(frozen=True, slots=True)
class RateLimitState:
    """The state now; `limit` is the number of removals in a minute, infinite without a limit."""

    engaged: bool
    withheld: int
    limit: float


class RateLimit:
    """Counts removals; several threads may use it.

    Args:
        max_removals: removals in a minute that always pass; None: no limit.
        clock: returns monotonic seconds; None: `monotonic`.
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
        """True if there is no limit."""
        return self._max_removals is None

    def count(self, removals: Iterable[Key]) -> None:
        """Count removals that have just happened, or may have; each lock counts once."""
        with self._lock:
            now = self._clock()
            for key in removals:
                self._counted[key] = now
                self._counted.move_to_end(key)
            self._forget(now)

    def is_full(self, held: int) -> bool:
        """Return whether no more may be removed now; `held` is the number of locks."""
        with self._lock:
            self._forget(self._clock())
            return len(self._counted) >= self._limit(held)

    def withhold(self, number: int, held: int) -> None:
        """Note the number of due locks that the run that ends now has held back."""
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
                "The rate limit is off again: for a minute no lock was held back.",
                extra={"event": "brake-off"},
            )
        self._logged = engaged

    def engaged(self) -> bool:
        """Return whether due locks are held back, or were within `WINDOW_S`."""
        return self._clock() < self._engaged_until

    def state(self, held: int) -> RateLimitState:
        """Return the state for the metrics."""
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
