"""A lock as people see it: its facts, the word for its auto-unlock, the bar of its silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lockclient.model.announcement import started_at
from lockclient.model.fields import FLAG, NEVER, SECONDS, TEXTS, TIME, UNKNOWN, Fact, pairs
from lockclient.model.holder import FACTS, UNDECIDED, Holder
from lockclient.text.durations import duration, period
from lockclient.text.timestamps import distance, utc


def no_unlock(holder: Holder) -> str:
    """Return the word instead of an auto-unlock's time; empty if one is to come."""
    if holder.broken():
        return UNKNOWN
    if holder.undecided():
        return UNDECIDED
    return NEVER if holder.auto_unlock_at is None else ""


def unlocks_at(holder: Holder) -> float | None:
    return None if no_unlock(holder) else holder.auto_unlock_at


def until_unlock(stamp: float, wall: float) -> str:
    """Write how far the auto-unlock of a held lock is: `in 3 s`, `3 s overdue`."""
    return distance(stamp, wall) if stamp > wall else f"{duration(wall - stamp)} overdue"


def removed_from(holder: Holder, announcements: Iterable[str]) -> float | None:
    """Return before when no running unlocker removes a lock (Unix seconds); None: that is unknown.

    An unlocker counts the lock's whole time from its own start at the earliest.
    """
    due, silence = unlocks_at(holder), holder.allowed_silence
    started = [at for at in map(started_at, announcements) if at is not None]
    if due is None or silence is None or not started:
        return None
    return max(due, min(started) + silence)


_TITLED: Final = sorted(
    (fact for fact in FACTS if fact.title),
    key=lambda fact: fact.name == "uuid",  # comes last: people look for host and process
)


class FactRow(NamedTuple):
    """A fact of a lock as people see it: its value, with a word after it or instead of it."""

    fact: Fact
    value: Any
    word: str

    @property
    def timed(self) -> bool:
        return self.fact.kind == TIME


def fact_rows(holder: Holder, recorded: bool = False) -> list[FactRow]:
    """Return a holder's facts as people see them; `recorded`: from a record, without a verdict."""
    found, no_auto_unlock = [], "" if recorded else no_unlock(holder)
    for fact in _TITLED:
        value = holder.shown_token() if fact.name == "fencing_token" else getattr(holder, fact.name)
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
    if fact.kind == TIME:
        return utc(value)
    if fact.kind == SECONDS:
        return period(value)
    if fact.kind == TEXTS:
        return pairs(value)
    if fact.kind == FLAG:
        return "in the background: a hung worker looks healthy" if value else "no"
    return str(value)


NOTCH: Final = 0.5
"""Where on each bar the alert is, from 0 to 1."""

_ROOM_AFTER_ALERT = 2.0
"""How long a bar without an end is, in times from the heartbeat to the alert."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A lock's silence: from its last heartbeat to its auto-unlock, a notch at the alert.

    The alert is in the same place on every bar: one past its alert is fuller than any that is well.
    `open` means that no auto-unlock is to come: the bar then leaves room after the alert.
    """

    start: float
    alert: float
    end: float
    open: bool
    text: str

    @classmethod
    def of(cls, holder: Holder) -> Bar | None:
        """Return a lock's bar; None if its stamps make none."""
        start, alert, end = holder.alive_at, holder.alert_at, unlocks_at(holder)
        if start is None or alert is None:
            return None
        unlock = no_unlock(holder) if end is None else utc(end)
        text = f"Last heartbeat {utc(start)}, alert {utc(alert)}, auto-unlock {unlock}"
        last = start + (alert - start) * _ROOM_AFTER_ALERT if end is None else end
        return cls(start, alert, last, end is None, text) if start < alert < last else None

    def filled(self, wall: float) -> float:
        if wall < self.alert:
            return NOTCH * max(0.0, (wall - self.start) / (self.alert - self.start))
        return NOTCH + (1 - NOTCH) * min(1.0, (wall - self.alert) / (self.end - self.alert))
