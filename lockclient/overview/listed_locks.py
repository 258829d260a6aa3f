"""The rows of a list of locks, for the dashboard and for the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from lockclient.model.deadlocks import Deadlock, by_lock
from lockclient.model.holder import BROKEN, OK, OVERDUE, UNDECIDED, Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.model.ticket import Ticket
from lockclient.overview.live_table import Table
from lockclient.overview.lock_presentation import unlocks_at
from lockclient.overview.lock_status import DEADLOCK, LockStatus, status_of
from lockclient.overview.rows import Row
from lockclient.overview.search import searchable

RELEASED: Final = "released"

_DONE: Final = {
    RELEASED: "Released",
    AUTO_UNLOCK: "Auto-unlocked",
    FORCE_UNLOCK: "Force-unlocked",
}
_FOR_A_PERSON: Final = {BROKEN: 0, UNDECIDED: 1, DEADLOCK: 2}
_NEVER_REMOVED, _REMOVED_LATER = 3, 4

Urgency = tuple[int, int, int, float, float, str]
HEALTHY: Final = (2,)
"""Below the urgency of each lock that is `ok` alone, above all others."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a holder's time with a lock.

    Attributes:
        at: Unix seconds on this machine's clock; if not `exact`, the latest possible time: the lock
            went while nothing was followed.
        how: `released`, or what the removal record says, `auto-unlock` or `force-unlock`.
        by, why: of the removal record.
    """

    holder: Holder
    at: float
    how: str = RELEASED
    by: str = ""
    why: str = ""
    exact: bool = True

    @property
    def text(self) -> str:
        by = f" by {self.by}" if self.by else ""
        why = f": {self.why}" if self.why else ""
        return f"{_DONE.get(self.how, self.how)}{by}{why}"


class Listed(NamedTuple):
    """One lock in a list.

    Attributes:
        waiters: their number; None: unknown, the store has no queue.
        head: the first ticket of the queue, if that was read.
        deadlock: `Deadlock.seen_from` this lock; empty: it is in none.
        urgency: the sort key, least for the most urgent lock; no two rows of a list have the same.
        text: what a word without a field is searched for in.
        until: the time (Unix seconds) up to which `status` stays right if nothing is written.
        ended: None while the lock is held.
    """

    holder: Holder
    status: LockStatus
    waiters: int | None
    head: Ticket | None
    deadlock: tuple[str, ...]
    urgency: Urgency
    text: str
    until: float
    ended: Ended | None = None

    @classmethod
    def of(
        cls,
        holder: Holder,
        wall: float,
        waiters: int | None = 0,
        head: Ticket | None = None,
        deadlock: tuple[str, ...] = (),
        ended: Ended | None = None,
    ) -> Listed:
        """Return the row of a lock that is judged at a wall-clock time."""
        status = status_of(holder, wall, deadlock=bool(deadlock))
        order = urgency(holder, status, waiters or 0, head)
        stamps = (holder.alert_at, holder.auto_unlock_at, holder.too_long_at)
        until = min((stamp for stamp in stamps if stamp is not None and stamp >= wall), default=inf)
        return cls(holder, status, waiters, head, deadlock, order, searchable(holder), until, ended)

    @property
    def key(self) -> str:
        """Tell this row from all others, also from another holder's of the same lock."""
        return f"{self.holder.name} {self.holder.uuid}"

    @property
    def waits_since(self) -> float | None:
        """The time at which the first waiter came, by its own clock (Unix seconds), if known."""
        return None if self.head is None else self.head.since


def urgency(
    holder: Holder, status: LockStatus, waiters: int, head: Ticket | None = None
) -> Urgency:
    """Return the sort key, the most urgent lock first: overdue ones first, healthy ones last.

    The others go by how many wait; then those first that only a person can free; then by the
    revision of the oldest ticket (`head`), which no waiter's clock moves; then by the time left.
    Tickets may forge waiters and deadlocks: an overdue lock comes before all of them.
    """
    due = unlocks_at(holder)
    left = inf if due is None else due
    verdict = status.verdict
    if verdict == OK:
        return *HEALTHY, 0, 0, inf, left, holder.name
    silent = holder.alert_at if due is None and holder.alert_at is not None else left
    freed = _FOR_A_PERSON.get(verdict, _NEVER_REMOVED if due is None else _REMOVED_LATER)
    oldest = inf if head is None else head.revision
    return int(status.state != OVERDUE), -waiters, freed, oldest, silent, holder.name


def lister(
    table: Table, wall: float, heads: Mapping[str, Ticket], deadlocks: Iterable[Deadlock]
) -> Callable[[Row], Listed]:
    """Return a function from a row of the table to its row in a list.

    It judges by `Table.judged_at`, so rows have to be read from the table after this call.

    Args:
        heads, deadlocks: of `WaitQueues`.
    """
    judged_at, waiters = table.judged_at(wall), table.waiters()
    nobody, circles = 0 if table.can.queue else None, by_lock(deadlocks)

    def listed(row: Row) -> Listed:
        name = row.holder.name
        circle = circles[name].seen_from(name) if name in circles else ()
        count = waiters.get(name, nobody)
        return Listed.of(row.holder, judged_at, count, heads.get(name), circle)

    return listed
