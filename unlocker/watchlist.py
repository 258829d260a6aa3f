"""What is to happen with each lock next: alert, then removal. In memory: no I/O, no clock read.

A push costs one verdict and, as it moves a lock's moments back, nothing more: a lock has one entry
in a heap of moments, and one that comes up too early is put back at its moment then. A sweep looks
at the entries that come up and not at all locks.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from lockclient.record import ALERT, BROKEN, OK, OVERDUE, STATES, Holder
from lockclient.table import Row, Transition
from unlocker.policy import NEVER, ClockCheck, Verdict, judge

_SLACK = 1000
"""Entries of locks that are gone, beyond as many as there are locks, before they are cleared."""


@dataclass(slots=True)
class Item:
    """One lock, the verdict about it, and the state (of `record.STATES`) that it has come to."""

    row: Row
    verdict: Verdict
    state: str

    @property
    def next_moment(self) -> float:
        """When something is to happen: the alert, or after it the removal."""
        moment = self.verdict.due if self.state == ALERT else self.alert_moment
        return NEVER if moment is None or self.state in (OVERDUE, BROKEN) else moment

    @property
    def alert_moment(self) -> float:
        """The alert comes first, even for stamps that have it after the removal."""
        due, alert = self.verdict.due, self.verdict.alert
        return min(NEVER if due is None else due, NEVER if alert is None else alert)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step in time brought: locks that went past their alert, locks to be removed."""

    alerts: list[Item]
    due: list[Item]


class Watchlist:
    """All locks by what is to happen with them; several threads may use it.

    Args:
        grace: see `policy.judge`.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._lock = threading.Lock()
        self._check: ClockCheck | None = None
        self._items: dict[str, Item] = {}
        self._undecided: set[str] = set()
        self._waiting = False
        # Locks that are not OK, so that nobody has to walk all locks to count or to list them.
        self._by_state: dict[str, set[str]] = {state: set() for state in (ALERT, OVERDUE, BROKEN)}
        self._heap: list[tuple[float, str]] = []
        self._entries: dict[str, float] = {}

    # ------------------------------------------------------------ what happens to locks

    def update(self, changes: Iterable[Transition]) -> None:
        """Take in what the table brought."""
        with self._lock:
            for change in changes:
                before = self._drop(change.name)
                if change.after is not None:
                    self._put(change.name, change.after, before)
            if len(self._heap) > 2 * len(self._items) + _SLACK:
                self._clear_heap()

    def reconsider(self, check: ClockCheck) -> None:
        """Decide again what could not be decided, after a clock check."""
        with self._lock:
            self._check, self._waiting = check, False
            for name in tuple(self._undecided):
                before = self._drop(name)
                if before is not None:
                    self._put(name, before.row, before)

    def advance(self, now: float) -> Progress:
        """Go on to the monotonic moment `now`."""
        progress = Progress([], [])
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                entry = heapq.heappop(self._heap)
                if self._entries.get(entry[1]) == entry[0]:  # else a later one replaced it
                    del self._entries[entry[1]]
                    self._advance(entry[1], now, progress)
        return progress

    # ------------------------------------------------------------ what others want to know

    def current(self, item: Item) -> bool:
        """Tell whether the lock still stands as it did when the item was handed out."""
        return self._items.get(item.row.holder.name) is item

    def counts(self) -> dict[str, int]:
        """Return how many locks there are in each of `record.STATES`."""
        with self._lock:
            counts = {state: len(names) for state, names in self._by_state.items()}
            counts[OK] = len(self._items) - sum(counts.values())
        return {state: counts[state] for state in STATES}

    def undecided(self) -> int:
        """Return about how many locks nothing can be said yet."""
        return len(self._undecided)

    def waiting(self) -> bool:
        """Tell whether there is a lock that the next clock check may decide about."""
        return self._waiting

    def past_alert(self, limit: int) -> list[Holder]:
        """Return the holders of locks past their alert, the longest past first."""
        with self._lock:
            names = self._by_state[ALERT] | self._by_state[OVERDUE]
            found = heapq.nsmallest(
                limit, (self._items[name] for name in names), key=attrgetter("alert_moment")
            )
            return [item.row.holder for item in found]

    # ------------------------------------------------------------ inside

    def _drop(self, name: str) -> Item | None:
        item = self._items.pop(name, None)
        self._undecided.discard(name)
        for names in self._by_state.values():
            names.discard(name)
        return item

    def _put(self, name: str, row: Row, before: Item | None) -> None:
        verdict = judge(row, self._check, self._grace)
        item = Item(row, verdict, BROKEN if row.holder.broken() else OK)
        if before is not None and item.state == OK and _still_past_alert(before, row):
            item.state = ALERT  # it was told already
        self._items[name] = item
        if not verdict.decided:
            self._undecided.add(name)
            if self._check is None or self._check.now.monotonic < row.seen_at:
                self._waiting = True
        self._file(name, item)

    def _advance(self, name: str, now: float, progress: Progress) -> None:
        item = self._items.get(name)
        if item is None:
            return
        if item.state == OK and item.next_moment <= now:
            item.state = ALERT
            progress.alerts.append(item)
        if item.state == ALERT and item.next_moment <= now:
            self._by_state[ALERT].discard(name)
            item.state = OVERDUE
            progress.due.append(item)
        self._file(name, item)

    def _file(self, name: str, item: Item) -> None:
        if item.state in self._by_state:
            self._by_state[item.state].add(name)
        moment = item.next_moment
        if moment < self._entries.get(name, NEVER):
            self._entries[name] = moment
            heapq.heappush(self._heap, (moment, name))

    def _clear_heap(self) -> None:
        kept = {name: moment for name, moment in self._entries.items() if name in self._items}
        self._entries = kept
        self._heap = [(moment, name) for name, moment in kept.items()]
        heapq.heapify(self._heap)


def _still_past_alert(before: Item, row: Row) -> bool:
    """Tell whether a lock that was past its alert is past the same one still."""
    return (
        before.state in (ALERT, OVERDUE)
        and before.row.holder.uuid == row.holder.uuid
        and before.row.holder.alert_at == row.holder.alert_at
    )
