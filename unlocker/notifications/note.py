"""The note that all unlockers share: events, the recipients that are owed them, and attempts.

Pure: no I/O, and no clock is read. The note is one value of the store, `<root>/notifications/note`,
and each write replaces only the version that its writer read (compare-and-swap). It is a JSON
object. (In `Event`, `owed` is `owed_to` and `told` is `sent_to`; other unlockers know the JSON.)

    urls    an object for each recipient, by the name that the operator gave the recipient:
                by          the unlocker whose attempt has no outcome yet
                tried       names of the events in that attempt, or in the last unanswered one
                failed      failed attempts since the last successful one
                unanswered  attempts at the `tried` events that had no answer
                more        events of which only the number is sent, by kind
                since       when the recipient was first configured, Unix seconds
    events  in sending order: `name`, `kind`, `line`, `at`, `revision`; `owed`, the recipients that
            must get it; `told`, those that got it; `lock`, only of an event that describes a
            lasting condition
    over    the tags of the newest finished events, concatenated: an unlocker that notices such an
            event late does not add it again

An unlocker writes an attempt to the note before it sends. So no event is lost if the sender dies:

    the sender dies                    its successor finds
    before it adds the event           nothing; each unlocker has noticed the event, and adds it
    before it writes the attempt       the event in `owed`, and sends it
    before it writes the outcome       the event in `tried`, and sends it again, marked `(again)`
    after that                         the event in `told`

If an unlocker gets no answer to a write, it reads the note again, which shows whether the write
succeeded. The note keeps an event with a lasting condition after all recipients got it. When the
condition ends, the recipients in `owed` and `told` are owed a `RESOLVED`. Wall clocks are used for
ages only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockclient.model.fields import json_object
from lockclient.stores.service_store import MAX_DOCUMENT_BYTES
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
"""Unanswered attempts after which an event counts as sent."""
MAX_AGE_S = 86400.0
"""Seconds after which an event that was not sent yet is only counted."""
MAX_EVENTS = 1000
"""Maximum number of events in the note: beyond it the oldest are only counted."""
_MAX_BYTES = MAX_DOCUMENT_BYTES * 3 // 4
"""Maximum size of the note: beyond it the oldest events are only counted."""
MAX_TAGS = 4000
"""Maximum number of tags in the note. It exceeds the number of removals that an unlocker finds when
it starts, so that people are not notified of one again."""
_MAX_RECIPIENTS = 100
_MAX_COUNT = 10**6
_MAX_LINE_CHARS = 900
_ATTRIBUTES = {name: name for name in ("name", "kind", "line", "at", "revision", "lock")}
_ATTRIBUTES |= {"owed": "owed_to", "told": "sent_to"}
"""The attributes of `Event` by the names of their JSON fields."""
_BLANK = {key: getattr(Event("", "", "", 0.0), name) for key, name in _ATTRIBUTES.items()}
is_recipient_name = re.compile(r"[A-Za-z0-9._-]{1,32}").fullmatch
"""Match a text that can be the name of a recipient."""

SENT, REFUSED, BUSY, UNANSWERED = "sent", "refused", "busy", "unanswered"
"""Outcomes of an attempt. `BUSY`: it was answered 429 or 5xx, whatever the text. `UNANSWERED`: the
message may have been accepted."""


@dataclass(slots=True)
class RecipientState:
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
        tags = given["over"]
        self.finished_tags = tags[len(tags) % TAG_CHARS :][-MAX_TAGS * TAG_CHARS :]
        names = [name for name in given["urls"] if is_recipient_name(name)][:_MAX_RECIPIENTS]
        fields = asdict(RecipientState())
        self.recipients = {
            name: RecipientState(**_filled(fields, given["urls"][name])) for name in names
        }
        for state in self.recipients.values():
            state.tried = _texts(state.tried)
            state.failed = min(state.failed, _MAX_COUNT)
            state.unanswered = min(state.unanswered, MAX_UNANSWERED - 1)
            counts = {kind: count for kind, count in state.more.items() if kind in KINDS}
            state.more = {kind: min(n, _MAX_COUNT) for kind, n in counts.items() if _fits(n, 0)}
        events = [_event(found) for found in given["events"]]
        self.events = [event for event in events if event.name and event.kind in KINDS]
        for event in self.events:
            event.line = event.line[:_MAX_LINE_CHARS]
            event.owed_to = [recipient for recipient in _texts(event.owed_to) if recipient in names]
            event.sent_to = _texts(event.sent_to)

    def value(self) -> bytes:
        """Return the bytes to write."""
        events = [
            {key: getattr(event, name) for key, name in _ATTRIBUTES.items()}
            for event in self.events
        ]
        fields = {
            "urls": {name: asdict(state) for name, state in self.recipients.items()},
            "events": [{name: fact for name, fact in event.items() if fact} for event in events],
            "over": self.finished_tags[-MAX_TAGS * TAG_CHARS :],
        }
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")

    def owed(self, recipient: str) -> list[Event]:
        """Return the events that a recipient is owed, in order."""
        return [event for event in self.events if recipient in event.owed_to]

    def configure(self, names: Collection[str], unused: Collection[str], now: float) -> None:
        """Add new recipients, at `now` by the wall clock; forget the `unused` ones."""
        for name in [name for name in unused if name in self.recipients]:
            self._mark_sent(name, self.events)
            del self.recipients[name]
        if not self.recipients.keys() >= {*names}:
            first = {name: self.recipients.get(name, RecipientState(since=now)) for name in names}
            self.recipients = dict([*{**first, **self.recipients}.items()][:_MAX_RECIPIENTS])

    def add(self, events: Iterable[Event]) -> int:
        """Add unknown events, owed to each recipient that was not notified of them.

        Return the number of events that are now only counted.
        """
        tags = self.finished_tags
        finished = {tags[at : at + TAG_CHARS] for at in range(0, len(tags), TAG_CHARS)}
        known = {event.name: event for event in self.events}
        new = 0
        for event in events:
            if event.name in known:
                for recipient in event.sent_to:
                    self._mark_sent(recipient, [known[event.name]])
            elif event.tag not in finished:
                self._append(event, event.line if new < MAX_LINES else "")
                known[event.name] = self.events[-1]
                new += 1
        return self._fit()

    def _append(self, event: Event, line: str) -> None:
        owed = [
            recipient
            for recipient, state in self.recipients.items()
            if recipient not in event.sent_to
            and not (event.found and event.at < state.since)  # a new recipient gets no old event
        ]
        if event.name.endswith(".gone"):
            # A removal. Its message also reports the end of the alert, so no `RESOLVED` follows.
            for alert in self.events:
                alert.lock = "" if alert.holder_hash == event.holder_hash else alert.lock
        line = line[:_MAX_LINE_CHARS]
        self.events.append(replace(event, line=line, owed_to=owed, sent_to=[*event.sent_to]))

    def end(self, ended: Mapping[str, str], now: float) -> int:
        """End events with a lasting condition.

        Args:
            ended: names of events, with the line for recipients; an empty line is not sent.
            now: the wall clock.

        Returns:
            The number of events that are now only counted.
        """
        for place, event in enumerate([e for e in self.events if e.lock and e.name in ended]):
            event.lock, owed = "", [*event.owed_to, *event.sent_to]
            if line := ended[event.name]:
                line = line if place < MAX_LINES else ""
                resolved = Event(f"{event.name}.over", RESOLVED, line, now, owed_to=owed)
                self.events.append(resolved)
            if event.kind in REPEATABLE:  # frees the name for the next event of this kind
                event.name += f".{now:.0f}"
        self._forget_finished()
        return self._fit()

    def attempt(
        self, recipient: str, who: str, is_sender: Callable[[RecipientState], bool], now: float
    ) -> Attempt | None:
        """Begin an attempt of an unlocker; None: it is not the sender, or nothing is owed."""
        state = self.recipients.get(recipient)
        if state is None or not is_sender(state):
            return None
        old = [event for event in self.owed(recipient) if now - event.at > MAX_AGE_S]
        self._sum_up(recipient, old)
        owed = self.owed(recipient)
        tried = [event for event in owed if event.name in state.tried]
        events = tried or portion(owed)
        if not events and not state.more:
            return None
        state.by, state.tried = who, [event.name for event in events]
        state.unanswered = state.unanswered if tried else 0
        return Attempt(events, dict(state.more), again=bool(tried))

    def settle(self, recipient: str, who: str, attempt: Attempt, outcome: str) -> int:
        """Note the outcome of an attempt; return the number of events that are given up.

        After `MAX_UNANSWERED` attempts without an answer an event counts as sent.
        """
        names, given_up = {event.name for event in attempt.events}, 0
        state = self.recipients.get(recipient)
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
            self._mark_sent(recipient, [event for event in self.events if event.name in names])
        return given_up

    def _mark_sent(self, recipient: str, events: Collection[Event]) -> None:
        for event in events:
            if recipient in event.owed_to:
                event.owed_to.remove(recipient)
                event.sent_to.append(recipient)
            event.line = event.line if event.owed_to else ""
        self._forget_finished()

    def _forget_finished(self) -> None:
        """Remove the events that all recipients got and whose condition does not last."""
        finished = [event for event in self.events if not event.owed_to and not event.lock]
        self.finished_tags += "".join(event.tag for event in finished if event.kind != RESOLVED)
        self.events = [event for event in self.events if event.owed_to or event.lock]

    def _sum_up(self, recipient: str, events: Collection[Event]) -> None:
        """Count events that a recipient is owed, instead of sending each."""
        counts = Counter(event.kind for event in events if recipient in event.owed_to)
        self.recipients[recipient].more = dict(Counter(self.recipients[recipient].more) + counts)
        self._mark_sent(recipient, events)

    def _fit(self) -> int:
        """Reduce the oldest events to their number while the note is too large; return how many."""
        dropped = 0
        while self.events and (len(self.events) > MAX_EVENTS or len(self.value()) > _MAX_BYTES):
            count = len(self.events)
            oldest = self.events[: max(count // 10, count - MAX_EVENTS, 1)]
            dropped += len(oldest)
            for event in oldest:
                event.lock = ""
            for recipient in self.recipients:
                self._sum_up(recipient, oldest)
            self._forget_finished()
        return dropped


def _event(found: Any) -> Event:
    """Return an event of the note's JSON."""
    return Event(**{_ATTRIBUTES[key]: value for key, value in _filled(_BLANK, found).items()})


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
