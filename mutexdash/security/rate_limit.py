"""Rate limits a minute, by user, address or network."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from lockclient.model.clocks import monotonic

_WINDOW_S = 60.0


class RateLimits:
    """Counts events of the last minute by key; older ones are forgotten."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    def full(self, limit: int, *key: str) -> bool:
        """Tell whether it has happened as often as the limit."""
        with self._lock:
            return self._full(limit, key)

    def hit(self, limit: int, *key: str) -> bool:
        """Count one if it is within the limit; tell whether it was."""
        with self._lock:
            if self._full(limit, key):
                return False
            self._times.setdefault(key, deque(maxlen=limit)).append(self._clock())
            self._times.move_to_end(key)
        return True

    def _full(self, limit: int, key: tuple[str, ...]) -> bool:
        since = self._clock() - _WINDOW_S
        while self._times:
            oldest, times = next(iter(self._times.items()))
            if times[-1] > since:  # and so are those that follow
                break
            del self._times[oldest]
        return sum(moment > since for moment in self._times.get(key, ())) >= limit
