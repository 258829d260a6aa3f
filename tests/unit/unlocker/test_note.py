"""The unlockers' shared note: the events owed to each recipient."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from lockclient.stores.service_store import MAX_DOCUMENT_BYTES
from unlocker.notifications.event_messages import (
    AUTO_UNLOCKED,
    PAST_ALERT,
    RATE_LIMITED,
    RESOLVED,
    Event,
    message_of,
)
from unlocker.notifications.note import MAX_AGE_S, MAX_EVENTS, SENT, Attempt, NotificationNote

NOW = 1_800_000_000.0


def noted(*urls: str) -> NotificationNote:
    note = NotificationNote()
    note.configure(urls, [], NOW)
    return note


def again(note: NotificationNote) -> NotificationNote:
    """Return the note as another unlocker reads it."""
    return NotificationNote(note.value())


def alert(name: str, at: float = NOW) -> Event:
    return Event(f"{name}.1", PAST_ALERT, f"Lock {name} is late.", at, 7, name)


def gone(name: str) -> Event:
    return Event(f"{name}.gone", AUTO_UNLOCKED, f"Lock {name} is gone.", NOW, 8)


def begin(note: NotificationNote, url: str = "ops", who: str = "me") -> Attempt | None:
    return note.attempt(url, who, lambda state: state.by in ("", who), NOW)


def send(note: NotificationNote, url: str = "ops") -> list[str]:
    """Send to a recipient what it is owed first; return the names."""
    attempt = begin(note, url)
    if attempt is None:
        return []
    note.settle(url, "me", attempt, SENT)
    return [event.name for event in attempt.events]


def test_an_event_is_added_once_by_any_number_of_unlockers_and_sent_in_order() -> None:
    note = noted("ops", "team")
    note.add([alert("a"), alert("b")])
    note = again(note)
    note.add([alert("b"), alert("c")])
    assert send(note) == ["a.1", "b.1", "c.1"]
    assert send(note) == []
    assert [event.name for event in again(note).owed("team")] == ["a.1", "b.1", "c.1"]


def test_the_late_outcome_of_a_replaced_sender_counts() -> None:
    note = noted("ops")
    note.add([alert("a")])
    late = begin(note, who="frozen")
    note = again(note)
    attempt = note.attempt("ops", "me", lambda _: True, NOW)
    assert late
    assert attempt
    assert attempt.again
    note.settle("ops", "frozen", late, SENT)
    assert not note.owed("ops")
    assert note.recipients["ops"].by == "me"


def test_the_end_of_an_alert_is_owed_to_its_recipients_once() -> None:
    note = noted("ops", "team")
    note.add([alert("a")])
    send(note)
    note.configure(["new"], [], NOW + 1)
    for _ in range(2):
        note.end({"a.1": "Lock a is well."}, NOW)
    assert [event.kind for event in note.owed("ops")] == [RESOLVED]
    assert [event.kind for event in note.owed("team")] == [PAST_ALERT, RESOLVED]
    assert not note.owed("new")
    send(note)
    send(note, "team")
    note.add([alert("a")])  # noticed late
    assert not again(note).events


def test_a_removal_ends_the_alert_by_itself() -> None:
    note = noted("ops")
    note.add([alert("a")])
    send(note)
    note.add([gone("a")])
    note.end({"a.1": "Lock a is well."}, NOW)
    assert send(note) == ["a.gone"]
    assert not note.events


def test_an_engaged_rate_limit_is_noted_once() -> None:
    note, event = noted("ops"), Event(RATE_LIMITED, RATE_LIMITED, "Too many.", NOW, 7, RATE_LIMITED)
    for _ in range(2):
        note.add([event, event])
        note.add([event])
        assert len(note.owed("ops")) == 1
        note.end({RATE_LIMITED: ""}, NOW)
        send(note)
    assert not note.events


def test_a_new_recipient_is_owed_no_older_events() -> None:
    note = noted("old")
    note.add([alert("a")])
    note.configure(["new"], [], NOW + 100)
    found = gone("b")
    found.found = True
    note.add([found, alert("a"), gone("c")])
    assert [event.name for event in note.owed("new")] == ["c.gone"]
    note.configure(["new"], ["old"], NOW)
    assert [*note.recipients] == ["new"]
    assert [event.name for event in note.events] == ["a.1", "c.gone"]


def test_events_older_than_a_day_are_only_counted() -> None:
    note = noted("ops")
    note.add([alert("a", NOW - MAX_AGE_S - 1), alert("b"), gone("c")])
    attempt = begin(again(note))
    assert attempt is not None
    assert [event.name for event in attempt.events] == ["b.1", "c.gone"]
    assert "Also, too old or too many to list: 1 lock past" in (
        message_of(attempt.events, attempt.more, "/", NOW).body
    )


def test_many_events_are_one_message_and_missed_ones_several() -> None:
    note = noted("ops")
    note.add(alert(f"crowd-{i}") for i in range(500))
    assert len(send(note)) == 500
    for number in range(45):
        note.add([alert(f"one-{number}")])
    names = [send(note) for _ in range(3)]
    assert [len(part) for part in names] == [20, 20, 5]
    assert [*chain(*names)] == [f"one-{number}.1" for number in range(45)]


def test_the_note_is_bounded_and_keeps_the_newest_events() -> None:
    note = noted("ops", "away")
    dropped = 0
    for number in range(0, 1500, 30):
        names = range(number, number + 30)
        events = (Event(f"{i}.1", PAST_ALERT, "ü" * 2000, NOW, 1, "ü" * 120) for i in names)
        dropped += note.add(events)
        while send(note):
            pass
    dropped += note.add([alert("last")])
    assert len(note.value()) < MAX_DOCUMENT_BYTES
    assert len(note.events) <= MAX_EVENTS
    assert note.events[-1].name == "last.1"
    assert note.recipients["away"].more[PAST_ALERT] + len(note.owed("away")) == 1501
    assert dropped > 500


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[1]",
        b"[" * 100_000,
        b'{"urls": 1, "events": {}, "over": "x"}',
        b'{"urls": {"ops": [], "\\u202e": {}}, "events": [1, {"name": 1}, {"kind": "x"}]}',
        b'{"urls": {"ops": {"by": 1, "tried": [1], "unanswered": -1, "more": {"x": 1}}}}',
        b'{"events": [{"name": "a", "kind": "past-alert", "at": NaN, "owed": [1, "ops", "x"]}]}',
        b'{"events": [{"name": "a", "kind": "past-alert", "at": 1e999, "revision": true}]}',
        b'{"urls": {"ops": {"since": 9e18, "failed": 9e18, "unanswered": 9e17}}}',
        json.dumps({"urls": {f"u{number}": {} for number in range(200)}}).encode(),
    ],
)
def test_any_stored_value_is_a_usable_note(value: bytes) -> None:
    note = NotificationNote(value)
    note.configure(["ops"], [], NOW)
    note = again(note)
    note.add([alert("new")])
    assert "new.1" in send(note)
    json.loads(note.value())


def test_absurd_values_are_dropped() -> None:
    more = {PAST_ALERT: 2**62, RESOLVED: -1, RATE_LIMITED: True, "x": 1}
    state = {"by": "ghost", "failed": 2**62, "unanswered": 2**62, "more": more}
    said = {"urls": {"ops": state}, "over": "x" * 200_000}
    event = {"name": "a", "kind": PAST_ALERT, "line": "x" * 5000, "owed": ["ops"]}
    note = NotificationNote(json.dumps({**said, "events": [event]}).encode())
    url = note.recipients["ops"]
    assert (url.failed, url.unanswered) == (10**6, 2)
    assert url.more == {PAST_ALERT: 10**6}
    assert len(note.events[0].line) < 1000
    assert len(note.finished_tags) < 40_000


def test_an_event_sent_without_the_note_is_not_owed() -> None:
    note = noted("ops", "team")
    note.add([alert("b")])
    for name in "ab":
        event = alert(name)
        event.sent_to.append("ops")
        note.add([event])
    assert not note.owed("ops")
    assert len(note.owed("team")) == 2


@pytest.mark.parametrize("over", [b"", b"xyz"])
def test_the_note_knows_enough_ended_events(over: bytes) -> None:
    note = NotificationNote(b'{"urls": {"ops": {}}, "over": "%s"}' % over)
    crowds = [[gone(f"{crowd}-{number}") for number in range(500)] for crowd in range(4)]
    for crowd in crowds:
        note.add(crowd)
        while send(note):
            pass
    assert not note.events
    assert len(note.value()) < 40_000
    note = again(note)
    new = [gone(f"new-{number}") for number in range(3)]
    assert note.add([*chain(*crowds), *new]) == 0
    assert [event.line for event in note.owed("ops")] == [event.line for event in new]


def test_too_many_events_are_counted_once_for_all_unlockers() -> None:
    note = noted("ops")
    crowd = [alert(f"{number}") for number in range(1500)]
    assert note.add(crowd) == 500
    note = again(note)
    assert note.add(crowd) == 0
    assert note.recipients["ops"].more == {PAST_ALERT: 500}
