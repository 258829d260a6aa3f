"""Counts what happens in a minute by key, like a user or a network, against limits."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from lockclient.model.clocks import monotonic

_WINDOW_S = 60.0


class RateLimits:
    """Counts the events of the last minute by key; several threads may use it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    def full(self, limit: int, *key: str) -> bool:
        """Return whether the last minute had `limit` events of this key."""
        with self._lock:
            return self._full(limit, key)

    def hit(self, limit: int, *key: str) -> bool:
        """Count an event if it is within the limit; return whether it was."""
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
        return sum(at > since for at in self._times.get(key, ())) >= limit
