"""How locks are shown to people and told to programs: the same words in command and dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from lockclient.model.fields import (
    COUNT,
    KNOWN,
    NAMES,
    NEVER,
    SECONDS,
    TEXT,
    TIME,
    UNKNOWN,
    Fact,
)
from lockclient.model.holder import (
    ALERT,
    BROKEN,
    FACTS,
    OK,
    OVERDUE,
    STATES,
    UNDECIDED,
    Holder,
    Ticket,
)
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.text.durations import duration, period

# ---------------------------------------------------------------- servers that vote


def too_few(votes: Mapping[str, str]) -> str:
    """Say which servers have no vote (`ServiceStore.votes`), and why, if the others are too few."""
    away = [f"{server} ({why})" for server, why in votes.items() if why]
    if 2 * (len(votes) - len(away)) > len(votes) or not away:
        return ""
    return f"{len(away)} of {len(votes)} servers have no vote: {'; '.join(away)}."


# ---------------------------------------------------------------- times


@lru_cache(4096)  # a page with a hundred locks has seven times each, mostly those of before
def utc(stamp: float) -> str:
    """Write a wall-clock time for people."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def distance(stamp: float, wall: float) -> str:
    """Write how far a wall-clock time is from `wall`: `in 3 s`, `3 s ago`."""
    return f"in {duration(stamp - wall)}" if stamp > wall else f"{duration(wall - stamp)} ago"


# ---------------------------------------------------------------- facts


def undecided(holder: Holder) -> str:
    """Say why nobody can tell when a lock may be removed; empty if that can be told.

    Of a broken lock there is more to say: `Holder.faults`.
    """
    return "" if holder.broken() else holder.undecided()


def no_unlock(holder: Holder) -> str:
    """Return the word that stands where the auto-unlock would; empty if one is to come."""
    if holder.broken():
        return UNKNOWN
    if holder.undecided():
        return UNDECIDED
    return NEVER if holder.auto_unlock_at is None else ""


def unlocks_at(holder: Holder) -> float | None:
    """Return from when on the unlocker removes the lock; None if it does not, as far as we know."""
    return None if no_unlock(holder) else holder.auto_unlock_at


_TITLED: Final = sorted(
    (fact for fact in FACTS if fact.title),
    key=lambda fact: fact.name == "uuid",  # comes last: people look for host and process
)


class FactRow(NamedTuple):
    """A fact of a lock as people see it: its value, with a word beside it or instead of it."""

    fact: Fact
    value: Any
    word: str

    @property
    def timed(self) -> bool:
        """Whether it is a time, which is written by whoever shows it."""
        return self.fact.kind == TIME


def fact_rows(holder: Holder) -> list[FactRow]:
    """Return what people see of a lock, in their order."""
    found, no_auto_unlock = [], no_unlock(holder)
    for fact in _TITLED:
        value = holder.token_told() if fact.name == "fencing_token" else getattr(holder, fact.name)
        timed = fact.kind == TIME
        missing = value is None if timed else not value
        if fact.absent == NEVER and (missing or timed):
            word = no_auto_unlock
        else:
            word = fact.absent if missing else ""
        if word or not missing:
            found.append(FactRow(fact, None if missing else value, word))
    return found


def fact_text(fact: Fact, value: Any) -> str:
    """Write a fact for people."""
    if fact.kind == TIME:
        return utc(value)
    if fact.kind == SECONDS:
        return period(value)
    return ", ".join(value) if fact.kind == NAMES else str(value)


# ---------------------------------------------------------------- the stamps as a picture

NOTCH: Final = 0.5
"""Where on each bar the alert is, from 0 to 1."""
_ROOM_AFTER_ALERT = 2.0
"""How long a bar without an end is, in times from the sign of life to the alert."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A lock's silence: from its last sign of life to its auto-unlock, a notch at the alert.

    Not its age: a lock that is held for days and pushed a second ago is as well as a new one. And
    not on one scale: the alert is in the same place on every bar, so that one past its alert is
    fuller than any that is well, however long it has until the auto-unlock.

    `start`, `alert` and `end` are Unix seconds. `open` means that no auto-unlock is to come: the
    bar then leaves room after the alert. `text` says it all.
    """

    start: float
    alert: float
    end: float
    open: bool
    text: str

    @classmethod
    def of(cls, holder: Holder) -> Bar | None:
        """Return a lock's bar; None if its stamps do not make one, or tell no sign of life."""
        start, alert, end = holder.alive_at, holder.alert_at, unlocks_at(holder)
        if start is None or alert is None:
            return None
        unlock = no_unlock(holder) if end is None else utc(end)
        text = f"Last sign of life {utc(start)}, alert {utc(alert)}, auto-unlock {unlock}"
        last = start + (alert - start) * _ROOM_AFTER_ALERT if end is None else end
        return cls(start, alert, last, end is None, text) if start < alert < last else None

    def filled(self, wall: float) -> float:
        """Return how much of the width has passed at `wall`, from 0 to 1."""
        if wall < self.alert:
            return NOTCH * _within((wall - self.start) / (self.alert - self.start))
        return NOTCH + (1 - NOTCH) * _within((wall - self.alert) / (self.end - self.alert))


def _within(part: float) -> float:
    return min(1.0, max(0.0, part))


# ---------------------------------------------------------------- lists


Urgency = tuple[int, bool, int, float, float]


class Sortable(Protocol):
    """What a list knows of a lock."""

    @property
    def holder(self) -> Holder:
        """Who has it."""

    @property
    def waiters(self) -> int | None:
        """How many wait for it; None: the store has no line, so that nobody knows."""

    @property
    def urgency(self) -> Urgency:
        """What the most urgent lock has least of; see `urgency`."""


class Listed(NamedTuple):
    """One lock in a list; `like` is another one whose name looks the same, or empty.

    `head` is what `urgency` asks for, `waiters` None where nobody knows who waits, and
    `waits_since` when the first in line came (Unix seconds, on its own clock), if that is known.
    """

    holder: Holder
    state: str
    waiters: int | None
    like: str = ""
    head: float = inf
    waits_since: float | None = None

    @property
    def urgency(self) -> Urgency:
        """See `Sortable`."""
        return urgency(self.holder, self.state, self.waiters or 0, self.head)


_URGENCY: Final = {OVERDUE: 0, BROKEN: 1, UNDECIDED: 2, ALERT: 3, OK: 4}


def urgency(holder: Holder, state: str, waiters: int, head: float = inf) -> Urgency:
    """Return what the most urgent lock has least of: overdue first, and the well ones last.

    Among those that are not well first the ones that only a person can free, because nothing else
    will; then those for which most wait, and of these the one whose first waits longest; then by
    the time left. Where all is well nobody is needed, and it goes by the time left alone.

    Args:
        head: the revision of the ticket that has waited longest, which no waiter's clock moves;
            `inf` if it is not known, as of a line that was not read.
    """
    due = unlocks_at(holder)
    left = inf if due is None else due
    if state == OK:
        return _URGENCY[OK], False, 0, inf, left
    silent = holder.alert_at if due is None and holder.alert_at is not None else left
    return _URGENCY[state], due is not None, -waiters, head, silent


class Column(NamedTuple):
    """A column of the list of locks.

    Attributes:
        key: what the list is sorted by, and what its cells go by where they are shown: in
            `mutexdash/templates/locks.html`, and in `CELLS` of `cli/listing.py`.
        title: its heading on the dashboard; empty: it has none there.
        short: its heading in the command's table.
        value: what to sort by; a lock for which that is None comes last, either way.
    """

    key: str
    title: str
    short: str
    value: Callable[[Sortable], Any]


COLUMNS: Final = (
    Column("state", "State", "STATE", lambda lock: lock.urgency),
    Column("name", "Lock", "NAME", lambda lock: lock.holder.name.casefold()),
    Column("hostname", "Holder", "HOLDER", lambda lock: lock.holder.hostname),
    Column("reason", "Reason", "REASON", lambda lock: lock.holder.reason or None),
    Column("locked_at", "Held for", "HELD", lambda lock: lock.holder.locked_at),
    Column("alive_at", "Silent for", "SILENT", lambda lock: lock.holder.alive_at),
    Column("alert_at", "", "ALERT", lambda lock: lock.holder.alert_at),  # a notch in the bar
    Column("auto_unlock_at", "Until auto-unlock", "UNLOCK", lambda lock: unlocks_at(lock.holder)),
    Column("waiters", "Waiters", "WAIT", lambda lock: lock.waiters),
)
SORTS: Final = {column.key: column.value for column in COLUMNS}
"""What a list of locks can be sorted by."""


def in_order(locks: Iterable[Listed], sort: str) -> list[Listed]:
    """Sort locks by a key of `SORTS`, with a leading `-` the other way round."""
    key = SORTS[sort.removeprefix("-")]
    by_name = sorted(locks, key=lambda lock: lock.holder.name)
    known = [lock for lock in by_name if key(lock) is not None]
    known.sort(key=key, reverse=sort.startswith("-"))
    return known + [lock for lock in by_name if key(lock) is None]


# ---------------------------------------------------------------- JSON

_NOW: Final = (
    Fact("state", TEXT, KNOWN, "", f"One of {', '.join(STATES)}.", optional=False),
    Fact(
        *("undecided", TEXT, KNOWN, ""),
        "Why it can't be told when it may be removed, so that nobody but people removes it; "
        "null: it can be told.",
    ),
)
_WAITERS: Final = Fact(
    *("waiters", COUNT, KNOWN, ""),
    "How many wait for it; null: the store has no line, so that nobody knows.",
)
_TOLD: Final = tuple(fact for fact in FACTS if fact.told)
_LISTED: Final = tuple(fact for fact in _TOLD if fact.listed)
LOCK_FACTS: Final = (*_LISTED[:2], *_NOW, *_LISTED[2:], _WAITERS)
"""What programs are told of a lock in a list: which one it is, how it is, all else."""
REMOVED_FACTS: Final = (*_LISTED, *REMOVAL_FACTS)
"""And of a removal in one."""
UNLISTED: Final = tuple(fact for fact in _TOLD if not fact.listed)
"""And of a lock or a removal that is asked for by itself, besides."""


def lock_facts(holder: Holder, state: str, waiters: int | None) -> dict[str, Any]:
    """Return a lock for JSON as a list has it; `waiters` None: nobody knows who waits."""
    now = {"state": state, "undecided": undecided(holder) or None, "waiters": waiters}
    return _picked(LOCK_FACTS, holder.facts() | now)


def whole_lock(holder: Holder, state: str, line: Sequence[Ticket] | None) -> dict[str, Any]:
    """Return a lock for JSON with all that is known of it, its line included, if it has one."""
    waiters = None if line is None else len(line)
    listed, rest = lock_facts(holder, state, waiters), _picked(UNLISTED, holder.facts())
    return listed | rest | {"queue": [ticket.facts() for ticket in line or ()]}


def removal_facts(removal: Removal) -> dict[str, Any]:
    """Return a removal for JSON as a list has it."""
    return _picked(REMOVED_FACTS, removal.facts())


def _picked(wanted: Sequence[Fact], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {fact.name: facts[fact.name] for fact in wanted}
