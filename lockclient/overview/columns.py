"""The columns of the lists of locks: titles, sort keys, and how their cells are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final, NamedTuple

from lockclient.model.holder import BROKEN, OK, OVERDUE, UNDECIDED, Holder
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_view import no_unlock, unlocks_at
from lockclient.overview.verdict import DEADLOCK, Standing
from lockclient.text.durations import duration, roughly
from lockclient.text.escaping import shown_name
from lockclient.text.timestamps import distance

# ---------------------------------------------------------------- rows


Urgency = tuple[int, int, int, float, float]


class Listed(NamedTuple):
    """One lock in a list.

    Attributes:
        waiters: their number; None: unknown, the store has no queue.
        head: the first ticket of the queue, if that was read.
        deadlock: `Deadlock.seen_from` this lock; empty: it is in none.
    """

    holder: Holder
    standing: Standing
    waiters: int | None
    head: Ticket | None = None
    deadlock: tuple[str, ...] = ()

    @property
    def urgency(self) -> Urgency:
        return urgency(self.holder, self.standing, self.waiters or 0, self.head)


MANY_WAITERS: Final = 5
"""From so many on the number of waiters is coloured."""

_FOR_A_PERSON: Final = {BROKEN: 0, UNDECIDED: 1, DEADLOCK: 2}
_NEVER_REMOVED, _REMOVED_LATER = 3, 4


def urgency(
    holder: Holder, standing: Standing, waiters: int, head: Ticket | None = None
) -> Urgency:
    """Return the sort key, the most urgent lock first: overdue ones first, healthy ones last.

    The others go by how many wait; then those first that only a person can free; then by the
    revision of the oldest ticket (`head`), which no waiter's clock moves; then by the time left.
    Tickets may forge waiters and deadlocks: an overdue lock stands above all of them.
    """
    due = unlocks_at(holder)
    left = inf if due is None else due
    verdict = standing.verdict
    if verdict == OK:
        return 2, 0, 0, inf, left
    silent = holder.alert_at if due is None and holder.alert_at is not None else left
    freed = _FOR_A_PERSON.get(verdict, _NEVER_REMOVED if due is None else _REMOVED_LATER)
    oldest = inf if head is None else head.revision
    return int(standing.state != OVERDUE), -waiters, freed, oldest, silent


# ---------------------------------------------------------------- cells


class CellKind(NamedTuple):
    """The way a column's cells are written.

    `name` is a macro of cells.html and a layout of the command's table; `text` writes a cell there.
    """

    name: str
    text: Callable[[Any, Listed, float], str]


def _countdown(stamp: float | None, _: Listed, wall: float) -> str:
    return "" if stamp is None else distance(stamp, wall)


def _deadline(stamp: float | None, lock: Listed, wall: float) -> str:
    return no_unlock(lock.holder) or _countdown(stamp, lock, wall)


def _process(_: str, lock: Listed, __: float) -> str:
    return f"{lock.holder.hostname or '?'}:{lock.holder.pid or '?'}"


def _queue(waiters: int | None, lock: Listed, wall: float) -> str:
    if not waiters:
        return "–" if waiters is None else "0"
    since = None if lock.head is None else lock.head.since
    return f"{waiters}" if since is None else f"{waiters} · {roughly(wall - since)}"


STATE: Final = CellKind("state", lambda _, lock, __: lock.standing.verdict)
NAME: Final = CellKind("name", lambda _, lock, __: shown_name(lock.holder.name))
PROCESS: Final = CellKind("process", _process)
PROSE: Final = CellKind("prose", lambda text, _, __: text or "")
AGE: Final = CellKind("age", lambda at, _, wall: "" if at is None else duration(wall - at))
"""Since a time, in Unix seconds."""
COUNTDOWN: Final = CellKind("countdown", _countdown)
"""How far away a time is, in Unix seconds."""
DEADLINE: Final = CellKind("deadline", _deadline)
QUEUE: Final = CellKind("queue", _queue)

# ---------------------------------------------------------------- columns


class Column(NamedTuple):
    """A column of the lists of locks, and the key that sorts them.

    Attributes:
        title, short: its headings on the dashboard (empty: it has none there) and in the command.
        value: of a `Listed`, or of a row of the dashboard, what to sort by; a lock for which that
            is None comes last, either way.
        spare: whether it is the first to be left out where a terminal has no room.
        while_held: whether nothing stands in it once the lock is gone.
    """

    key: str
    title: str
    short: str
    kind: CellKind
    value: Callable[[Any], Any]
    spare: bool = False
    while_held: bool = False

    @property
    def descending(self) -> bool:
        return self.kind is QUEUE


COLUMNS: Final = (
    Column("state", "State", "STATE", STATE, lambda lock: lock.urgency),
    Column("name", "Lock", "NAME", NAME, lambda lock: lock.holder.name.casefold()),
    Column("waiters", "Waiters", "WAIT", QUEUE, lambda lock: lock.waiters),
    Column("hostname", "Holder", "HOLDER", PROCESS, lambda lock: lock.holder.hostname),
    Column("reason", "Reason", "REASON", PROSE, lambda lock: lock.holder.reason or None),
    Column("locked_at", "Held for", "HELD", AGE, lambda lock: lock.holder.locked_at),
    Column(
        "alive_at", "Silent for", "SILENT", AGE, lambda lock: lock.holder.alive_at,
        spare=True, while_held=True,
    ),
    # On the dashboard it is a notch in the bar of the auto-unlock.
    Column("alert_at", "", "ALERT", COUNTDOWN, lambda lock: lock.holder.alert_at, spare=True),
    Column(
        "auto_unlock_at", "Until auto-unlock", "UNLOCK", DEADLINE,
        lambda lock: unlocks_at(lock.holder),
    ),
)  # fmt: skip
SORTS: Final = {column.key: column.value for column in COLUMNS}
"""What a list of locks can be sorted by."""


def in_order(locks: Iterable[Listed], sort: str) -> list[Listed]:
    """Sort locks by a key of `SORTS`, with a leading `-` the other way round."""
    key = SORTS[sort.removeprefix("-")]
    by_name = sorted(locks, key=lambda lock: lock.holder.name)
    known = [lock for lock in by_name if key(lock) is not None]
    known.sort(key=key, reverse=sort.startswith("-"))
    return known + [lock for lock in by_name if key(lock) is None]
