"""The alert and removal times of all locks, in memory. No I/O, no clock is read.

A heap of (time, lock name) with lazy updates: a heartbeat changes the lock's times, but not its
heap entry. When a sweep pops an outdated entry, it pushes the lock again with its current time. So
a heartbeat costs one computation, and a sweep pops only entries whose time has come.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from lockclient.model.auto_unlock import NEVER, ClockCheck
from lockclient.model.holder import ALERT, BROKEN, OK, OVERDUE, STATES, UNDECIDED, Holder
from lockclient.overview.rows import Row, Transition, went_back
from unlocker.alert_and_removal_times import DueTimes, due_times

_MAX_STALE_ENTRIES = 1000
"""Stale heap entries, beyond one for each lock, before they are cleared."""

TOO_LONG, CARRIED_OVER = "held-too-long", "carried-over"
CARRIED_OVER_AFTER_S = 60.0
"""A lock counts as carried over if its `auto_unlock_at` is more than this many seconds ago."""


@dataclass(slots=True, eq=False)
class TimedLock:
    """One lock and its due times; each change of the lock makes a new object.

    Attributes:
        state: one of `STATES`.
        alerted_at: when it went past its alert (an undecided lock can, too), or `NEVER`.
    """

    row: Row
    times: DueTimes
    state: str
    alerted_at: float = NEVER

    @property
    def next_time(self) -> float:
        """When the lock is past its alert, or if it is already: when its removal is due."""
        if self.state == OVERDUE:
            return NEVER
        return self.alert_time if self.alerted_at == NEVER else self.times.due

    @property
    def alert_time(self) -> float:
        """When the lock is past its alert: never after the removal, whatever the stamps are."""
        alert = self.times.alert
        return min(self.times.due, NEVER if alert is None else alert)


PAST_ALERT = (ALERT, UNDECIDED, OVERDUE)
"""The states in which a lock can be past its alert; an `UNDECIDED` lock need not be."""


class PastAlert(NamedTuple):
    """The locks past their alert, for one scrape by Prometheus.

    Attributes:
        listed: the most urgent ones.
        unlisted: the number of the others, by state.
    """

    listed: list[TimedLock]
    unlisted: Mapping[str, int]


class DueLocks(NamedTuple):
    """The locks that went past their alert, and those to remove."""

    alerts: list[TimedLock]
    due: list[TimedLock]


class Deadlines:
    """All locks, with what happens to each and when; several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._check: ClockCheck | None = None
        self._items: dict[str, TimedLock] = {}
        self._awaiting_clock_check: set[str] = set()  # their alert: see `DueTimes`
        self._due_by_clock: set[str] = set()  # four plain keys: each clock check decides again
        self._alerted: set[str] = set()
        self._found: set[str] = set()  # with a due time; their last heartbeat was not seen
        self._carried_over: set[str] = set()  # of these, those past `CARRIED_OVER_AFTER_S`
        # A heap of the stamps of `_found`, so that a scrape does not walk all locks.
        self._stamps: list[tuple[float, str]] = []
        self._limited: set[str] = set()  # locks with a `max_hold`
        self._needs_clock_check = False
        # Only locks that are not OK: counting and listing them does not walk all locks.
        self._by_state: dict[str, set[str]] = {state: set() for state in STATES if state != OK}
        self._heap: list[tuple[float, str]] = []
        self._entries: dict[str, float] = {}

    def update(self, changes: Iterable[Transition]) -> None:
        """Apply the table's changes."""
        with self._lock:
            for change in changes:
                before = self._drop(change.name)
                if change.after is not None:
                    self._put(change.name, change.after, before)
            self._compact_heap()
            if len(self._stamps) > 2 * len(self._found) + _MAX_STALE_ENTRIES:
                # Each clock check adds the same entries again: keep one of each.
                self._stamps = sorted({entry for entry in self._stamps if entry[1] in self._found})

    def reconsider(self, check: ClockCheck) -> None:
        """Judge again, after a clock check, the locks that depend on clocks."""
        with self._lock:
            self._check, self._needs_clock_check = check, False
            for name in tuple(self._awaiting_clock_check):
                before = self._drop(name)
                if before is not None:
                    self._put(name, before.row, before)
            for name in tuple(self._due_by_clock):
                self._judge_again(name, check)
            self._compact_heap()

    def pop_due(self, now: float) -> DueLocks:
        """Pop and return the locks whose alert or removal time is at most `now` (monotonic).

        No alert and no removal is returned twice.
        """
        popped = DueLocks([], [])
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                entry = heapq.heappop(self._heap)
                if self._entries.get(entry[1]) == entry[0]:  # else a later one replaced it
                    del self._entries[entry[1]]
                    self._process_due(entry[1], now, popped)
        return popped

    def has_due(self, now: float) -> bool:
        """Return whether a lock has an alert or a removal by the monotonic time `now`."""
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                at, name = self._heap[0]
                item, known = self._items.get(name), self._entries.get(name) == at
                if known and item is not None and item.next_time <= now:
                    return True
                heapq.heappop(self._heap)
                if known:
                    del self._entries[name]
                    if item is not None:  # it got a heartbeat
                        self._push(name, item)
        return False

    def is_current(self, item: TimedLock) -> bool:
        """Return whether the lock is unchanged since `pop_due` returned this item."""
        return self._items.get(item.row.holder.name) is item

    def held(self) -> int:
        """Return the number of locks."""
        return len(self._items)

    def counts(self) -> dict[str, int]:
        """Return the number of locks in each of `STATES`."""
        with self._lock:
            counts = {state: len(names) for state, names in self._by_state.items()}
            counts[OK] = len(self._items) - sum(counts.values())
        return {state: counts[state] for state in STATES}

    def carried_over(self, now: float) -> int | None:
        """Return the number of `found` locks that would be gone if no silence timer had restarted.

        A start of this process and a restore restart it. Such a lock's `auto_unlock_at` is more
        than `CARRIED_OVER_AFTER_S` before `now` (monotonic). None: our wall clock is not trusted.
        """
        with self._lock:
            if self._check is None or not self._check.trusted:
                return None
            passed = self._check.now.wall + now - self._check.now.monotonic - CARRIED_OVER_AFTER_S
            while self._stamps and self._stamps[0][0] < passed:
                stamp, name = heapq.heappop(self._stamps)
                if name in self._found and self._items[name].row.holder.auto_unlock_at == stamp:
                    self._carried_over.add(name)
            return len(self._carried_over)

    def held_too_long(self, now: float) -> list[tuple[Holder, float]]:
        """Return the holders beyond their `max_hold`, and by how many seconds; the longest first.

        They need not be past their alert: an endless loop may send heartbeats. The holder's clock
        counts up to its last heartbeat, and our monotonic clock from there to `now`.
        """
        with self._lock:
            rows = [self._items[name].row for name in self._limited]
        found = []
        for row in rows:
            end, alive_at = row.holder.too_long_at, row.holder.alive_at
            if end and alive_at and (over := alive_at - end + now - row.seen_at) > 0:
                found.append((row.holder, over))
        return sorted(found, key=lambda item: -item[1])

    def wrong(self, now: float) -> dict[str, list[Holder]]:
        """Return the holders of the locks that are not OK, by what is wrong with them.

        That is one of `STATES`, `TOO_LONG` or `CARRIED_OVER`. A lock may have several, and all that
        went past their alert have `ALERT`.

        Args:
            now: the monotonic time.
        """
        self.carried_over(now)
        with self._lock:
            names = {**self._by_state, ALERT: self._alerted, CARRIED_OVER: self._carried_over}
            found = {
                what: [self._items[name].row.holder for name in each]
                for what, each in names.items()
            }
        return found | {TOO_LONG: [holder for holder, _ in self.held_too_long(now)]}

    def needs_clock_check(self) -> bool:
        """Return whether the next clock check may decide about a lock."""
        return self._needs_clock_check

    def past_alert(self, limit: int, failing: Collection[str] = ()) -> PastAlert:
        """Return the locks past their alert, the most urgent first.

        The order: due locks whose removal fails; other due locks; locks that only a person can
        free; the rest. Within each, the longest past its alert comes first.

        Args:
            limit: number of locks to list; the others are counted.
            failing: names of locks whose removal was tried and failed.
        """

        def urgency(item: TimedLock) -> tuple[int, float]:
            if item.state == OVERDUE:
                return item.row.holder.name not in failing, item.alerted_at
            return 2 + (item.times.due != NEVER), item.alerted_at

        with self._lock:
            alerted = [self._items[name] for name in self._alerted]
        listed = heapq.nsmallest(limit, alerted, key=urgency)  # outside `_lock`: may be slow
        unlisted = dict.fromkeys(PAST_ALERT, 0) | Counter(lock.state for lock in alerted)
        for lock in listed:
            unlisted[lock.state] -= 1
        return PastAlert(listed, unlisted)

    def _judge_again(self, name: str, check: ClockCheck) -> None:
        """Compute again the times of a lock whose due time depends on clocks."""
        item = self._items[name]
        times = due_times(item.row, check)
        if item.state != OVERDUE:
            is_unsure = times.alert is None or times.is_provisional
            alert = item.times.alert if is_unsure else times.alert  # keep the earlier alert
            item.times = DueTimes(alert, times.due)
            self._push(name, item)
        elif times.due > check.now.monotonic:
            # `pop_due` has returned the lock, and it is no longer due. A new item replaces it, so
            # `is_current` becomes false and the lock is not removed.
            self._drop(name)
            self._put(name, item.row, item)

    def _drop(self, name: str) -> TimedLock | None:
        item = self._items.pop(name, None)
        for names in (
            self._awaiting_clock_check,
            self._due_by_clock,
            self._alerted,
            self._found,
            self._carried_over,
            self._limited,
            *self._by_state.values(),
        ):
            names.discard(name)
        return item

    def _put(self, name: str, row: Row, before: TimedLock | None) -> None:
        times = due_times(row, self._check)
        item = TimedLock(row, times, _state(row.holder))
        if before is not None and item.state != BROKEN and _still_past_alert(before, row):
            self._mark_alerted(name, item, before.alerted_at)  # people know already
        self._items[name] = item
        stamp = row.holder.auto_unlock_at
        if row.found and times.due != NEVER and stamp is not None:
            self._found.add(name)
            heapq.heappush(self._stamps, (stamp, name))
        if row.holder.max_hold is not None:
            self._limited.add(name)
        if row.holder.by_distance:
            self._due_by_clock.add(name)
        if times.alert is None or times.is_provisional:
            self._awaiting_clock_check.add(name)
            checked_at = -NEVER if self._check is None else self._check.now.monotonic
            if checked_at < row.seen_at:
                self._needs_clock_check = True
        self._push(name, item)

    def _process_due(self, name: str, now: float, popped: DueLocks) -> None:
        item = self._items.get(name)
        if item is None:
            return
        if item.alerted_at == NEVER and item.next_time <= now:
            self._mark_alerted(name, item, item.alert_time)
            popped.alerts.append(item)
        if item.alerted_at != NEVER and item.next_time <= now:
            self._by_state[item.state].discard(name)
            self._found.discard(name)
            self._carried_over.discard(name)
            item.state = OVERDUE
            popped.due.append(item)
        self._push(name, item)

    def _mark_alerted(self, name: str, item: TimedLock, at: float) -> None:
        item.alerted_at = at
        self._alerted.add(name)
        if item.state == OK:
            item.state = ALERT

    def _push(self, name: str, item: TimedLock) -> None:
        if item.state in self._by_state:
            self._by_state[item.state].add(name)
        at = item.next_time
        if at < self._entries.get(name, NEVER):
            self._entries[name] = at
            heapq.heappush(self._heap, (at, name))

    def _compact_heap(self) -> None:
        """Drop stale entries if there are many."""
        if len(self._heap) <= 2 * len(self._items) + _MAX_STALE_ENTRIES:
            return
        kept = {name: at for name, at in self._entries.items() if name in self._items}
        self._entries = kept
        self._heap = [(at, name) for name, at in kept.items()]
        heapq.heapify(self._heap)


def _state(holder: Holder) -> str:
    """Return the state of a lock that is not past its alert."""
    if holder.broken():
        return BROKEN
    return UNDECIDED if holder.undecided() else OK


def _still_past_alert(before: TimedLock, row: Row) -> bool:
    """Return whether a lock is still past the alert that people were notified of.

    A restore may put a lock back to an earlier heartbeat; that is no new alert.
    """
    known, holder = before.row.holder, row.holder
    same = known.alert_at == holder.alert_at or went_back(known, holder)
    return before.alerted_at != NEVER and known.uuid == holder.uuid and same
