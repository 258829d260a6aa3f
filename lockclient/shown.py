"""How locks are shown to people and told to programs: the same words in command and dashboard."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from lockclient.record import ALERT, BROKEN, OK, OVERDUE, Holder, Removal

# ---------------------------------------------------------------- hostile texts

_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e"  # controls, marks
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # overrides, isolates
    "\ud800-\udfff"  # lone surrogates, which can't even be written as UTF-8
)
ONE_LINE = re.compile(f"([{_INVISIBLE}])")
BLOCK = re.compile(rf"((?![\n\t])[{_INVISIBLE}])")


def escaped(char: str) -> str:
    """Write an invisible character so that it shows, like `\\u202e`."""
    return char.encode("unicode_escape").decode()


def plain(text: object, *, block: bool = False) -> str:
    """Return a hostile text in which all of it shows, and nothing outside it is moved.

    What would be invisible, change the order of what stands around it or steer a terminal is
    written as an escape; in a `block`, line ends and tabs stay.
    """
    return (BLOCK if block else ONE_LINE).sub(lambda found: escaped(found[0]), str(text))


# ---------------------------------------------------------------- times


def duration(seconds: float) -> str:
    """Write a duration in its two largest units; less than none is none."""
    whole = max(0, int(seconds))
    days, hours = divmod(whole // 3600, 24)
    minutes = whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole % 60} s"
    return f"{whole} s"


def compact(seconds: float) -> str:
    """Write a duration for a table, like `4m12s`."""
    return duration(seconds).replace(" min", "m").replace(" ", "")


def utc(stamp: float) -> str:
    """Write a wall-clock time for people."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def distance(stamp: float, wall: float, written: Callable[[float], str] = duration) -> str:
    """Write how far a wall-clock time is from `wall`: `in 3 s`, `3 s ago`."""
    return f"in {written(stamp - wall)}" if stamp > wall else f"{written(wall - stamp)} ago"


# ---------------------------------------------------------------- the stamps as a picture

_ROOM_AFTER_ALERT = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """A lock's stamps from taken to auto-unlock, a notch at the alert.

    The whole width is `start` to `end` (Unix seconds); `notch` is from 0 to 1. `open` means that
    there is no auto-unlock: the width then leaves some room after the alert. `text` says it all.
    """

    start: float
    end: float
    notch: float
    open: bool
    text: str

    @classmethod
    def of(cls, holder: Holder) -> Bar | None:
        """Return a lock's bar; None if its stamps do not make one."""
        start = holder.alive_at if holder.locked_at is None else holder.locked_at
        alert, end = holder.alert_at, holder.auto_unlock_at
        if start is None or alert is None:
            return None
        text = f"Taken {utc(start)}, alert {utc(alert)}, "
        text += "never unlocked by itself" if end is None else f"auto-unlock {utc(end)}"
        whole = (alert - start) * _ROOM_AFTER_ALERT if end is None else end - start
        if whole <= 0:
            return None
        return cls(start, start + whole, _within((alert - start) / whole), end is None, text)

    def filled(self, wall: float) -> float:
        """Return how much of the width has passed at `wall`, from 0 to 1."""
        return _within((wall - self.start) / (self.end - self.start))


def _within(part: float) -> float:
    return min(1.0, max(0.0, part))


# ---------------------------------------------------------------- lists


class Sortable(Protocol):
    """What a list knows of a lock."""

    @property
    def holder(self) -> Holder:
        """Who has it."""

    @property
    def waiters(self) -> int:
        """How many wait for it."""

    @property
    def urgency(self) -> tuple[int, float]:
        """What the most urgent lock has least of; see `urgency`."""


class Listed(NamedTuple):
    """One lock in a list."""

    holder: Holder
    state: str
    waiters: int

    @property
    def urgency(self) -> tuple[int, float]:
        """See `Sortable`."""
        return urgency(self.holder, self.state)


_URGENCY: Final = {OVERDUE: 0, BROKEN: 1, ALERT: 2, OK: 3}


def urgency(holder: Holder, state: str) -> tuple[int, float]:
    """Return what the most urgent lock has least of: overdue first, then by the time left."""
    return _URGENCY[state], inf if holder.auto_unlock_at is None else holder.auto_unlock_at


SORTS: Final[Mapping[str, Callable[[Sortable], Any]]] = {
    "state": lambda lock: lock.urgency,
    "name": lambda lock: lock.holder.name.casefold(),
    "hostname": lambda lock: lock.holder.hostname,
    "reason": lambda lock: lock.holder.reason or None,
    "locked_at": lambda lock: lock.holder.locked_at,
    "auto_unlock_at": lambda lock: lock.holder.auto_unlock_at,
    "waiters": lambda lock: lock.waiters,
}
"""What a list of locks can be sorted by; a lock without the value comes last, either way."""


def in_order(locks: Iterable[Listed], sort: str) -> list[Listed]:
    """Sort locks by a key of `SORTS`, with a leading `-` the other way round."""
    key = SORTS[sort.removeprefix("-")]
    by_name = sorted(locks, key=lambda lock: lock.holder.name)
    known = [lock for lock in by_name if key(lock) is not None]
    known.sort(key=key, reverse=sort.startswith("-"))
    return known + [lock for lock in by_name if key(lock) is None]


def searchable(holder: Holder) -> str:
    """Return what a search looks at: the lock's name, host and reason."""
    return "\n".join((holder.name, holder.hostname or "", holder.reason or "")).casefold()


def searchable_removal(removal: Removal) -> str:
    """Return what a search looks at in a removal: who did it, how and why besides."""
    own = "\n".join((removal.removed_by, removal.how, removal.why)).casefold()
    return f"{searchable(removal.holder)}\n{own}"


def has_words(words: Sequence[str], text: str) -> bool:
    """Tell whether each of the words is somewhere in a text of `searchable`."""
    return all(word.casefold() in text for word in words)


# ---------------------------------------------------------------- JSON


def lock_facts(holder: Holder, state: str, waiters: int) -> dict[str, Any]:
    """Return a lock for JSON as a list has it, without its backtrace (design, section 7.1)."""
    facts = holder.facts()
    del facts["backtrace"]
    name, uuid = facts.pop("name"), facts.pop("uuid")
    return {"name": name, "uuid": uuid, "state": state, **facts, "waiters": waiters}


def removal_facts(removal: Removal) -> dict[str, Any]:
    """Return a removal for JSON, without the holder's backtrace: lists keep none."""
    facts = removal.facts()
    del facts["backtrace"]
    return facts
