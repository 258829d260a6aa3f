"""When a lock is past its alert and when it may be removed. Pure: no I/O, no clock is read.

`lockclient.model.silence` argues why no lock is removed early, and lists the locks that are never
removed. This file adds the alert, and the bound on how late a removal can be.

How late a removal is. Let

    D   be the lock's `auto_unlock_after`
    P   be the time until we learn of a heartbeat; in a polled store, the time to the next poll
    S   be 1 s between two sweeps (4 s after the wall clock was put back, as the scheduler uses it)
    R   be the time to remove the locks that came due earlier

- A holder that falls silent loses its lock within D + D / 1000 + P + S + R of its last heartbeat.
- A lock that we find, because we just started, goes within D + D / 1000 + S + R of that moment. No
  unlocker knows what an earlier one saw. If all unlockers are restarted more often than every D,
  the lock stays; `Deadlines.carried_over` counts such locks, and an alert reports them.
- In a polled store, a lock is removed only after a poll that began after its due time. That adds a
  quarter of the poll interval (`Table.known_until`).
- While the store is unreachable, or this process is stopped, nothing is removed. Afterwards one
  sweep is skipped so that heartbeats that are in flight arrive first. Locks that came due meanwhile
  go within 2 S + R. After ten seconds without the store, all locks count as found again
  (`lockclient.overview.table`).
- Removals beyond `--max-removals` in a minute wait: see `rate_limit`.

When a lock is past its alert. An alert only calls people, so it may use wall clocks. Our wall clock
is trusted if it agreed with the clocks of the store's members in a check made after we saw the
lock. Of the two clocks, the slower one counts.

    lock                                        past its alert
    its heartbeats were seen                    `expected_runtime` after the last one
    found, clock trusted                        at `alert_at`, or `expected_runtime` after we found
                                                it if that is sooner
    found, clock not trusted                    `expected_runtime` after we found it
    no `expected_runtime`, or undecided         at `alert_at`, once a clock can be trusted
    four plain keys, clock not trusted          once it was silent for the distance of its stamps
                                                and our own clock shows `alert_at`: a clock that is
                                                ahead cannot cause an alert alone
"""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.model.silence import NEVER, ClockCheck, counted, due_at
from lockclient.overview.rows import Row


@dataclass(frozen=True, slots=True)
class Verdict:
    """The moments of a lock's alert and removal, on our monotonic clock.

    Attributes:
        alert: when the lock goes past its alert; `NEVER`; None if that can't be decided yet.
        due: when the lock may be removed, or `NEVER`.
        guessed: no clock could be trusted for the alert, so the next clock check decides again.
    """

    alert: float | None
    due: float
    guessed: bool = False


def judge(row: Row, check: ClockCheck | None) -> Verdict:
    """Return the verdict about one lock, by the rules at the top of this file.

    Args:
        row: the lock in the table.
        check: the latest clock check; None before the first one.
    """
    holder = row.holder
    if holder.broken() or holder.alert_at is None:
        return Verdict(NEVER, NEVER)
    if check is not None and check.now.monotonic < row.seen_at:
        check = None  # our wall clock may have jumped after that check
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
        return at  # a person moved a stamp: either this one on purpose, or the other one
    # A write that we saw arrive is a heartbeat, whatever time it contains.
    at = at if row.found else max(at, row.seen_at)
    return at if after is None else min(at, after)
