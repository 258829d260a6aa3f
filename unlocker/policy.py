"""When a lock is past its alert and when it may be removed. Pure: no I/O, no clock is read.

Why no lock is removed early, and what is never removed: see `lockclient.model.silence`.

Why every lock that is due is removed. With P the time that the news of a push takes to us, S = 1 s
between sweeps (4 s after the wall clock was put back, which the scheduler goes by), and R the time
to remove what came due before it: a holder that falls silent is removed within D + P + S + R of its
last push, and the thousandth of D. A lock that was found is removed within D + S + R, and the
thousandth, of when it was first seen. Where the store is polled, P is until the next poll; and as
nothing is done with a lock before a poll that began after its time has shown that it is silent, all
of that takes a quarter of the poll's interval longer (`Table.known_until`). Nobody remembers
what a former unlocker saw: who starts all unlockers anew more often than every D keeps such a lock
for ever, which `Deadlines.carried_over` counts and an alert tells. While the store is away or we
are stopped, nothing is removed; what came due meanwhile is within 2 S + R of the end of that,
because one look is left out for the news to come first. After ten seconds of that all locks are
found (`lockclient.overview.table`). More than `--max-removals` in a minute wait for their turn: see
`rate_limit`.

An alert only calls people, so there a wall clock is believed if it agreed with the members' at a
check made after the lock was seen, and of the two the one that is behind. A lock that was found is
past its alert at its `alert_at`, if that is sooner than its `expected_runtime` counted as above; so
is one that does not say `expected_runtime`, or is undecided, as soon as there is a clock to trust.
Where there is none, because no member tells its time or ours differs, a lock of four plain keys is
past its alert once it has been silent for the distance of its stamps, and it is `alert_at` by our
clock as well: a clock that is ahead calls nobody by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.model.silence import NEVER, ClockCheck, counted, due_at
from lockclient.overview.rows import Row


@dataclass(frozen=True, slots=True)
class Verdict:
    """When to do what about a lock: moments on our monotonic clock.

    Attributes:
        alert: when it goes past its alert; `NEVER`, or None if that can't be decided yet.
        due: when it may be removed; `NEVER`.
        guessed: no clock could be trusted for the alert, so that the next check decides anew.
    """

    alert: float | None
    due: float
    guessed: bool = False


def judge(row: Row, check: ClockCheck | None) -> Verdict:
    """Decide about one lock: `silence`, and the paragraph on alerts above.

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
    alert = _alert(row, holder.alert_at, check, decided=decided)
    due = due_at(holder, row.seen_at, check)
    silent = counted(row.seen_at, holder.first_distance) if holder.by_distance else None
    if alert is not None or check is None or silent is None:
        return Verdict(alert, due)
    return Verdict(max(silent, check.own_moment(holder.alert_at)), due, guessed=True)


def _alert(row: Row, stamp: float, check: ClockCheck | None, *, decided: bool) -> float | None:
    after = counted(row.seen_at, row.holder.expected_runtime)
    if after is not None and decided and not row.found:
        return after
    if check is None:
        return None
    if not check.trusted:
        return after
    at = check.moment(stamp)
    if not decided:
        return at  # whoever has moved a stamp meant it, or if it was the other, this one is right
    # A write that was seen happen is a heartbeat, whatever it says.
    at = at if row.found else max(at, row.seen_at)
    return at if after is None else min(at, after)
