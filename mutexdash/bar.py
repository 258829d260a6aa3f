"""A lock's stamps as a small picture: from taken to auto-unlock, a notch at the alert."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.record import Holder
from mutexdash.text import utc

_ROOM_AFTER_ALERT = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """The whole width is `start` to `end` (Unix seconds); `notch` is from 0 to 1.

    `open` means that there is no auto-unlock: the width then leaves some room after the alert.
    """

    start: float
    end: float
    notch: float
    open: bool
    text: str

    def filled(self, wall: float) -> float:
        """Return how much of the width has passed at `wall`, from 0 to 1."""
        return _within((wall - self.start) / (self.end - self.start))


def bar_of(holder: Holder) -> Bar | None:
    """Return a lock's bar; None if its stamps do not make one."""
    start = holder.alive_at if holder.locked_at is None else holder.locked_at
    alert, end = holder.alert_at, holder.auto_unlock_at
    if start is None or alert is None:
        return None
    text = f"Taken {utc(start)}, alert {utc(alert)}, "
    text += "never unlocked by itself" if end is None else f"auto-unlock {utc(end)}"
    whole = (alert - start) * _ROOM_AFTER_ALERT if end is None else end - start
    if whole <= 0:
        return None
    return Bar(start, start + whole, _within((alert - start) / whole), end is None, text)


def _within(part: float) -> float:
    return min(1.0, max(0.0, part))
