"""The columns of the lists of locks: titles, sort keys, and how their cells are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest, nsmallest
from typing import Any, Final, NamedTuple

from lockclient.overview.listed_locks import Listed
from lockclient.overview.lock_presentation import no_unlock, unlocks_at, until_unlock
from lockclient.text.durations import duration, roughly
from lockclient.text.escaping import shown_name
from lockclient.text.timestamps import distance

MANY_WAITERS: Final = 5
"""From so many on the number of waiters is coloured."""

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
    return no_unlock(lock.holder) or ("" if stamp is None else until_unlock(stamp, wall))


def _process(_: str, lock: Listed, __: float) -> str:
    return f"{lock.holder.hostname or '?'}:{lock.holder.pid or '?'}"


def _queue(waiters: int | None, lock: Listed, wall: float) -> str:
    if not waiters:
        return "–" if waiters is None else "0"
    since = lock.waits_since
    return f"{waiters}" if since is None else f"{waiters} · {roughly(wall - since)}"


STATE: Final = CellKind("state", lambda _, lock, __: lock.status.verdict)
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
        value: of a `Listed`, what to sort by; a lock for which that is None comes last, either way.
        spare: left out early if a terminal has no room.
        while_held: whether the cell is empty after the lock has ended.
    """

    key: str
    title: str
    short: str
    kind: CellKind
    value: Callable[[Listed], Any]
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


Place = tuple[bool, Any, str, bool]


def place_in(sort: str) -> Callable[[Listed], Place]:
    """Return the sort key of a list's rows by a key of `SORTS`; with a leading `-` the list is to
    be sorted the other way round by it."""
    value, backwards = SORTS[sort.removeprefix("-")], sort.startswith("-")

    def place(lock: Listed) -> Place:
        found = value(lock)
        is_last = (found is None) != backwards
        return is_last, 0 if found is None else found, lock.holder.name, lock.ended is not None

    return place


def first_of(locks: Iterable[Listed], sort: str, count: int) -> list[Listed]:
    """Return the first locks in the order of a key of `SORTS`."""
    pick = nlargest if sort.startswith("-") else nsmallest
    return pick(count, locks, place_in(sort))
