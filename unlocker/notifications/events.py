"""What people are told: events, each with one name for all unlockers, and the messages of them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from lockclient.model.holder import Holder
from lockclient.text.durations import duration
from lockclient.text.escaping import plain

PAST_ALERT, AUTO_UNLOCKED, FORCE_UNLOCKED = "past-alert", "auto-unlocked", "force-unlocked"
RESOLVED, BRAKE, IS_BLIND, SEES = "resolved", "brake", "blind", "sees"
KINDS = {
    PAST_ALERT: ("lock past its alert", "locks past their alert"),
    AUTO_UNLOCKED: ("lock auto-unlocked", "locks auto-unlocked"),
    FORCE_UNLOCKED: ("lock force-unlocked", "locks force-unlocked"),
    RESOLVED: ("alert resolved", "alerts resolved"),
    BRAKE: ("brake on", "brakes on"),
    IS_BLIND: ("unlocker blind", "unlockers blind"),
    SEES: ("unlocker working again", "unlockers working again"),
}
"""What there is to tell, in a title: one of it, and several."""
MAX_LINES = 20
"""Events that a message names."""
MARKED_AGE_S = 60.0
"""Seconds after which a message says how old an event is."""
CROWD_S = 5.0
TAG_CHARS = 8


@dataclass(eq=False, slots=True)
class Event:
    """Something that happened: as this unlocker has noticed it, and as it stands in the note.

    Attributes:
        name: what all unlockers call it.
        kind: one of `KINDS`.
        line: what is said of it; nothing of one in a crowd, or that nobody is to be told again.
        at: when it happened, Unix seconds by some host's clock: for its age alone.
        revision: what the table of who noticed it had shown by then; 0: nobody else can tell.
        lock: of what stands until it has ended, the lock that it is about, or what it is.
        owed, told: names of URLs.
        noticed: when it was noticed, on our monotonic clock.
        found: whether it happened before this unlocker looked.
        noted: whether the note has it.
        stands: tells whether it still is so; else it is not noted.
    """

    name: str
    kind: str
    line: str
    at: float
    revision: int = 0
    lock: str = ""
    owed: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    noticed: float = 0.0
    found: bool = False
    noted: bool = False
    stands: Callable[[], bool] = lambda: True

    @property
    def holder(self) -> str:
        """Which acquisition it is about."""
        return self.name.partition(".")[0]

    @property
    def tag(self) -> str:
        """What is left of its name when it is over: 48 bits, by which two are hardly the same."""
        return _hashed(self.name, TAG_CHARS)


def _hashed(text: str, chars: int) -> str:
    digest = blake2b(text.encode(errors="replace"), digest_size=chars * 3 // 4).digest()
    return urlsafe_b64encode(digest).decode()


def holder_name(holder: Holder) -> str:
    """Return the name, of 16 characters, of an acquisition."""
    return _hashed(f"{holder.name}\0{holder.uuid}", 16)


def alert_name(holder: Holder) -> str:
    """Return the name of the alert that a holder is past, by its `alert_at`.

    Not by a revision: those of a bucket grow with what is no push, and no alert follows.
    """
    return f"{holder_name(holder)}.{holder.alert_at or 0:.3f}"


def removal_name(holder: Holder) -> str:
    """Return the name of a holder's removal: there is one of each uuid."""
    return f"{holder_name(holder)}.gone"


def portion(events: Iterable[Event]) -> list[Event]:
    """Return the first ones that go into one message: as many as it names, and the crowd behind
    them: those that the note has no line of, or that we noticed within seconds of the first."""
    found, lines = list[Event](), 0
    for event in events:
        lines += bool(event.line)
        if lines > MAX_LINES and not 0 < event.noticed < found[0].noticed + CROWD_S:
            break
        found.append(event)
    return found


@dataclass(frozen=True, slots=True)
class Message:
    """Some events as people get them; `good` says that none of them is bad news."""

    title: str
    body: str
    good: bool


def message_of(
    events: Iterable[Event], more: Mapping[str, int], where: str, now: float, *, again: bool = False
) -> Message:
    """Return the message of these events, and of more that are only counted, by kinds."""
    counts, lines = Counter[str](), list[str]()
    for event in events:
        counts[event.kind] += 1
        if event.line and len(lines) < MAX_LINES:
            age = now - event.at
            late = f" ({duration(age)} ago)" if age >= MARKED_AGE_S else ""
            lines.append(plain(event.line) + late)
    if (rest := counts.total() - len(lines)) > 0:
        lines.append(f"And {rest} more: the dashboard shows all.")
    if more:
        lines.append(f"Also, too old or too many to list: {_counted(more)}.")
    total = counts + Counter(more)
    title = f"ClusterMutex {where}: {_counted(total)}{' (again)' if again else ''}"
    return Message(title, "\n".join(lines), good=total.keys() <= {SEES, RESOLVED})


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {KINDS[kind][n > 1]}" for kind in KINDS if (n := counts.get(kind, 0)))
