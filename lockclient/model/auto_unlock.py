"""When a silent lock may be removed: the one rule for all processes that watch it.

Unlockers use it (`unlocker.alert_and_removal_times` adds the alert), and so do waiters in a bucket
with `expire=1`. Pure: no I/O, no clock is read.

Why no lock is removed early. Let D be `auto_unlock_after`. D is constant during an acquisition. The
holder counts D from before it sends a heartbeat, and stops by itself when D has passed. We learn of
that heartbeat at `seen_at` and count D + D / 1000 from there on our monotonic clock; the thousandth
covers the difference in speed of two monotonic clocks. No wall clock is used.

1. A heartbeat arrives after it was sent. So our count ends after the holder's. This holds also for
   a lock that we found: its last heartbeat was written before `seen_at`.
2. There may be a heartbeat that we do not know of, because it is in flight or this process was
   stopped. Each heartbeat changes the revisions of the stamps, and the transaction that removes a
   lock compares them. So such a heartbeat always defeats the removal.
3. A restore from a backup loses heartbeats. A stamp may then have a revision that we saw earlier.
   So after each time at which a restore may have happened, the silence of all locks counts from
   then on: see `lockclient.overview.live_table`.
4. Our monotonic clock also counts while this process is stopped or the machine is suspended. Locks
   then look due at once; step 2 protects them.

Never removed: a lock without D, a lock of a newer format, a lock with broken data. If a person
changes a stamp, its revision changes: that counts as a heartbeat.

A lock of four plain keys has no `about` that gives D. Its D is the time from `alert_at` to
`auto_unlock_at` as they were first written (`Holder.first_distance`), which is constant during the
acquisition; all of the above holds for it. While the two stamps are a different time apart, or were
not written together, the lock is undecided (`Holder.undecided`) and never due.

A lock of four plain keys that is not undecided has a second condition: its `auto_unlock_at` must
have passed, because a person may have written it. A clock check counts only if it was made after we
saw the stamps and both clocks, ours and the members', agreed in it. Then the slower clock decides.
Each new check decides again, so one wrong clock reading can't keep a lock for ever. While the
clocks disagree, the lock is not due. So a wall clock can delay a removal and never cause one.
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
"""Seconds by which our wall clock may differ from the members' and still be trusted."""

_JUMP = 0.5
"""Seconds by which our wall and monotonic clocks may differ during a check; more is a jump."""

_DRIFT = 0.001
"""Seconds per second by which two hosts' monotonic clocks may differ: NTP changes the speed of each
by 500 ppm at most, so two differ by a thousandth at most."""

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

    def by_slower_clock(self, wall: float) -> float:
        """Return when it is `wall` by the slower of both wall clocks, on our monotonic one."""
        # A negative offset: the members' clock is behind ours, and shows `wall` later.
        return self.by_own_clock(wall) - min(0.0, self.offset or 0.0)

    def by_own_clock(self, wall: float) -> float:
        """Return when it is `wall` by our wall clock, on our monotonic one."""
        return self.now.monotonic + wall - self.now.wall


def due_at(holder: Holder, seen_at: float, check: ClockCheck | None) -> float:
    """Return the moment, on our monotonic clock, from which a lock may be removed.

    Args:
        holder: the lock.
        seen_at: when we learned that its stamps were written.
        check: the latest clock check; None before the first one.
    """
    if holder.broken() or holder.undecided():
        return NEVER
    due = counted(seen_at, holder.allowed_silence)
    if due is None:
        return NEVER
    if holder.by_distance and holder.auto_unlock_at is not None:
        if check is None or check.now.monotonic < seen_at or not check.trusted:
            return NEVER
        due = max(due, check.by_slower_clock(holder.auto_unlock_at))
    return due


def counted(seen_at: float, after: float | None) -> float | None:
    """Return the end of a duration that began at `seen_at`, a thousandth later; None: no end."""
    return None if after is None else seen_at + after * (1 + _DRIFT)


def is_unchanged(read: Holder, judged: Holder) -> bool:
    """Return whether a lock, read again, is as in the table's copy."""
    return (
        read.stamp_revisions == judged.stamp_revisions
        and not read.broken()
        and not read.undecided()
        and read.by_distance == judged.by_distance  # the table may lack `about`
    )


def silence_removal(holder: Holder, silent: float, by: str, wall: float) -> Removal:
    allowed = period(holder.allowed_silence or 0)
    why = f"no heartbeat for {period(round(silent, 1))} ({allowed} allowed)"
    return Removal(bounded(holder), wall, by, AUTO_UNLOCK, why)
