"""The queue of notifications: what to notify people of, by which unlocker and when.

Pure: no I/O, no clock is read.

Every unlocker notices what happens; one of them is to tell it. They agree by what there is already,
the signs of life in etcd. Each says with its own (`told`) up to which of the store's revisions it
has nothing left to tell. The one whose sign of life is the oldest tells at once. The others keep
what they noticed until one that is older than they says that it is told, and tell it themselves if
that does not happen: the next in age after `TAKEOVER_S` seconds, the third after twice as many. So
- the teller dies: its sign of life ends, the next one is the oldest, and tells at once what was not
  said to be told. Told twice is what the dead one told in its last seconds, and no more;
- the teller is blind, its sweep hangs, or its messages do not arrive: it does not say that they are
  told (`told` does not pass what its last sweep saw), and the next one tells them;
- what it noticed a moment later than others it still tells: they keep all for `MIN_KEPT_S` seconds.
What one of the younger ones alone has noticed is not told: there is hardly such a thing, as all
judge by the same rules, and those that have just started know less.

That an unlocker is blind it must tell itself, since it may be cut off from all others, or all of
them from the store. By the signs of life that it knew last, the oldest tells that first, and each
younger one `TAKEOVER_S` seconds later: one message for an outage that all see, if it is short, and
one from each if it lasts.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockclient.text.escaping import plain

GATHER_S = 5.0
"""Seconds in which what comes after something goes into the same message."""
MAX_PAUSE_S = 60.0
"""Seconds between two messages at most: each pause is twice the one before, while more comes."""
MIN_KEPT_S = 10.0
TAKEOVER_S = 90.0
"""Longer than a message can take: to be gathered, held back, tried, and said to be told."""
MAX_AGE_S = 3600.0
"""Seconds after which something that could not be told is left out."""
BLIND_AFTER_S = 30.0
"""Seconds without being able to work, those in which it could counted back by half of them."""

PAST_ALERT, AUTO_UNLOCKED, FORCE_UNLOCKED = "past-alert", "auto-unlocked", "force-unlocked"
BRAKE, IS_BLIND, SEES = "brake", "blind", "sees"
KINDS = {
    PAST_ALERT: ("lock past its alert", "locks past their alert"),
    AUTO_UNLOCKED: ("lock auto-unlocked", "locks auto-unlocked"),
    FORCE_UNLOCKED: ("lock force-unlocked", "locks force-unlocked"),
    BRAKE: ("brake on", "brakes on"),
    IS_BLIND: ("unlocker blind", "unlockers blind"),
    SEES: ("unlocker at work again", "unlockers at work again"),
}
"""What there is to tell, in a title: one of it, and several."""

_MAX_EVENTS = 1000
"""Events that are kept: what comes beyond is only counted."""
_MAX_STEP_S = 10.0
"""Seconds between two looks that count at most."""
_MAX_LINES = 20
"""Events that a message names."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Something that happened.

    Attributes:
        kind: one of `KINDS`.
        line: what is said of it.
        at: when it was noticed, on the monotonic clock.
        revision: what the table had shown by then; None: nobody else can tell it.
        stands: tells whether it still is so; else it is left out.
    """

    kind: str
    line: str
    at: float
    revision: int | None = None
    stands: Callable[[], bool] = field(default=lambda: True, compare=False)


@dataclass(frozen=True, slots=True)
class Message:
    """Some events as people get them; `good` says that none of them is bad news."""

    title: str
    body: str
    good: bool


class NotificationQueue:
    """What this unlocker has noticed and nobody has told yet; several threads may use it.

    Args:
        identity: what this unlocker's sign of life is called.
        where: the store, for the titles.
    """

    def __init__(self, identity: str, where: str) -> None:
        self._identity = identity
        self._where = where
        self._lock = threading.Lock()
        self._waiting: deque[Notification] = deque()
        self._sending: list[Notification] = []
        self._uncounted: Counter[str] = Counter()
        self._pause = 0.0
        self._last = self._not_before = float("-inf")

    def put(self, event: Notification) -> None:
        """Take in what has happened."""
        with self._lock:
            if len(self._waiting) < _MAX_EVENTS:
                self._waiting.append(event)
            else:
                self._uncounted[event.kind] += 1

    def notified_upto(self, revision: int) -> int:
        """Return up to which revision nothing is left to tell; up to `revision` all is noticed."""
        with self._lock:
            left = (event.revision for event in (*self._sending, *self._waiting))
            return min((known - 1 for known in left if known is not None), default=revision)

    def take(
        self, now: float, unlockers: Mapping[str, str], *, end: bool = False
    ) -> Message | None:
        """Return what is to be told now; to be followed by `sent` or `failed`.

        Args:
            unlockers: the signs of life that the table knows, the oldest first.
            end: this unlocker ends: what is left is told now, if nobody else can.
        """
        older, younger = _others(self._identity, unlockers)
        if end and (older or younger):
            return None  # they do, since it was not said to be told
        delay = 0.0 if end else len(older) * TAKEOVER_S
        with self._lock:
            self._forget(now, max(older, default=0), max(younger, default=0))
            turns = [
                event.at + (delay if event.revision is not None else 0) for event in self._waiting
            ]
            first = min(turns, default=now)
            if not turns or (now < max(first + GATHER_S, self._not_before) and not end):
                return None
            pairs = list(zip(turns, self._waiting, strict=True))
            self._sending = [event for turn, event in pairs if turn <= now and event.stands()]
            self._waiting = deque(event for turn, event in pairs if turn > now)
            return self._message()

    def sent(self, now: float) -> None:
        """Take note that somebody got the message."""
        with self._lock:
            self._sending = []
            self._uncounted.clear()
            calm = now - self._last > MAX_PAUSE_S + GATHER_S
            self._pause = GATHER_S if calm else min(MAX_PAUSE_S, 2 * self._pause)
            self._last, self._not_before = now, now + self._pause

    def failed(self, now: float) -> None:
        """Take note that nobody got it, so that it is to be told later, with all that comes."""
        with self._lock:
            self._waiting.extendleft(reversed(self._sending))
            self._sending = []
            self._pause = min(MAX_PAUSE_S, 2 * self._pause or GATHER_S)
            self._not_before = now + self._pause

    def rank(self, unlockers: Mapping[str, str]) -> int:
        """Return how many unlockers come before this one."""
        return len(_others(self._identity, unlockers)[0])

    def _forget(self, now: float, by_older: int, by_younger: int) -> None:
        """Drop what others have told, and what is too old.

        That a younger one has nothing left to tell may mean that it never noticed: it counts when
        that one has had its turn.
        """

        def kept(event: Notification) -> bool:
            age = now - event.at
            if event.revision is None:
                return age < MAX_AGE_S
            by = by_younger if age >= 3 * TAKEOVER_S else 0
            return age < MIN_KEPT_S or (event.revision > max(by_older, by) and age < MAX_AGE_S)

        self._waiting = deque(event for event in self._waiting if kept(event))
        if not self._waiting:
            self._uncounted.clear()

    def _message(self) -> Message | None:
        counts = Counter(event.kind for event in self._sending) + self._uncounted
        if not counts:
            return None
        parts = [f"{n} {KINDS[kind][n > 1]}" for kind in KINDS if (n := counts[kind])]
        lines = [plain(event.line) for event in self._sending[:_MAX_LINES]]
        if (rest := counts.total() - len(lines)) > 0:
            lines.append(f"And {rest} more: the dashboard shows all.")
        title = f"ClusterMutex {self._where}: {', '.join(parts)}"
        return Message(title, "\n".join(lines), good=counts.keys() <= {SEES})


class BlindnessDetector:
    """Notices that this unlocker was not ready for a while, and that it is again."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._observed_at: float | None = None
        self._blind_for = 0.0  # comes and goes: 20 s without and 20 s with are not well
        self._since: float | None = None
        self._notified = False

    def observe(self, why: str | None, rank: int, now: float) -> Notification | None:
        """Take in why it can't work, or None if it can; return what is to be told of that."""
        # One that was stopped has not looked meanwhile, and may well see in a moment.
        passed = 0.0 if self._observed_at is None else min(now - self._observed_at, _MAX_STEP_S)
        self._observed_at = now
        blind_for = self._blind_for + (passed if why else -passed / 2)
        self._blind_for = min(BLIND_AFTER_S, max(0.0, blind_for))
        if self._blind_for >= BLIND_AFTER_S and self._since is None:
            self._since = now
        if self._blind_for == 0.0:
            notified, self._since, self._notified = self._notified, None, False
            if notified:
                return Notification(SEES, f"{self._identity} does its work again.", now)
        if not why or self._notified or self._since is None:
            return None
        if now < self._since + rank * TAKEOVER_S:
            return None
        self._notified = True
        return Notification(IS_BLIND, f"{self._identity} can't do its work: {why}", now)


def _others(identity: str, unlockers: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Return what the older unlockers that tell, and the younger ones, say to be told.

    One whose own sign of life is not there counts as the youngest.
    """
    upto = {name: _notified_upto(value) for name, value in unlockers.items()}
    revisions = {name: revision for name, revision in upto.items() if revision is not None}
    names = list(revisions)
    place = names.index(identity) if identity in revisions else len(names)
    older, younger = names[:place], names[place + 1 :]
    return [revisions[name] for name in older], [revisions[name] for name in younger]


def _notified_upto(value: str) -> int | None:
    """Read `told` from a sign of life; None: that unlocker tells nobody."""
    try:
        facts = json.loads(value)
    except (ValueError, RecursionError):
        return None
    told = facts.get("told") if isinstance(facts, dict) else None
    return told if isinstance(told, int) and not isinstance(told, bool) else None
