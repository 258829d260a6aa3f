"""The note of the unlockers: who is owed what, whatever stands there and in whatever order."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain

import pytest

from lockclient.stores.service_protocol import MAX_NOTE_BYTES
from unlocker.notifications.events import (
    AUTO_UNLOCKED,
    BRAKE,
    MAX_LINES,
    PAST_ALERT,
    RESOLVED,
    Event,
    message_of,
    portion,
)
from unlocker.notifications.note import (
    MAX_AGE_S,
    MAX_EVENTS,
    MAX_PAUSE_S,
    MAX_TICKS,
    TOLD,
    NotificationNote,
    UrlState,
)

NOW = 1_800_000_000.0


def noted(*urls: str) -> NotificationNote:
    note = NotificationNote()
    note.configure(urls or ("ops", "team"), NOW)
    return note


def again(note: NotificationNote) -> NotificationNote:
    """Return the note as another unlocker reads it."""
    return NotificationNote(note.value())


def alert(name: str, at: float = NOW) -> Event:
    return Event(f"{name}.1", PAST_ALERT, f"Lock {name} is late.", at, 7, name)


def gone(name: str) -> Event:
    return Event(f"{name}.gone", AUTO_UNLOCKED, f"Lock {name} is gone.", NOW, 8)


def add(note: NotificationNote, *events: Event) -> int:
    return note.add(events)


def try_it(
    note: NotificationNote, url: str = "ops", who: str = "me", how: str = TOLD, now: float = NOW
) -> tuple[list[str], bool] | None:
    """Claim a URL, and say how telling it went; return what it was told, and whether again."""
    claim = note.claim(url, who, f"by {who}", lambda state: not state.by, now)
    if claim is None:
        return None
    state, events, begun = claim
    note.settle(url, state, how, 5.0)
    return [event.name for event in events], begun


def test_an_event_is_noted_once_whoever_notices_it_and_told_in_order() -> None:
    note = noted()
    add(note, alert("a"), alert("b"))
    note = again(note)
    add(note, alert("b"), alert("c"))
    assert [event.name for event in note.owed("ops")] == ["a.1", "b.1", "c.1"]
    assert try_it(note) == (["a.1", "b.1", "c.1"], False)
    assert try_it(note) is None
    assert [event.name for event in again(note).owed("team")] == ["a.1", "b.1", "c.1"]


def test_who_was_told_by_one_that_lost_its_claim_has_it_all_the_same() -> None:
    note = noted("ops")
    add(note, alert("a"))
    late = note.claim("ops", "frozen", "1", lambda _: True, NOW)
    note = again(note)
    assert note.claim("ops", "me", "2", lambda _: True, NOW)
    assert late
    note.settle("ops", late[0], TOLD, 0.0)
    assert not note.owed("ops")
    assert note.urls["ops"].by == "me"


def test_the_end_of_an_alert_is_owed_to_all_whom_that_was() -> None:
    note = noted("ops", "team")
    add(note, alert("a"))
    try_it(note)
    note.configure(["new"], NOW + 1)
    note.end({"a.1": "Lock a is well."}, NOW)
    note.end({"a.1": "Lock a is well."}, NOW)
    assert [event.kind for event in note.owed("ops")] == [RESOLVED]
    assert [event.kind for event in note.owed("team")] == [PAST_ALERT, RESOLVED]
    assert not note.owed("new")
    add(note, alert("a"))  # noticed late
    try_it(note)
    try_it(note, "team")
    add(note, alert("a"))
    assert not again(note).events


def test_a_removal_ends_the_alert_by_itself() -> None:
    note = noted("ops")
    add(note, alert("a"))
    try_it(note)
    add(note, gone("a"))
    note.end({"a.1": "Lock a is well."}, NOW)
    assert try_it(note) == (["a.gone"], False)
    assert not note.events


def test_a_url_is_owed_nothing_older_than_itself_and_forgotten_when_nobody_has_it() -> None:
    note = noted("old")
    add(note, alert("a"))
    note.configure(["new"], NOW + 100)
    found = gone("b")
    found.found = True
    add(note, found, alert("a"), gone("c"))
    assert [event.name for event in note.owed("new")] == ["c.gone"]
    for _ in range(MAX_TICKS):
        note.configure(["new"], NOW, ticks=True)
    assert [*note.urls] == ["old", "new"]
    note.configure(["new"], NOW - 9 * MAX_AGE_S, ticks=True)
    assert [*note.urls] == ["new"]
    assert [event.name for event in note.events] == ["a.1", "c.gone"]


def test_no_clock_forgets_a_url() -> None:
    note = noted("other")
    note.configure(["mine"], NOW + 99 * MAX_AGE_S)
    note.configure(["mine"], NOW - 99 * MAX_AGE_S)
    assert [*again(note).urls] == ["other", "mine"]


def test_what_is_older_than_a_day_is_counted() -> None:
    note = noted("ops")
    add(note, alert("a", NOW - MAX_AGE_S - 1), alert("b"), gone("c"))
    claim = again(note).claim("ops", "me", "1", lambda _: True, NOW)
    assert claim is not None
    state, events, _ = claim
    assert [event.name for event in events] == ["b.1", "c.gone"]
    assert state.more == {PAST_ALERT: 1}
    assert "Also, too old or too many to list: 1 lock past" in (
        message_of(events, state.more, "/", NOW).body
    )


def test_a_crowd_is_one_message_and_what_was_missed_comes_in_several() -> None:
    note = noted("ops")
    add(note, *(alert(f"crowd-{i}") for i in range(500)))
    told = try_it(note)
    assert told is not None
    assert len(told[0]) == 500
    for number in range(45):
        add(note, alert(f"one-{number}"))
    names = [told[0] for _ in range(3) if (told := try_it(note)) is not None]
    assert [len(part) for part in names] == [20, 20, 5]
    assert [*chain(*names)] == [f"one-{number}.1" for number in range(45)]


def test_it_is_bounded_in_number_and_bytes_and_the_newest_stay() -> None:
    note = noted("ops", "away")
    dropped = 0
    for number in range(0, 1500, 30):
        name = f"{'ü' * 120}-{number}"
        crowd = [
            Event(f"{i}.1", PAST_ALERT, "ü" * 2000, NOW, 1, name)
            for i in range(number, number + 30)
        ]
        dropped += add(note, *crowd)
        while try_it(note):
            pass
    dropped += add(note, alert("last"))
    assert len(note.value()) < MAX_NOTE_BYTES
    assert len(note.events) <= MAX_EVENTS
    assert note.events[-1].name == "last.1"
    there = sum(event.name in {e.name for e in note.owed("away")} for event in note.events)
    assert note.urls["away"].more[PAST_ALERT] + there == 1501
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
        b'{"urls": {"ops": {"by": 1, "names": [1], "unanswered": -1, "more": {"x": 1}}}}',
        b'{"events": [{"name": "a", "kind": "past-alert", "at": NaN, "owed": [1, "ops", "x"]}]}',
        b'{"events": [{"name": "a", "kind": "past-alert", "at": 1e999, "revision": true}]}',
        b'{"urls": {"ops": {"pause": 1e18, "since": 9e18, "seen": 9e18, "unanswered": 9e17}}}',
    ],
)
def test_whatever_stands_there_it_can_be_worked_with(value: bytes) -> None:
    note = NotificationNote(value)
    note.configure(["ops"], NOW)
    add(note, alert("new"))
    assert "new.1" in (try_it(note) or ([], False))[0]
    json.loads(note.value())


def test_what_was_told_without_a_claim_is_not_owed() -> None:
    note = noted("ops", "team")
    event = alert("a")
    event.told.append("ops")
    add(note, event)
    assert not note.owed("ops")
    assert note.owed("team")
    add(note, alert("b"))
    note.settle("team", UrlState(names=["a.1", "never noted"]), TOLD, 0.0)
    assert [event.name for event in note.owed("team")] == ["b.1"]


def test_what_ended_makes_room_for_what_stands() -> None:
    note = noted("ops")
    names = [f"lock-{number}" for number in range(900)]
    add(note, *(alert(name) for name in names))
    while try_it(note):
        pass
    assert note.end({f"{name}.1": "It ended." for name in names[600:]}, NOW) == 0
    assert [event.lock for event in note.events if event.lock] == names[:600]


def test_what_is_absurd_is_cut() -> None:
    state = {"by": "ghost", "pause": 1e18, "seen": 2**62, "unanswered": 2**62, "more": {}}
    state["more"] = {PAST_ALERT: 2**62, RESOLVED: -1, BRAKE: True, "x": 1}
    said = {"urls": {"ops": state}, "over": "x" * 200_000}
    event = {"name": "a", "kind": PAST_ALERT, "line": "x" * 5000, "owed": ["ops"]}
    note = NotificationNote(json.dumps({**said, "events": [event]}).encode())
    url = note.urls["ops"]
    assert url.pause == MAX_PAUSE_S
    assert (url.seen, url.unanswered) == (0, 2)
    assert url.more == {PAST_ALERT: 10**6}
    assert len(note.events[0].line) < 1000
    assert len(note.over) < 40_000


def test_as_many_that_are_over_are_known_as_any_unlocker_finds_when_it_starts() -> None:
    note = noted("ops")
    crowds = [[gone(f"{crowd}-{number}") for number in range(500)] for crowd in range(4)]
    for crowd in crowds:
        add(note, *crowd)
        while try_it(note):
            pass
    assert not note.events
    assert len(note.value()) < 40_000
    note = again(note)
    assert add(note, *chain(*crowds)) == 0
    assert not note.events


def test_what_another_hand_wrote_there_leaves_what_is_over_known() -> None:
    note = NotificationNote(b'{"urls": {"ops": {}}, "over": "xyz"}')
    add(note, gone("a"))
    assert try_it(note)
    add(note, gone("a"))
    note = again(note)
    assert add(note, gone("a")) == 0
    assert not note.events


def test_a_crowd_that_is_too_large_is_counted_once_however_many_notice_it() -> None:
    note = noted("ops")
    crowd = [alert(f"{number}") for number in range(1500)]
    assert add(note, *crowd) == 500
    note = again(note)
    assert add(note, *crowd) == 0
    assert note.urls["ops"].more == {PAST_ALERT: 500}


def test_of_those_that_are_found_the_ones_that_are_not_known_are_named() -> None:
    note = noted("ops")
    told = [gone(f"{number}") for number in range(3 * MAX_LINES)]
    add(note, *told)
    assert try_it(note)
    new = [gone(f"new-{number}") for number in range(3)]
    add(note, *told, *new)
    assert [event.line for event in note.owed("ops")] == [event.line for event in new]


def test_what_no_note_has_is_told_in_portions_but_a_crowd_at_once() -> None:
    crowd = [replace(gone(f"crowd-{number}"), noticed=1.0) for number in range(50)]
    later = [replace(gone(f"{number}"), noticed=100.0 + 3 * number) for number in range(25)]
    assert portion([*crowd, *later]) == crowd
    assert portion(later) == later[:MAX_LINES]
