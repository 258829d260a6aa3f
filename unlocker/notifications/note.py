"""The note on which all unlockers agree: which events there are, who is owed them, who tells whom.

Pure: no I/O, no clock is read. It is one value of the store, `<root>/notifications/note`, written
only in place of the one that was read, so that each method here happens at once, in one order for
all, or not at all. It is a JSON object:

    urls    by the operator's name of each URL: `by`, the unlocker that tells it now (the claim);
            `token`, another one with each try; `names`, the events in that try; `unanswered`, tries
            of these that nobody answered; `more`, what is only counted, by kinds; `pause`, seconds
            from that try to the next message; `since`, when it was first configured, Unix seconds;
            `seen`, the tick in which it was last configured
    events  in the order in which they are told: `name`, `kind`, `line`, `at`, `revision`; `lock` of
            what stands until it has ended; `owed` and `told`, names of URLs
    over    the tags of the last events that are over, one behind the other, so that who notices one
            late knows: more than any unlocker finds when it starts
    tick    grows while unlockers run, with each half hour for which one of them saw it stand

An event is *noted* (owed to all URLs that there are then), for each URL *tried* (it is in `names`),
and *told*; or refused, and owed as before. One that stands is kept when all have it; as it ends it
becomes one that does not stand, and `resolved` is owed to all whom it was owed or told.

    the teller dies             and the next one finds
    before it notes the event   nothing: it has noticed the event itself, and notes it
    before it claims the try    the event, owed: it claims it
    before, while or after      the claim of one who is dead, and `names`: it tells the same events
    it sends                    in the same message, marked as told again
    before it notes that it     the same: that is the one message more
    is told
    after that                  nothing to do

A write whose answer is lost stands or does not: who reads again sees which, by `token`. A claim is
had by writing it, so that of two who want it one finds the other's, whatever their clocks say. It
is given up with each outcome, so that who can't reach a URL keeps nobody from it. Wall clocks tell
ages and nothing else: one that is a day ahead has events counted that might have been told one by
one. That nobody has a URL any more is counted in ticks, which are measured by monotonic clocks.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockclient.model.fields import json_object
from lockclient.stores.service_protocol import MAX_NOTE_BYTES
from unlocker.notifications.events import (
    BRAKE,
    KINDS,
    MAX_LINES,
    RESOLVED,
    TAG_CHARS,
    Event,
    portion,
)

MAX_UNANSWERED = 3
"""Tries of a message that a URL takes and does not answer."""
MAX_AGE_S = 86400.0
"""Seconds after which what is owed is only counted."""
TICK_S, MAX_TICKS = 1800.0, 60
"""Seconds of a tick, and after how many of them a URL that nobody has is forgotten."""
MAX_PAUSE_S = 20.0
MAX_EVENTS = 1000
_MAX_BYTES = MAX_NOTE_BYTES * 3 // 4
"""Events, and bytes of the note: the oldest are only counted then, so that the newest are told."""
MAX_OVER = 4000
_MAX_URLS = 100
_MAX_COUNT = 10**6
_MAX_LINE_CHARS = 900
_STORED = ("name", "kind", "line", "at", "revision", "lock", "owed", "told")
is_url_name = re.compile(r"[A-Za-z0-9._-]{1,32}").fullmatch
"""Whether a text can name a URL: what the operator calls it, never anything of its secrets."""

TOLD, REFUSED, UNANSWERED = "told", "refused", "unanswered"
"""How a try ends."""


@dataclass(slots=True)
class UrlState:
    """What the note says of a URL: see the top of this file."""

    by: str = ""
    token: str = ""
    names: list[str] = field(default_factory=list)
    unanswered: int = 0
    more: dict[str, int] = field(default_factory=dict)
    pause: float = 0.0
    since: float = 0.0
    seen: int = 0


class NotificationNote:
    """The note as it was read, to be changed and written."""

    def __init__(self, value: bytes = b"") -> None:
        # Who may write it may write anything: what is absurd is cut here, so that nothing below
        # waits, counts or grows without end.
        blank = {"urls": {}, "events": [], "over": "", "tick": 0}
        said = _filled(blank, json_object(value))
        self.tick, self.over = said["tick"], said["over"]
        self.over = self.over[len(self.over) % TAG_CHARS :][-MAX_OVER * TAG_CHARS :]
        urls = [name for name in said["urls"] if is_url_name(name)][:_MAX_URLS]
        fields = asdict(UrlState())
        self.urls = {name: UrlState(**_filled(fields, said["urls"][name])) for name in urls}
        for state in self.urls.values():
            state.names, state.pause = _texts(state.names), min(state.pause, MAX_PAUSE_S)
            state.seen, state.unanswered = (
                min(state.seen, self.tick),
                min(state.unanswered, MAX_UNANSWERED - 1),
            )
            counts = {kind: count for kind, count in state.more.items() if kind in KINDS}
            state.more = {kind: min(n, _MAX_COUNT) for kind, n in counts.items() if _fits(n, 0)}
        blank = {name: getattr(Event("", "", "", 0.0), name) for name in _STORED}
        self.events = [Event(**_filled(blank, found)) for found in said["events"]]
        self.events = [event for event in self.events if event.name and event.kind in KINDS]
        for event in self.events:
            event.line = event.line[:_MAX_LINE_CHARS]
            event.owed = [url for url in _texts(event.owed) if url in urls]
            event.told = _texts(event.told)

    def value(self) -> bytes:
        """Return what is to be written."""
        events = [{name: getattr(event, name) for name in _STORED} for event in self.events]
        said = {
            "urls": {name: asdict(state) for name, state in self.urls.items()},
            "events": [{name: fact for name, fact in event.items() if fact} for event in events],
            "over": self.over[-MAX_OVER * TAG_CHARS :],
            "tick": self.tick,
        }
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")

    def owed(self, url: str) -> list[Event]:
        """Return what a URL is owed, in order."""
        return [event for event in self.events if url in event.owed]

    def configure(self, urls: Iterable[str], now: float, *, ticks: bool = False) -> None:
        """Take note that these URLs are to be told; forget those that nobody has for long.

        Args:
            urls: names of them.
            now: wall clock, from which on events that were found are owed to those that are new.
            ticks: whether the note's tick stood for `TICK_S`.
        """
        self.tick += ticks
        for url in urls:
            self.urls.setdefault(url, UrlState(since=now)).seen = self.tick
        for url in [url for url, state in self.urls.items() if self.tick > state.seen + MAX_TICKS]:
            self._tell(url, self.events)
            del self.urls[url]

    def add(self, events: Iterable[Event]) -> int:
        """Note events that it does not know, owed to all URLs but those that were told. Return how
        many are only counted with those."""
        over = {self.over[at : at + TAG_CHARS] for at in range(0, len(self.over), TAG_CHARS)}
        names = {event.name for event in self.events}
        if any(event.lock == BRAKE == event.kind for event in self.events):
            names |= {event.name for event in events if event.kind == BRAKE}
        unknown = (e for e in events if e.name not in names and e.tag not in over)
        for place, event in enumerate(unknown):
            owed = [
                url
                for url, state in self.urls.items()
                if url not in event.told and not (event.found and event.at < state.since)
            ]
            if event.name.endswith(".gone"):  # that tells of the end of the alert, too
                for alert in self.events:
                    alert.lock = "" if alert.holder == event.holder else alert.lock
            line = event.line[:_MAX_LINE_CHARS] if place < MAX_LINES else ""
            self.events.append(replace(event, line=line, owed=owed, told=[*event.told]))
        return self._fit()

    def end(self, ended: Mapping[str, str], now: float) -> int:
        """Note that these do not stand any more: by their names, what is said of that. Return how
        many events are only counted with those."""
        for place, event in enumerate([e for e in self.events if e.lock and e.name in ended]):
            event.lock, owed = "", [*event.owed, *event.told]
            if line := ended[event.name]:
                line = line if place < MAX_LINES else ""
                over = Event(f"{event.name}.over", RESOLVED, line, now, owed=owed)
                self.events.append(over)
        self._forget_over()
        return self._fit()

    def claim(
        self, url: str, who: str, token: str, is_free: Callable[[UrlState], bool], now: float
    ) -> tuple[UrlState, list[Event], bool] | None:
        """Claim a URL for one try; return its state, the events that it is to be told, and whether
        that was begun before; None: it is not free, or owed nothing."""
        state = self.urls.get(url)
        if state is None or (state.by != who and not is_free(state)):
            return None
        owed = self.owed(url)
        began = [event for event in owed if event.name in state.names]
        if not began:
            state.unanswered = 0
            self._sum_up(url, [event for event in owed if now - event.at > MAX_AGE_S])
        events = began or portion(self.owed(url))
        if not events and not state.more:
            return None
        state.by, state.token = who, token
        state.names = [event.name for event in events]
        return state, events, bool(began)

    def settle(self, url: str, tried: UrlState, how: str, pause: float) -> int:
        """Note how a try went that was `tried`, without a token without a claim. Return how many
        events are given up, because nobody ever answers."""
        state, names, given_up = self.urls.get(url), {*tried.names}, 0
        if state is None:
            return 0
        if tried.token and state.token == tried.token:
            state.by, state.pause = "", pause
            state.unanswered += how == UNANSWERED
            if state.unanswered >= MAX_UNANSWERED:
                how, given_up = TOLD, len(names)
            if how == TOLD:
                state.more = dict(Counter(state.more) - Counter(tried.more))
            if how != UNANSWERED:
                state.names, state.unanswered = [], 0
        if how == TOLD:  # whoever has the claim by now: this URL has it
            self._tell(url, [event for event in self.events if event.name in names])
        return given_up

    def _tell(self, url: str, events: Collection[Event]) -> None:
        """Take what a URL was told from what it is owed, and away what is over then."""
        for event in events:
            if url in event.owed:
                event.owed.remove(url)
                event.told.append(url)
            event.line = event.line if event.owed else ""
        self._forget_over()

    def _forget_over(self) -> None:
        """Take away what all have been told, and does not stand any more."""
        over = [event for event in self.events if not event.owed and not event.lock]
        self.over += "".join(event.tag for event in over if event.kind != RESOLVED)
        self.events = [event for event in self.events if event.owed or event.lock]

    def _sum_up(self, url: str, events: Collection[Event]) -> None:
        """Count for a URL what it is not told one by one any more."""
        counts = Counter(event.kind for event in events if url in event.owed)
        self.urls[url].more = dict(Counter(self.urls[url].more) + counts)
        self._tell(url, events)

    def _fit(self) -> int:
        """Count the oldest where there are too many, or they are too long; return how many."""
        dropped = 0
        while self.events and (len(self.events) > MAX_EVENTS or len(self.value()) > _MAX_BYTES):
            oldest = self.events[: max(len(self.events) // 10, len(self.events) - MAX_EVENTS, 1)]
            dropped += len(oldest)
            for event in oldest:
                event.lock = ""
            for url in self.urls:
                self._sum_up(url, oldest)
            self.events = [event for event in self.events if event not in oldest]
        return dropped


def _filled(blank: Mapping[str, Any], said: Any) -> dict[str, Any]:
    """Return the fields that are there and of their kind, the others blank: who may write the note
    may write anything."""
    found = said if isinstance(said, dict) else {}
    return {
        name: value if _fits(value := found.get(name), default) else type(default)(default)
        for name, default in blank.items()
    }


def _fits(value: Any, like: Any) -> bool:
    if isinstance(like, (int, float)):
        number = int if isinstance(like, int) else (int, float)
        return isinstance(value, number) and value is not True and 0 <= value < 2**63
    return isinstance(value, type(like))


def _texts(found: Iterable[Any]) -> list[str]:
    return [*dict.fromkeys(text for text in found if isinstance(text, str))]
