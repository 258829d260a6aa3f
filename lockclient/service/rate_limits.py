"""Counts what happens in a minute by key, like a user or a network, against limits."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lockclient.model.clocks import monotonic

_WINDOW_S = 60.0

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One counted event."""

    at: float
    keys: Collection[_Key]


class RateLimits:
    """Counts the events of the last minute by key; several threads may use it.

    An event is counted before its outcome is known, in one step with the check of its limits, and
    taken back if the outcome does not count. So simultaneous requests can't pass a limit.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._events: OrderedDict[Event, None] = OrderedDict()  # the oldest first
        self._counts: Counter[_Key] = Counter()

    def hit(self, limits: Mapping[_Key, int]) -> Event | None:
        """Count an event by all these keys and return it; None if one is at its limit."""
        with self._lock:
            now = self._clock()
            while self._events and (oldest := next(iter(self._events))).at <= now - _WINDOW_S:
                self._forget(oldest)
            if any(self._counts[key] >= limit for key, limit in limits.items()):
                return None
            event = Event(now, tuple(limits))
            self._events[event] = None
            self._counts.update(event.keys)
        return event

    def take_back(self, event: Event) -> None:
        """Stop counting an event."""
        with self._lock:
            if event in self._events:
                self._forget(event)

    def _forget(self, event: Event) -> None:
        del self._events[event]
        self._counts.subtract(event.keys)
        for key in event.keys:
            if not self._counts[key]:
                del self._counts[key]
