"""When a silent lock may be removed: one rule, for every process that has watched it.

Those are unlockers (`unlocker.policy` adds when people are alerted), and in a bucket with
`expire=1` the waiters. Pure: no I/O, no clock is read.

Why no lock is removed early. Let D be `auto_unlock_after`, a constant of the acquisition to which
the holder holds itself from before it sent a push. A lock is due at `seen_at + D` on our monotonic
clock, and a thousandth of D later, because monotonic clocks do not run equally fast. No wall clock
is in it: not the holder's, not ours, not the store's.
- A write that was seen happen arrived after it was sent, so that moment comes after the holder's
  own deadline. A lock that was found was written before `seen_at`, so it does all the more.
- It counts from the last push that we know of. One that we do not know of, because it is on its
  way or we were stopped, changes the revisions of the stamps, which the transaction that removes
  compares: such a push always wins.
- That holds for pushes that the store keeps. A restore from a backup loses some: a stamp may then
  stand at a revision again that we saw long ago, before a push which is lost, and look unchanged.
  So all locks are found anew from each moment at which a restore may lie behind us: see
  `lockclient.overview.table`.
Our monotonic clock goes on while we are stopped, and while the machine is suspended where it has
such a clock: then locks look due on waking, and the revision tells.

What is never removed. A lock that does not say D, since nobody else knows it. A lock of a newer
format than this version knows. A lock with broken data. A stamp that a person moved counts as a
push: its mod revision changes.

A lock without any `about` says D by the distance of its stamps, a constant of the acquisition
(`Holder.first_distance`), so all of the above holds for it. While its stamps lie otherwise apart,
or were not written together, it is undecided (`Holder.undecided`). Its holder counts less than from
`alert_at` on, though, and whoever wrote `auto_unlock_at` meant that moment: so besides, it has to
be past that by the slower of our clock and the members', at the latest check if that was made after
its stamps were seen and the two agreed at it. Each check decides anew, so that one whose clocks
stood in 1970 keeps no lock for ever, and while they disagree it is not due. A wall clock can only
delay it: the counting is never left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lockclient.model.clocks import Now
from lockclient.model.cut_texts import bounded
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.text.durations import period

AGREEMENT = 2.0
"""Seconds by which our wall clock may differ from the members' and still be believed."""

_JUMP = 0.5
"""Seconds by which wall and monotonic clock may part during a check; more is a jump."""

_DRIFT = 0.001
"""Seconds in a second by which two hosts' monotonic clocks may part: NTP speeds one up and slows
the other down by 500 ppm at most."""

NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """The comparison of our clocks with the members' times.

    Attributes:
        now: our two clocks right after the members had answered.
        offset: seconds that their median is ahead of our wall clock; None: unknown, or ours jumped.
    """

    now: Now
    offset: float | None

    @classmethod
    def of(cls, before: Now, offsets: Sequence[float], after: Now) -> ClockCheck:
        jump = (after.wall - before.wall) - (after.monotonic - before.monotonic)
        known = bool(offsets) and abs(jump) <= _JUMP
        return cls(after, statistics.median(offsets) if known else None)

    @property
    def trusted(self) -> bool:
        return self.offset is not None and abs(self.offset) <= AGREEMENT

    def moment(self, wall: float) -> float:
        """Return when it is `wall` by the slower of both wall clocks, on our monotonic one."""
        return self.own_moment(wall) - min(0.0, self.offset or 0.0)

    def own_moment(self, wall: float) -> float:
        return self.now.monotonic + wall - self.now.wall


def due_at(holder: Holder, seen_at: float, check: ClockCheck | None) -> float:
    """Return the moment, on our monotonic clock, from which a lock may be removed.

    `seen_at` is when its stamps were known to be written.
    """
    if holder.broken() or holder.undecided():
        return NEVER
    due = counted(seen_at, holder.allowed_silence)
    if due is None:
        return NEVER
    if holder.by_distance and holder.auto_unlock_at is not None:
        if check is None or check.now.monotonic < seen_at or not check.trusted:
            return NEVER
        due = max(due, check.moment(holder.auto_unlock_at))
    return due


def counted(seen_at: float, after: float | None) -> float | None:
    """Return when a duration is over that began with the last push: "Why no lock" above."""
    return None if after is None else seen_at + after * (1 + _DRIFT)


def as_judged(read: Holder, judged: Holder) -> bool:
    """Tell whether a lock, read whole, is as a list showed it; the removal compares revisions."""
    return (
        read.stamp_revisions == judged.stamp_revisions
        and not read.broken()
        and not read.undecided()
        and read.by_distance == judged.by_distance  # a list showed no `about`
    )


def silence_removal(holder: Holder, silent: float, by: str, wall: float) -> Removal:
    allowed = period(holder.allowed_silence or 0)
    why = f"no heartbeat for {period(round(silent, 1))}; its time ran out after {allowed}"
    return Removal(bounded(holder), wall, by, AUTO_UNLOCK, why)
