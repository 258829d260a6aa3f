"""When a lock is past its alert and when it may be removed. Pure: no I/O, no clock is read.

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
  So from the moment at which we hear of a restore, all locks are found (`table`, `restore_marker`).
Our monotonic clock goes on while we are stopped, and while the machine is suspended where it has
such a clock: then locks look due on waking, and the revision tells.

Why every lock that is due is removed. With P the time that the news of a push takes to us, S = 1 s
between sweeps (4 s after the wall clock was put back, which the scheduler goes by), and R the time
to remove what came due before it: a holder that falls silent is removed within D + P + S + R of its
last push, and the thousandth of D. A lock that was found is removed within D + S + R, and the
thousandth, of when it was first seen. Where the store is polled, P is until the next poll; and as
nothing is done with a lock before a poll that began after its time has shown that it is silent, all
of that takes a quarter of the poll's interval longer (`Unlocker._known_until`). Nobody remembers
what a former unlocker saw: who starts all unlockers anew more often than every D keeps such a lock
for ever, which `Deadlines.carried_over` counts and an alert tells. While the store is away or we
are stopped, nothing is removed; what came due meanwhile is within 2 S + R of the end of that,
because one look is left out for the news to come first. More than `--max-removals` in a minute wait
for their turn: see `rate_limit`.

What is never removed. A lock that does not say D, since nobody else knows it. One whose stamps do
not lie as far apart as its durations, so that they are not of one push: nobody knows which of them
to count from, until the holder pushes again. One that needs what this version does not know, which
may be a reason. (For these two see `Holder.undecided`.) And one whose data are broken. Stamps that
were moved by hand, but both alike, count as a push.

A lock without any `about` says D by the distance of its stamps (`lockclient.model.clocks`), so all
of the above holds for it. Its holder counts less than from `alert_at` on, though, and whoever wrote
`auto_unlock_at` meant that moment: so besides, it has to be past that by the slower of our clock
and the members', at the latest check if that was made after its stamps were seen and the two agreed
at it. Each check decides anew, so that one whose clocks stood in 1970 keeps no lock for ever, and
while they disagree it is not due. A wall clock can only delay it: the counting is never left out.

An alert only calls people, so there a wall clock is believed if it agreed with the members' at a
check made after the lock was seen, and of the two the one that is behind. A lock that was found is
past its alert at its `alert_at`, if that is sooner than its `expected_runtime` counted as above; so
is one that does not say `expected_runtime`, or is undecided, as soon as there is a clock to trust.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lockclient.model.clocks import Now
from lockclient.overview.rows import Row

AGREEMENT = 2.0
"""Seconds by which our wall clock may differ from the members' and still be believed."""

_JUMP = 0.5
"""Seconds by which wall and monotonic clock may part during a check; more is a jump."""

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
        due: when it may be removed; `NEVER`.
    """

    alert: float | None
    due: float


def judge(row: Row, check: ClockCheck | None) -> Verdict:
    """Decide about one lock: "What is never removed" above, and the paragraph on alerts after it.

    Args:
        row: the lock as the table has it.
        check: the latest clock check; None if there was none yet.
    """
    holder = row.holder
    if holder.broken() or holder.alert_at is None:
        return Verdict(NEVER, NEVER)
    if check is not None and check.now.monotonic < row.seen_at:
        check = None  # our wall clock may have jumped between that check and this lock
    decided = not holder.undecided()
    due = _counted(row, holder.allowed_silence) if decided else None
    if due is not None and holder.by_distance and holder.auto_unlock_at is not None:
        agreed = check is not None and check.trusted
        due = max(due, check.moment(holder.auto_unlock_at)) if check and agreed else NEVER
    return Verdict(
        _alert(row, holder.alert_at, check, decided=decided), NEVER if due is None else due
    )


def _counted(row: Row, after: float | None) -> float | None:
    """Return when a duration is over that began with the last push.

    The argument is above: "Why no lock is removed early".
    """
    return None if after is None else row.seen_at + after * (1 + _DRIFT)


def _alert(row: Row, stamp: float, check: ClockCheck | None, *, decided: bool) -> float | None:
    counted = _counted(row, row.holder.expected_runtime)
    if counted is not None and decided and not row.found:
        return counted
    if check is None:
        return None
    if not check.trusted:
        return counted
    at = check.moment(stamp)
    if not decided:
        return at  # whoever has moved a stamp meant it, or if it was the other, this one is right
    # A write that was seen happen is a sign of life, whatever it says.
    at = at if row.found else max(at, row.seen_at)
    return at if counted is None else min(at, counted)
