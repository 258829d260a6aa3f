"""Conditions: what is wrong now, as people are notified of it.

Each kind has a rule in Prometheus with the same `for`. All other rules stay with Prometheus: the
unlocker does not know waiters, and can't tell of its own end.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from lockclient.model.holder import Holder
from lockclient.text.escaping import ascii_name, one_line, shown_name

CRITICAL, WARNING = "critical", "warning"
_HASH_CHARS, _BEAT_CHARS = 8, 4
"""Characters of a hash, of 6 bits each: of a holder, and of its last heartbeat."""


OF_HOLDER, OF_HEARTBEAT, OF_UNLOCKER = "holder", "heartbeat", "unlocker"
"""What a condition is true of, and ends with: a lock's holder; that, and its last heartbeat; the
announcement of an unlocker."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of condition.

    Attributes:
        code: its first character in ids and documents, which stays as it is.
        is_now: how a sentence about the lock or the unlocker continues.
        for_s: seconds that it must last before people are notified.
        rule: the alert rule in Prometheus that reports it.
        of: what it is true of.
    """

    code: str
    is_now: str
    for_s: float
    rule: str
    of: str
    severity: str = WARNING

    def counted(self, number: int) -> str:
        """Return how a title counts conditions: `2 locks past their alert`."""
        what = "unlocker" if self.of is OF_UNLOCKER else "lock"
        if number == 1:
            return f"1 {what} {self.is_now}"
        return f"{number:,} {what}s {self.is_now.replace('its ', 'their ')}"


OVER_S = 180.0
"""Seconds that a condition must be over before people are notified of its end; `keep_firing_for` of
the rules. It is longer than the table of a ready unlocker can be late. So what has been over for so
long for an unlocker that was ready all the time is over in a table that is not older than the one
by which people were notified."""

BLIND = Kind("x", "blind", 30, "UnlockerSnapshotStale", OF_UNLOCKER, CRITICAL)
OVERDUE = Kind("o", "overdue and not removed", 120, "LockOverdue", OF_HEARTBEAT, CRITICAL)
RATE_LIMIT = Kind("r", "holding removals back", 0, "UnlockerRateLimit", OF_UNLOCKER, CRITICAL)
UNCLAIMED = Kind(
    "w", "seeing free locks with waiters", 15, "LockFreeWithWaiters", OF_UNLOCKER, CRITICAL
)
PAST_ALERT = Kind("a", "past its alert", 30, "LockPastAlert", OF_HEARTBEAT)
TOO_LONG = Kind("t", "held longer than its max_hold", 30, "LockHeldTooLong", OF_HOLDER)
BROKEN = Kind("b", "broken and never removed", 60, "BrokenLock", OF_HEARTBEAT)
UNDECIDED = Kind("u", "undecided and never removed", 300, "LockUndecided", OF_HEARTBEAT)
KEPT = Kind("k", "kept only by restarts", 900, "LockKeptByRestarts", OF_HEARTBEAT)
CLOCK = Kind("c", "without a clock to trust", 300, "ClockSkew", OF_UNLOCKER)
_CRITICAL_KINDS = BLIND, OVERDUE, RATE_LIMIT, UNCLAIMED
_OTHER_KINDS = PAST_ALERT, TOO_LONG, BROKEN, UNDECIDED, KEPT, CLOCK
KINDS: Final = {kind.code: kind for kind in (*_CRITICAL_KINDS, *_OTHER_KINDS)}
"""The kinds by their codes, the most severe first."""
RATE_LIMIT_TEXT = "More locks are due than may be removed in a minute: the others are kept for now."


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong with a lock, or with the unlocker that says so.

    Attributes:
        id: `Kind.code`, a hash of the lock's name and holder (or of the unlocker), and if a
            heartbeat ends it, a hash of `alert_at`.
        name: of the lock, or of the unlocker.
        subject: its holder, or what the unlocker says of itself.
    """

    id: str
    name: str
    subject: Holder | str

    @property
    def kind(self) -> Kind:
        """Return its kind."""
        return KINDS[self.id[0]]

    def line(self, *, escape: bool) -> str:
        """Return the sentence about it; `escape`: without texts of the holder."""
        if not isinstance(self.subject, Holder):
            said = "see its log." if escape else one_line(self.subject)
            return f"{described(self.kind, self.name, escape=escape)}: {said}"
        lock = f"{described(self.kind, self.name, escape=escape)} is {self.kind.is_now}"
        if escape:
            return f"{lock}."
        if self.kind is BROKEN:
            return f"{lock}: {one_line('; '.join(self.subject.faults()))}."
        return f"{lock}, held by {one_line(self.subject.describe())}."


def condition_of(kind: Kind, holder: Holder) -> Condition:
    """Return a condition of a lock."""
    found = possible_ids(holder)[kind.of is OF_HEARTBEAT]
    return Condition(kind.code + found, holder.name, holder)


def unlocker_condition(kind: Kind, unlocker: str, text: str) -> Condition:
    """Return a condition of an unlocker."""
    return Condition(kind.code + _hashed(unlocker), unlocker, text)


def holder_of(condition_id: str) -> str:
    """Return the part of an id that names the holder."""
    return condition_id[1 : 1 + _HASH_CHARS]


def is_condition(item: str) -> bool:
    """Return whether an item of a message is the id of a condition."""
    return len(item) > 1 and item[0] in KINDS


def possible_ids(holder: Holder) -> tuple[str, str]:
    """Return the ids, without their codes, of what may be wrong with a lock."""
    found = holder_hash(holder.name, holder.uuid)
    return found, found + _hashed(f"{holder.alert_at}", _BEAT_CHARS)


@lru_cache(maxsize=4096)
def holder_hash(name: str, uuid: str | None) -> str:
    """Return 48 bits of a hash of an acquisition."""
    return _hashed(f"{name}\0{uuid}")


def _hashed(text: str, chars: int = _HASH_CHARS) -> str:
    digest = blake2b(text.encode(errors="replace"), digest_size=chars * 3 // 4).digest()
    return urlsafe_b64encode(digest).decode()


def described(kind: Kind, name: str, *, escape: bool) -> str:
    """Return how a sentence about a lock or an unlocker begins."""
    if kind.of is OF_UNLOCKER:
        return safe_name(name) if escape else one_line(name)
    return f"Lock {safe_name(name)}" if escape else f"Lock '{shown_name(name)}'"


def unclaimed_text(names: Sequence[str]) -> str:
    """Return the sentence about free locks whose first waiters do not take them."""
    first = ", ".join(f"'{shown_name(name)}'" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"Free, and not taken by the first waiter: {first}{more}."


def safe_name(name: str) -> str:
    """Return a lock's name with all but `A-Za-z0-9._/-` written as escapes."""
    shown = ascii_name(name)
    return "".join(
        char if char.isalnum() or char in "._/-" else f"_{ord(char):02x}" for char in shown
    )
