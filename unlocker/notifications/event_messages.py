"""Events that people are notified of, each with one name for all unlockers, and their messages."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.text.durations import duration
from lockclient.text.escaping import plain, shown_name

PAST_ALERT, AUTO_UNLOCKED, FORCE_UNLOCKED = "past-alert", "auto-unlocked", "force-unlocked"
TOO_LONG, BROKEN, UNCLAIMED = "held-too-long", "broken", "unclaimed"
RESOLVED, RATE_LIMITED, IS_BLIND, SEES = "resolved", "brake", "blind", "sees"
"""Kinds of events. The values are in the shared note, so they stay as they are."""
KINDS = {
    PAST_ALERT: ("lock past its alert", "locks past their alert"),
    AUTO_UNLOCKED: ("lock auto-unlocked", "locks auto-unlocked"),
    FORCE_UNLOCKED: ("lock force-unlocked", "locks force-unlocked"),
    TOO_LONG: ("lock held too long", "locks held too long"),
    BROKEN: ("lock broken", "locks broken"),
    UNCLAIMED: ("lock free with waiters", "locks free with waiters"),
    RESOLVED: ("alert resolved", "alerts resolved"),
    RATE_LIMITED: ("rate limit engaged", "rate limits engaged"),
    IS_BLIND: ("unlocker blind", "unlockers blind"),
    SEES: ("unlocker working again", "unlockers working again"),
}
"""Kinds of events, with their names in a title: for one event, and for several."""
CONDITIONS = {
    TOO_LONG: "held too long",
    BROKEN: "broken",
    UNCLAIMED: "free while clients wait for it",
}
"""Kinds of events that `condition_events` finds, and the words for their end."""
REPEATABLE = {RATE_LIMITED, BROKEN, UNCLAIMED}
"""Kinds whose next event may have the same name after the last one has ended."""
RATE_LIMIT_LINE = "More locks are due than may be removed in a minute: the others are kept for now."
MAX_LINES = 20
"""Events that a message names."""
MARKED_AGE_S = 60.0
"""A message states the age of an event that is older than this, in seconds."""
TAG_CHARS = 8
_MAX_TEXT_CHARS = 500
"""Characters of a text from outside."""


@dataclass(eq=False, slots=True)
class Event:
    """Something that happened, as this unlocker has noticed it or as the note has it.

    Attributes:
        name: the same for all unlockers that notice it.
        kind: one of `KINDS`.
        line: the text; empty if only the number is sent, or once every recipient got it.
        at: when it happened, Unix seconds by some host's clock: for its age alone.
        revision: what the table showed when this unlocker noticed it.
        lock: only of an event that describes a lasting condition: the lock's name, or
            `RATE_LIMITED`.
        owed_to, sent_to: the recipients that must get it, and those that got it.
        noticed: when this unlocker noticed it, on its monotonic clock.
        found: whether it happened before this unlocker started.
        is_in_note: whether the note has it.
        is_current: returns whether the event still holds; an ended event is not added to the note.
    """

    name: str
    kind: str
    line: str
    at: float
    revision: int = 0
    lock: str = ""
    owed_to: list[str] = field(default_factory=list)
    sent_to: list[str] = field(default_factory=list)
    noticed: float = 0.0
    found: bool = False
    is_in_note: bool = False
    is_current: Callable[[], bool] = lambda: True

    @property
    def holder_hash(self) -> str:
        """Return the hash of the acquisition that it is about."""
        return self.name.partition(".")[0]

    @property
    def tag(self) -> str:
        """Return 48 bits of its name's hash, which the note keeps when the event is over."""
        return _hashed(self.name, TAG_CHARS)


def _hashed(text: str, chars: int) -> str:
    digest = blake2b(text.encode(errors="replace"), digest_size=chars * 3 // 4).digest()
    return urlsafe_b64encode(digest).decode()


def holder_name(holder: Holder) -> str:
    """Return a hash of an acquisition, 16 characters."""
    return _hashed(f"{holder.name}\0{holder.uuid}", 16)


def alert_name(holder: Holder) -> str:
    """Return the name of the alert that a holder is past, by its `alert_at`.

    Not by a revision: those of a bucket grow without a heartbeat.
    """
    return f"{holder_name(holder)}.{holder.alert_at or 0:.3f}"


def removal_name(holder: Holder) -> str:
    """Return the name of the removal of a holder; a holder has one removal at most."""
    return f"{holder_name(holder)}.gone"


def past_alert_line(holder: Holder) -> str:
    """Return the line about a lock that went past its alert."""
    lock, held_by = shown_name(holder.name), one_line(holder.describe())
    return f"Lock '{lock}' is past its alert, held by {held_by}."


def removal_line(removal: Removal) -> str:
    """Return the line about a removal."""
    lock, how = shown_name(removal.holder.name), one_line(removal.describe())
    held_by = one_line(removal.holder.describe())
    return f"Lock '{lock}' is gone by {how}. It was held by {held_by}."


def alert_end_line(event: Event, holder: Holder | None) -> str | None:
    """Return the line about the end of a past-alert event; None: it has not ended.

    Args:
        event: the event.
        holder: the lock's present holder; None: the lock is free.
    """
    why = "it is no longer held"
    if holder is not None:
        alert = alert_name(holder)
        if alert == event.name:
            return None
        same = alert.partition(".")[0] == event.holder_hash
        why = "its holder sent a heartbeat" if same else "somebody else holds it by now"
    return f"Lock '{shown_name(event.lock)}' is no longer past its alert: {why}."


def condition_end_line(event: Event) -> str:
    """Return the line about the end of an event whose kind is one of `CONDITIONS`."""
    return f"Lock '{shown_name(event.lock)}' is no longer {CONDITIONS[event.kind]}."


def blind_line(unlocker: str, why: str) -> str:
    """Return the line about an unlocker that is blind."""
    return f"{unlocker} can't do its work: {why}"


def sees_line(unlocker: str) -> str:
    """Return the line about an unlocker that was blind and works again."""
    return f"{unlocker} is working again."


def one_line(text: str) -> str:
    """Return a text from outside as one short line without control characters."""
    return plain(text[:_MAX_TEXT_CHARS])


def condition_events(
    holders: Iterable[Holder], unclaimed: Iterable[str], wall: float
) -> Iterator[Event]:
    """Yield an event for each lock that is held too long, broken, or free while clients wait.

    Args:
        holders: of all locks.
        unclaimed: names of the locks that are free though clients wait.
        wall: the wall clock.
    """
    for holder in holders:
        lock = f"Lock '{shown_name(holder.name)}'"
        if holder.broken():
            line = f"{lock} is broken and never removed: {'; '.join(holder.faults())}."
            name = f"{holder_name(holder)}.{BROKEN}"
            yield Event(name, BROKEN, line, wall, lock=holder.name)
        elif holder.too_long_at is not None and holder.too_long_at < wall:
            line = f"{lock} is held longer than its max_hold, by {holder.describe()}."
            name = f"{holder_name(holder)}.{TOO_LONG}"
            yield Event(name, TOO_LONG, line, wall, lock=holder.name)
    for lock_name in unclaimed:
        line = f"Lock '{shown_name(lock_name)}' is free, and its first waiter does not take it."
        name = f"{_hashed(lock_name, 16)}.{UNCLAIMED}"
        yield Event(name, UNCLAIMED, line, wall, lock=lock_name)


def portion(events: Sequence[Event]) -> Sequence[Event]:
    """Return the first events, as many as one message takes.

    These are at most `MAX_LINES` with a line; events without a line do not count.
    """
    lines = 0
    for place, event in enumerate(events):
        lines += bool(event.line)
        if lines > MAX_LINES:
            return events[:place]
    return events


@dataclass(frozen=True, slots=True)
class Message:
    """Events as people get them; `good`: none of them is bad news."""

    title: str
    body: str
    good: bool


def message_of(
    events: Iterable[Event], more: Mapping[str, int], where: str, now: float, mark: str = ""
) -> Message:
    """Return the message of these events, and of `more` that are only counted, by kinds.

    Args:
        events: in the order in which they happened.
        more: number of events that are too old or too many to list, by kind.
        where: the store.
        now: the wall clock.
        mark: a remark behind the title.
    """
    counts, lines = Counter[str](), list[str]()
    for event in events:
        counts[event.kind] += 1
        if event.line and len(lines) < MAX_LINES:
            age = now - event.at
            ago = f" ({duration(age)} ago)" if age >= MARKED_AGE_S else ""
            lines.append(plain(event.line) + ago)
    if (rest := counts.total() - len(lines)) > 0:
        lines.append(f"And {rest} more: the dashboard shows all.")
    if more:
        lines.append(f"Also, too old or too many to list: {_counted(more)}.")
    total = counts + Counter(more)
    title = f"ClusterMutex {where}: {_counted(total)}{mark and f' ({mark})'}"
    return Message(title, "\n".join(lines), good=total.keys() <= {SEES, RESOLVED})


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {KINDS[kind][n > 1]}" for kind in KINDS if (n := counts.get(kind, 0)))
