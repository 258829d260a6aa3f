"""The note that all unlockers share: events, the recipients that are owed them, and attempts.

Pure: no I/O, and no clock is read. The note is one value of the store, `<root>/notifications/note`,
and each write replaces only the version that its writer read (compare-and-swap). It is a JSON
object:

    urls    one object for each recipient, by the operator's name of it:
                by          the unlocker whose attempt has no outcome yet
                tried       names of the events in that attempt, or in the last unanswered one
                failed      failed attempts since the last successful one
                unanswered  attempts at the `tried` events that had no answer
                more        events of which only the number is sent, by kind
                since       when the recipient was first configured, Unix seconds
    events  in sending order: `name`, `kind`, `line`, `at`, `revision`; `owed` and `told`, names of
            recipients; `lock`, only of an event that lasts until it ends
    over    the tags of the newest finished events, concatenated: an unlocker that notices such an
            event late does not add it again

An unlocker writes an attempt before it sends. So its successor finds, if the sender dies

    before it added the event      nothing: each unlocker has noticed the event, and adds it
    before it wrote the attempt    the event, owed
    later, before the outcome      `tried`: it sends these in one message, marked `(again)`
    after the outcome              the event in `told`

An unlocker whose write had no answer reads the note again, which shows whether it was written.
A lasting event is kept when all recipients have it. When it has ended, those that were owed
or told it are owed a `RESOLVED`. Wall clocks are used for ages only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockclient.model.fields import json_object
from lockclient.stores.service_store import MAX_NOTE_BYTES
from unlocker.notifications.event_messages import (
    KINDS,
    MAX_LINES,
    REPEATABLE,
    RESOLVED,
    TAG_CHARS,
    Event,
    portion,
)

MAX_UNANSWERED = 3
"""Attempts at a message that a recipient accepts and never answers."""
MAX_AGE_S = 86400.0
"""Seconds after which an event that is owed is only counted."""
MAX_EVENTS = 1000
"""Events in the note: of older ones only the number is sent."""
_MAX_BYTES = MAX_NOTE_BYTES * 3 // 4
"""Bytes of the note: of the oldest events beyond them only the number is sent."""
MAX_OVER = 4000
"""Tags: more than the removals that an unlocker finds when it starts."""
_MAX_URLS = 100
_MAX_COUNT = 10**6
_MAX_LINE_CHARS = 900
_STORED = ("name", "kind", "line", "at", "revision", "lock", "owed", "told")
is_url_name = re.compile(r"[A-Za-z0-9._-]{1,32}").fullmatch
"""Match a text that can be the operator's name of a recipient."""

SENT, REFUSED, UNANSWERED = "sent", "refused", "unanswered"
"""Outcomes of an attempt."""


@dataclass(slots=True)
class UrlState:
    """A recipient in the note: see the top of this file."""

    by: str = ""
    tried: list[str] = field(default_factory=list)
    failed: int = 0
    unanswered: int = 0
    more: dict[str, int] = field(default_factory=dict)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """Events to send in one message; `again`: it may have been sent before."""

    events: Sequence[Event]
    more: dict[str, int]
    again: bool


class NotificationNote:
    """The note as it was read, to be changed and written.

    Another client may have written anything there: fields of another kind count as absent, and
    too large values are cut.
    """

    def __init__(self, value: bytes = b"") -> None:
        given = _filled({"urls": {}, "events": [], "over": ""}, json_object(value))
        over = given["over"]
        self.over = over[len(over) % TAG_CHARS :][-MAX_OVER * TAG_CHARS :]
        urls = [name for name in given["urls"] if is_url_name(name)][:_MAX_URLS]
        fields = asdict(UrlState())
        self.urls = {name: UrlState(**_filled(fields, given["urls"][name])) for name in urls}
        for state in self.urls.values():
            state.tried = _texts(state.tried)
            state.failed = min(state.failed, _MAX_COUNT)
            state.unanswered = min(state.unanswered, MAX_UNANSWERED - 1)
            counts = {kind: count for kind, count in state.more.items() if kind in KINDS}
            state.more = {kind: min(n, _MAX_COUNT) for kind, n in counts.items() if _fits(n, 0)}
        blank = {name: getattr(Event("", "", "", 0.0), name) for name in _STORED}
        events = [Event(**_filled(blank, found)) for found in given["events"]]
        self.events = [event for event in events if event.name and event.kind in KINDS]
        for event in self.events:
            event.line = event.line[:_MAX_LINE_CHARS]
            event.owed = [url for url in _texts(event.owed) if url in urls]
            event.told = _texts(event.told)

    def value(self) -> bytes:
        """Return the bytes to write."""
        events = [{name: getattr(event, name) for name in _STORED} for event in self.events]
        fields = {
            "urls": {name: asdict(state) for name, state in self.urls.items()},
            "events": [{name: fact for name, fact in event.items() if fact} for event in events],
            "over": self.over[-MAX_OVER * TAG_CHARS :],
        }
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")

    def owed(self, url: str) -> list[Event]:
        """Return the events that a recipient is owed, in order."""
        return [event for event in self.events if url in event.owed]

    def configure(self, urls: Collection[str], unused: Collection[str], now: float) -> None:
        """Add new recipients, at `now` by the wall clock; forget the `unused` ones."""
        for url in [url for url in unused if url in self.urls]:
            self._mark_sent(url, self.events)
            del self.urls[url]
        if not self.urls.keys() >= {*urls}:
            first = {url: self.urls.get(url, UrlState(since=now)) for url in urls}
            self.urls = dict([*{**first, **self.urls}.items()][:_MAX_URLS])

    def add(self, events: Iterable[Event]) -> int:
        """Add unknown events, owed to each recipient that was not notified of them.

        Return the number of events of which now only the number is sent.
        """
        over = {self.over[at : at + TAG_CHARS] for at in range(0, len(self.over), TAG_CHARS)}
        known = {event.name: event for event in self.events}
        new = 0
        for event in events:
            if event.name in known:
                for url in event.told:
                    self._mark_sent(url, [known[event.name]])
            elif event.tag not in over:
                self._append(event, event.line if new < MAX_LINES else "")
                known[event.name] = self.events[-1]
                new += 1
        return self._fit()

    def _append(self, event: Event, line: str) -> None:
        owed = [
            url
            for url, state in self.urls.items()
            if url not in event.told and not (event.found and event.at < state.since)
        ]
        if event.name.endswith(".gone"):  # the message about the removal also ends the alert
            for alert in self.events:
                alert.lock = "" if alert.holder == event.holder else alert.lock
        line = line[:_MAX_LINE_CHARS]
        self.events.append(replace(event, line=line, owed=owed, told=[*event.told]))

    def end(self, ended: Mapping[str, str], now: float) -> int:
        """Note that lasting events have ended; `ended`: by name, the line for recipients or "".

        Return the number of events of which now only the number is sent.
        """
        for place, event in enumerate([e for e in self.events if e.lock and e.name in ended]):
            event.lock, owed = "", [*event.owed, *event.told]
            if line := ended[event.name]:
                line = line if place < MAX_LINES else ""
                over = Event(f"{event.name}.over", RESOLVED, line, now, owed=owed)
                self.events.append(over)
            if event.kind in REPEATABLE:  # the next one has the name
                event.name += f".{now:.0f}"
        self._forget_over()
        return self._fit()

    def attempt(
        self, url: str, who: str, is_sender: Callable[[UrlState], bool], now: float
    ) -> Attempt | None:
        """Begin an attempt of an unlocker; None: it is not the sender, or nothing is owed."""
        state = self.urls.get(url)
        if state is None or not is_sender(state):
            return None
        self._sum_up(url, [event for event in self.owed(url) if now - event.at > MAX_AGE_S])
        owed = self.owed(url)
        tried = [event for event in owed if event.name in state.tried]
        events = tried or portion(owed)
        if not events and not state.more:
            return None
        state.by, state.tried = who, [event.name for event in events]
        state.unanswered = state.unanswered if tried else 0
        return Attempt(events, dict(state.more), again=bool(tried))

    def settle(self, url: str, who: str, attempt: Attempt, outcome: str) -> int:
        """Note the outcome of an attempt; return the number of events that are not sent again.

        After `MAX_UNANSWERED` attempts without an answer an event counts as sent.
        """
        names, given_up = {event.name for event in attempt.events}, 0
        state = self.urls.get(url)
        if state is not None and state.by == who:
            state.by = ""
            state.unanswered += outcome == UNANSWERED
            if state.unanswered >= MAX_UNANSWERED:
                outcome, given_up = SENT, len(names)
            state.failed = 0 if outcome == SENT else state.failed + 1
            if outcome != UNANSWERED:
                state.tried, state.unanswered = [], 0
            if outcome == SENT:
                state.more = dict(Counter(state.more) - Counter(attempt.more))
        if outcome == SENT:  # also if another unlocker sends by now
            self._mark_sent(url, [event for event in self.events if event.name in names])
        return given_up

    def _mark_sent(self, url: str, events: Collection[Event]) -> None:
        for event in events:
            if url in event.owed:
                event.owed.remove(url)
                event.told.append(url)
            event.line = event.line if event.owed else ""
        self._forget_over()

    def _forget_over(self) -> None:
        """Remove the events that no recipient is owed and that do not last."""
        over = [event for event in self.events if not event.owed and not event.lock]
        self.over += "".join(event.tag for event in over if event.kind != RESOLVED)
        self.events = [event for event in self.events if event.owed or event.lock]

    def _sum_up(self, url: str, events: Collection[Event]) -> None:
        """Count events that a recipient is owed, instead of sending each."""
        counts = Counter(event.kind for event in events if url in event.owed)
        self.urls[url].more = dict(Counter(self.urls[url].more) + counts)
        self._mark_sent(url, events)

    def _fit(self) -> int:
        """Reduce the oldest events to their number while the note is too large; return how many."""
        dropped = 0
        while self.events and (len(self.events) > MAX_EVENTS or len(self.value()) > _MAX_BYTES):
            count = len(self.events)
            oldest = self.events[: max(count // 10, count - MAX_EVENTS, 1)]
            dropped += len(oldest)
            for event in oldest:
                event.lock = ""
            for url in self.urls:
                self._sum_up(url, oldest)
            self._forget_over()
        return dropped


def _filled(blank: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return the fields of `blank`, each with the value from `value` if that has the same kind."""
    given = value if isinstance(value, dict) else {}
    return {
        name: item if _fits(item := given.get(name), default) else type(default)(default)
        for name, default in blank.items()
    }


def _fits(value: Any, like: Any) -> bool:
    if isinstance(like, (int, float)):
        number = int if isinstance(like, int) else (int, float)
        return isinstance(value, number) and value is not True and 0 <= value < 2**63
    return isinstance(value, type(like))


def _texts(found: Iterable[Any]) -> list[str]:
    return [*dict.fromkeys(text for text in found if isinstance(text, str))]
