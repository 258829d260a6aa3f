"""Moments, deadlines and stamps. All durations are seconds.

Deadlines use a monotonic clock that also counts while the machine is suspended, if the system has
one, because a lock's time passes on other machines meanwhile. Stamps are wall-clock times (UTC Unix
seconds).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from lockclient.text.durations import parse_duration, period

monotonic = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Now(NamedTuple):
    """One moment on both clocks."""

    monotonic: float
    wall: float

    @classmethod
    def read(cls) -> Now:
        return tuple.__new__(cls, (monotonic(), time.time()))  # in C, unlike `cls(…)`


class Deadline(float):
    """A moment on the monotonic clock by which a call must be over; `inf` means never."""

    _own: Deadline

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline that many seconds from now; None: never."""
        return cls(math.inf if seconds is None else monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds that are left, never less than 0."""
        return max(0.0, self - monotonic())

    def expired(self) -> bool:
        """Return whether the moment has passed."""
        return monotonic() >= self

    @property
    def own(self) -> Deadline:
        """The caller's deadline, from which `within` made this one."""
        return getattr(self, "_own", self)

    def within(self, at_least: float, at_most: float) -> Deadline:
        """Return this deadline, moved to at least and at most so many seconds from now."""
        now = monotonic()
        moved = Deadline(min(max(self, now + at_least), now + at_most))
        moved._own = self
        return moved


class Stamps(NamedTuple):
    """The times that a heartbeat writes, in Unix seconds; no `auto_unlock_at`: never removed."""

    alert_at: float
    auto_unlock_at: float | None


AUTO: Final = "auto"
Duration = float | timedelta | str
"""Seconds, or a text that the command takes, like "5m"."""
AutoUnlockAfter = Duration | None
"""None: never; `AUTO`, the default: see `Runtime.of`."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A holder's expected and longest time without a heartbeat."""

    expected: float
    auto_unlock: float | None
    push_interval: float = field(init=False)
    """Seconds after a push within which `alive()` need not push again."""

    @classmethod
    def of(cls, expected: Duration, auto_unlock: AutoUnlockAfter = AUTO) -> Runtime:
        """Return a runtime; `AUTO` is three times the expected runtime."""
        seconds = require_seconds("expected_runtime", expected)
        if auto_unlock is None:
            return cls(seconds, None)
        if auto_unlock == AUTO:
            if seconds == MAX_DURATION_S:
                raise ValueError(
                    f"expected_runtime must be less than {period(MAX_DURATION_S)}, unless "
                    "auto_unlock_after is None."
                )
            return cls(seconds, min(3 * seconds, MAX_DURATION_S))
        return cls(seconds, require_seconds("auto_unlock_after", auto_unlock))

    def __post_init__(self) -> None:
        require_seconds("expected_runtime", self.expected)
        object.__setattr__(self, "push_interval", min(1.0, self.expected / 50))
        if self.auto_unlock is None:
            return
        require_seconds("auto_unlock_after", self.auto_unlock)
        if self.auto_unlock <= self.expected:
            raise ValueError(
                f"auto_unlock_after ({period(self.auto_unlock)}) must exceed expected_runtime "
                f"({period(self.expected)}): the alert comes before the unlock."
            )

    def stamps(self, wall: float) -> Stamps:
        unlock_at = None if self.auto_unlock is None else wall + self.auto_unlock
        return tuple.__new__(Stamps, (wall + self.expected, unlock_at))  # as in `Now.read`


MAX_DURATION_S = 10 * 365 * 86400.0
"""The longest duration, ten years: more is usually a wrong unit, like milliseconds."""

MAX_STAMP = 253_402_300_799
"""The last stamp that can be shown: the end of the year 9999, in Unix seconds."""


def require_seconds(what: str, value: object) -> float:
    value = to_seconds(what, value)
    if not 0 < value <= MAX_DURATION_S:
        raise ValueError(f"{what} must be more than 0 s and at most ten years, not {value!r}.")
    return value


def to_seconds(what: str, value: object, otherwise: str = "") -> float:
    """Return the seconds of a number, a `timedelta` or text like "5m", else raise ValueError."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f'{what} must be a number of seconds, a timedelta or text like "5m"{otherwise}, not '
            f"{value!r}."
        )
    return value


def require_timeout(what: str, value: Duration | None) -> float | None:
    if value is None:
        return None
    value = to_seconds(what, value, " or None")
    if not 0 <= value <= MAX_DURATION_S:
        raise ValueError(f"{what} must be from 0 s to ten years, or None, not {value!r}.")
    return value


format_stamp = "{:.3f}".format
"""Write a wall-clock time as the store has it: decimal, with milliseconds."""


def parse_stamp(text: str) -> float:
    """Read plain decimal Unix seconds up to the year 9999, else raise ValueError."""
    if not text.replace(".", "", 1).isdecimal() or not text.isascii():
        raise ValueError(f"{text[:40]!r} is no decimal number of Unix seconds")
    value = float(text)
    if value > MAX_STAMP:
        raise ValueError(f"{text[:40]!r} is after the year 9999")
    return value
