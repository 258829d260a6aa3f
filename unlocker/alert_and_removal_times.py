"""When a lock is past its alert and when it may be removed. Pure: no I/O, no clock is read.

`lockclient.model.auto_unlock` argues why no lock is removed early, and lists the locks that are
never removed. This file adds the alert, and the bound on how late a removal can be.

How late a removal is. A *sweep* is the unlocker's check for due locks, once a second. Let

    D   be the lock's `auto_unlock_after`
    P   be the time until we learn of a heartbeat; for a store without a watch, the time to the
        next poll
    S   be the longest time between two sweeps: 1 s, or 4 s after the wall clock was set back,
        because the scheduler plans by the wall clock
    R   be the time to remove the locks that were due earlier

- A holder that falls silent loses its lock within D + D / 1000 + P + S + R of its last heartbeat.
- A lock that exists when the unlocker starts is removed within D + D / 1000 + S + R of the start.
  No unlocker knows what an earlier one saw, so each restart begins the count again. So a lock is
  carried over from restart to restart and never removed, if all unlockers are restarted more often
  than every D. `Deadlines.carried_over` counts such locks, and an alert reports them.
- For a store without a watch, a lock is removed only after a poll that began after its due time.
  The unlocker requests such a poll when a lock is due, at most every quarter of the poll interval
  (`Unlocker._known_until`). So that adds at most a quarter of the interval.
- While the store is unreachable, or this process is stopped, nothing is removed. Afterwards one
  sweep is skipped so that heartbeats in flight arrive first. Locks that became due meanwhile are
  removed within 2 S + R. After ten seconds without the store, the silence timers of all locks
  restart (`lockclient.overview.live_table`).
- Removals beyond `--max-removals` in a minute wait: see `rate_limit`.

When a lock is past its alert. An alert only notifies people, so it may use wall clocks. A check
compares our wall clock with the median clock of the store's members. Our clock is *trusted* for a
lock if both agreed in a check after we saw the lock's last write. Then `alert_at` is reached when
the slower of the two clocks shows it. A lock is *found* if it existed when we first read it, or
when its silence timer restarted, so we did not see its last heartbeat. A lock of *four plain keys*
was written without the key `about`, for example by a shell script.

    lock                                        past its alert
    its heartbeats were seen                    `expected_runtime` after the last one
    found, clock trusted                        at `alert_at`, or `expected_runtime` after we found
                                                it if that is sooner
    found, clock not trusted                    `expected_runtime` after we found it
    no `expected_runtime`, or undecided         at `alert_at`, once a clock can be trusted
    four plain keys, clock not trusted          when both hold: it was silent for the time between
                                                its two stamps as first written, and our clock shows
                                                `alert_at`. So a fast clock alone causes no alert
"""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.model.auto_unlock import NEVER, ClockCheck, counted, due_at
from lockclient.overview.rows import Row


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The times of a lock's alert and removal, on our monotonic clock.

    Attributes:
        alert: when the lock goes past its alert, or `NEVER`; None: unknown before a clock check.
        due: when the lock may be removed, or `NEVER`.
        is_provisional: no clock can be trusted for `alert`, so the next clock check decides again.
    """

    alert: float | None
    due: float
    is_provisional: bool = False


def due_times(row: Row, check: ClockCheck | None) -> DueTimes:
    """Return the times of one lock, by the rules at the top of this file.

    Args:
        row: the lock in the table.
        check: the latest clock check; None before the first one.
    """
    holder = row.holder
    if holder.broken() or holder.alert_at is None:
        return DueTimes(NEVER, NEVER)
    if check is not None and check.now.monotonic < row.seen_at:
        check = None  # our wall clock may have jumped after that check
    decided = not holder.undecided()
    alert = _alert(row, holder.alert_at, check, decided=decided)
    due = due_at(holder, row.seen_at, check)
    if alert is not None or check is None or not holder.by_distance:
        return DueTimes(alert, due)
    # Four plain keys, and the clock is not trusted.
    silent_until = counted(row.seen_at, holder.first_distance)
    if silent_until is None:
        return DueTimes(None, due)
    alert = max(silent_until, check.by_own_clock(holder.alert_at))
    return DueTimes(alert, due, is_provisional=True)


def _alert(row: Row, stamp: float, check: ClockCheck | None, *, decided: bool) -> float | None:
    after = counted(row.seen_at, row.holder.expected_runtime)
    if after is not None and decided and not row.found:
        return after
    if check is None:
        return None
    if not check.trusted:
        return after
    at = check.by_slower_clock(stamp)
    if not decided:
        # A person changed one stamp. If it was `alert_at`, the person meant that time. If it was
        # `auto_unlock_at`, `alert_at` is still the holder's.
        return at
    # A write that we saw arrive is a heartbeat, whatever time it contains.
    at = at if row.found else max(at, row.seen_at)
    return at if after is None else min(at, after)
