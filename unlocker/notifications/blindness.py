"""Blindness: this unlocker could not do its work for a while, and people are notified of it."""

from __future__ import annotations

import time

from unlocker.notifications.event_messages import IS_BLIND, SEES, Event, blind_line, sees_line

BLIND_AFTER_S = 30.0
"""Not-ready seconds, less half of the ready seconds, from which on an unlocker is called blind: so
20 s not ready and then 20 s ready count as 10."""
_MAX_STEP_S = 10.0
"""Maximum of the time between two observations that is added."""


class BlindnessDetector:
    """Notices that this unlocker is blind (was not ready for a while), and that it works again.

    Not-ready time is added to a sum; half of the ready time is subtracted from it. Each unlocker
    notifies people of its own blindness, because the other unlockers may be out of reach.
    """

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._observed_at: float | None = None
        self._blind_for = 0.0
        self._blind: Event | None = None

    def observe(self, why: str | None, now: float) -> Event | None:
        """Return an event if blindness begins or ends, else None.

        Args:
            why: the reason why the unlocker is not ready; None: it is ready.
            now: the monotonic time.
        """
        # A process that was stopped is often ready soon after it continues.
        passed = 0.0 if self._observed_at is None else min(now - self._observed_at, _MAX_STEP_S)
        self._observed_at = now
        blind_for = self._blind_for + (passed if why else -passed / 2)
        self._blind_for = min(BLIND_AFTER_S, max(0.0, blind_for))
        if self._blind_for >= BLIND_AFTER_S and self._blind is None and why:
            self._blind = self._event(IS_BLIND, blind_line(self._identity, why), now)
            self._blind.is_current = lambda: self._blind is not None
            return self._blind
        if self._blind_for == 0.0 and self._blind is not None:
            was_sent, self._blind = self._blind.is_in_note or self._blind.sent_to, None
            if was_sent:
                return self._event(SEES, sees_line(self._identity), now)
        return None

    def _event(self, kind: str, line: str, now: float) -> Event:
        return Event(f"{self._identity}.{kind}.{now:.0f}", kind, line, time.time(), noticed=now)
