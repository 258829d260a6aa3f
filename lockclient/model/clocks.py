"""Moments, deadlines and stamps. All durations are seconds.

Deadlines live on a monotonic clock that goes on while the machine is suspended, where there is one:
a lock's time runs out on other machines meanwhile. Stamps are wall-clock times (UTC Unix seconds).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple, Protocol

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

    __slots__ = ()

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline that many seconds from now; None is never."""
        return cls(math.inf if seconds is None else monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds that are left, never less than 0."""
        return max(0.0, self - monotonic())

    def expired(self) -> bool:
        """Tell whether the moment has passed."""
        return monotonic() >= self

    @property
    def own(self) -> Deadline:
        """The caller's own deadline, of which `within` made this one."""
        return self

    def within(self, least: float, most: float) -> Deadline:
        """Return this deadline, but not sooner and not later than so many seconds from now."""
        now = monotonic()
        patience = _Patience(min(max(self, now + least), now + most))
        patience.asked_for = self
        return patience


class _Patience(Deadline):
    """A deadline that was moved, and the one that it was made from."""

    __slots__ = ("asked_for",)

    asked_for: Deadline

    @property
    def own(self) -> Deadline:
        return self.asked_for


class Stamps(NamedTuple):
    """What a heartbeat writes, in Unix seconds; without `auto_unlock_at` no unlocker removes it."""

    alert_at: float
    auto_unlock_at: float | None


AUTO: Final = "auto"
Duration = float | timedelta | str
"""Seconds, or text as the command takes it, like "5m"."""
AutoUnlockAfter = Duration | None
"""None: never; `AUTO`, where nothing is said: see `Runtime.of`."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How long a holder expects to go without a heartbeat, and how long at most."""

    expected: float
    auto_unlock: float | None
    push_interval: float = field(init=False)
    """Seconds after a push within which `alive()` need not push again."""

    @classmethod
    def of(cls, expected: Duration, auto_unlock: AutoUnlockAfter = AUTO) -> Runtime:
        """Return one; "auto" is three times the expected runtime."""
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
"""The longest duration taken, ten years: more is a unit gone wrong (milliseconds, say)."""

MAX_STAMP = 253_402_300_799
"""The last stamp that can be shown, the end of the year 9999, in Unix seconds."""


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
"""Write a wall-clock time as it stands in the store: decimal, with milliseconds."""


def parse_stamp(text: str) -> float:
    """Read plain decimal Unix seconds up to the year 9999, else raise ValueError."""
    if not text.replace(".", "", 1).isdecimal() or not text.isascii():
        raise ValueError(f"{text[:40]!r} is no decimal number of Unix seconds")
    value = float(text)
    if value > MAX_STAMP:
        raise ValueError(f"{text[:40]!r} is after the year 9999")
    return value


# ---------------------------------------------------------------- how long a holder may be silent

# A lock says it in `about`, as a duration. One without any `about`, which any shell script can
# write, says it by the distance of its two stamps: both come from one reading of a clock, and the
# distance is a constant of the acquisition, to which its holder holds itself as another does to
# `auto_unlock_after`. So it is known as soon as both were seen to be written together, and what
# deviates from it later was not written by that holder as it should be.

_TOLERANCE_S: Final = 0.0025
"""Seconds by which the distance of two stamps, each rounded to a millisecond, may be off."""


class _Stamped(Protocol):
    """What a holder says of its times (`Holder`)."""

    @property
    def alert_at(self) -> float | None: ...
    @property
    def auto_unlock_at(self) -> float | None: ...
    @property
    def auto_unlock_after(self) -> float | None: ...
    @property
    def stamp_revisions(self) -> tuple[int, int]: ...
    @property
    def about_seen(self) -> bool: ...
    @property
    def first_distance(self) -> float | None: ...
    def signs_of_life(self) -> list[float]: ...


def disagreement(signs: list[float]) -> float:
    """Return by how many seconds the first heartbeat is later than the last; 0: they agree."""
    apart = signs[0] - signs[-1] if signs else 0.0
    return apart if abs(apart) > _TOLERANCE_S else 0.0


def distance(holder: _Stamped) -> float | None:
    """Return the seconds between the stamps of a lock without `about`; None if nothing tells them.

    In etcd each key has the revision of its own last write: stamps of two are not of one push. (The
    other stores write both at once, or neither.)
    """
    alert_at, unlock_at = holder.alert_at, holder.auto_unlock_at
    written_at, together_with = holder.stamp_revisions
    if holder.about_seen or alert_at is None or unlock_at is None or written_at != together_with:
        return None
    return unlock_at - alert_at


def contradiction(holder: _Stamped) -> str:
    """Say why nobody can tell how long a sound lock's holder may be silent; empty if that is known.

    Durations are constants of an acquisition, so stamps that do not lie so far apart were not
    written together: a person has moved one, or a client that does not know the other.
    """
    stamp, after = holder.auto_unlock_at, holder.auto_unlock_after
    if stamp is None and after is None:
        return ""
    if after is None:
        return _unsaid(holder)
    if stamp is None:
        return (
            "it says how long it may be silent (auto_unlock_after), but not when it is to be "
            "auto-unlocked (auto_unlock_at)"
        )
    return _moved(disagreement(holder.signs_of_life()), "its durations say")


def _unsaid(holder: _Stamped) -> str:
    """Say what is wrong with a lock that has `auto_unlock_at` and no duration."""
    if holder.about_seen or holder.first_distance is None:
        apart = not holder.about_seen and holder.auto_unlock_at and holder.alert_at
        return (
            "it is to be auto-unlocked (auto_unlock_at), but does not say how long it may be "
            "silent until then (auto_unlock_after)"
            + (", and its stamps were not written in one transaction" if apart else "")
        )
    now = distance(holder)
    if now is None:
        return "its stamps were not written in one transaction, so that one was moved alone"
    if now <= 0:
        return "it is to be auto-unlocked (auto_unlock_at) no later than alerted on (alert_at)"
    return _moved(disagreement([now, holder.first_distance]), "its stamps said at first")


def _moved(apart: float, known_from: str) -> str:
    if not apart:
        return ""
    how = "later" if apart > 0 else "earlier"
    return (
        f"its auto-unlock comes {period(abs(apart))} {how} than its alert and {known_from}, so "
        "that one of the two was moved alone"
    )
