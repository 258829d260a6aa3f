"""When a lock is past its alert and when it may be removed. Pure: no I/O, no clock is read.

Why no lock is removed early. Three clocks are about: the holder's, ours, and the members' of the
store. Let D be `auto_unlock_at - alive_at`: the holder read both off one clock at one moment, so
its error cancels, and it holds itself to D from before it sent the push.
- A write that was seen happen arrived after it was sent. So `seen_at + D` on our monotonic clock
  comes after the holder's own deadline; no wall clock is in it. A thousandth is added to D, for
  monotonic clocks that do not run equally fast, and 2 ms, for stamps that are rounded.
- A lock that was found was written before `seen_at`, so `seen_at + D` is safe for it, too. Sooner
  than that only a wall clock can tell: it is believed if it agreed with the members' at a check
  made after the lock was seen. Of the two the one that is behind counts, and the grace comes on
  top, so that a holder whose clock is behind by up to the grace loses nothing, less the 1.5 s to
  which a check is exact. (One that is ahead loses nothing anyway.) A host further behind is what
  no one can tell from a dead holder: who has such hosts sets the grace to a day, and then D counts.
- Both count from the last push that we know of. One that we do not know of, because it is on its
  way or we were stopped, changes the revision of `auto_unlock_at`, which the transaction that
  removes compares: such a push always wins.
A wall-clock moment is turned into a monotonic one with both clocks read together around the check;
no wall clock is read after it, so one that is moved later, or drifts, removes nothing. Our
monotonic clock goes on while we are stopped, and while the machine is suspended where it has such a
clock: then locks look due on waking, and the revision tells.

Why every lock that is due is removed. With P the time that the news of a push takes to us, S = 1 s
between sweeps (4 s after the wall clock was put back, which the scheduler goes by), C the time to
the next clock check (S, and the second that the members have to answer), and R the time to remove
what came due before it: a holder that falls silent is removed within D + P + S + R of its last
push, and the thousandth of D. A lock that was found is removed within D + S + R, and the
thousandth, of when it was first seen; with a clock to trust, if that is sooner, within S + R of
the later of C after it was seen and the grace and 2 s after its `auto_unlock_at`. While the store
is away or we are stopped, nothing is removed; what came due meanwhile is within 2 S + R of the end
of that, because one look is left out for the news to come first. More than `--max-removals` in a
minute wait for their turn: see `brake`.
What can't be decided, because neither the lock nor a clock tells enough, is never removed until it
can; nor is a lock whose data are broken.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockclient.table import Row
from lockclient.timing import Now

AGREEMENT = 2.0
"""Seconds by which our wall clock may differ from the members' and still be believed."""

_JUMP = 0.5
"""Seconds by which wall and monotonic clock may part during a check; more is a jump."""

_ROUNDING = 0.002
"""Seconds that two stamps, each rounded to a millisecond, may be too near to each other."""

_DRIFT = 0.001
"""Seconds in a second by which two hosts' monotonic clocks may part: NTP speeds one up and slows
the other down by 500 ppm at most."""

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """What asking the members for the time told.

    Attributes:
        now: one moment on both our clocks, right after the members had answered.
        offset: seconds that the members' clocks, by their median, are ahead of ours; None if none
            answered, or if our wall clock jumped meanwhile.
    """

    now: Now
    offset: float | None

    @classmethod
    def of(cls, before: Now, offsets: Sequence[float], after: Now) -> ClockCheck:
        """Judge the members' answers, with our clocks as they were before and after asking."""
        jump = (after.wall - before.wall) - (after.monotonic - before.monotonic)
        known = bool(offsets) and abs(jump) <= _JUMP
        return cls(after, statistics.median(offsets) if known else None)

    @property
    def trusted(self) -> bool:
        """Whether our wall clock may be believed."""
        return self.offset is not None and abs(self.offset) <= AGREEMENT

    def moment(self, wall: float) -> float:
        """Return when it is `wall` (Unix seconds) by the slower clock, on our monotonic one."""
        return self.now.monotonic + wall - self.now.wall - min(0.0, self.offset or 0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """When to do what about a lock: moments on our monotonic clock.

    Attributes:
        alert: when it goes past its alert; `NEVER`, or None if that can't be decided yet.
        due: when it may be removed; the same.
        silent_since: the last sign of life that is known of, or when the lock was first seen.
    """

    alert: float | None
    due: float | None
    silent_since: float

    @property
    def decided(self) -> bool:
        """Whether a further clock check would change nothing."""
        return self.alert is not None and self.due is not None


def judge(row: Row, check: ClockCheck | None, grace: float) -> Verdict:
    """Decide about one lock.

    Args:
        row: the lock as the table has it.
        check: the latest clock check; None if there was none yet.
        grace: seconds that a lock judged by a wall clock is given beyond its `auto_unlock_at`.
    """
    holder = row.holder
    if holder.broken() or holder.alert_at is None:
        return Verdict(NEVER, NEVER, row.seen_at)
    if check is not None and check.now.monotonic < row.seen_at:
        check = None  # our wall clock may have jumped between that check and this lock
    alert = _moment(row, holder.alert_at, check, grace, extra=0.0)
    due: float | None = NEVER
    if holder.auto_unlock_at is not None:
        due = _moment(row, holder.auto_unlock_at, check, grace, extra=grace)
    return Verdict(alert, due, _silent_since(row, check, grace))


def _moment(
    row: Row, stamp: float, check: ClockCheck | None, grace: float, *, extra: float
) -> float | None:
    """Return when a stamp's moment is, `extra` seconds later if a wall clock decides."""
    sign = _sign(row)
    counted = None
    # A stamp that is not after the sign of life contradicts it: no duration can be read from them.
    if sign is not None and stamp > sign:
        counted = row.seen_at + (stamp - sign) * (1 + _DRIFT) + _ROUNDING
    if counted is not None and not row.found:
        return counted
    if check is None:
        return None
    if not _believed(row, check, grace):
        return counted
    at = check.moment(stamp)
    # A write that was seen happen is a sign of life, whatever it says: the extra time is for it.
    at = (at if row.found else max(at, row.seen_at)) + extra
    return at if counted is None else min(at, counted)


def _sign(row: Row) -> float | None:
    """Return the holder's wall clock at its last sign of life, where it said so."""
    holder = row.holder
    return holder.locked_at if holder.alive_at is None else holder.alive_at


def _believed(row: Row, check: ClockCheck, grace: float) -> bool:
    """Tell whether wall clocks may decide about this lock.

    They may not if its last sign of life is from the future: then the holder's clock is ahead.
    """
    sign = _sign(row)
    return check.trusted and (sign is None or check.moment(sign) <= row.seen_at + grace)


def _silent_since(row: Row, check: ClockCheck | None, grace: float) -> float:
    sign = _sign(row)
    if not row.found or sign is None or check is None or not _believed(row, check, grace):
        return row.seen_at
    return min(row.seen_at, check.moment(sign))
