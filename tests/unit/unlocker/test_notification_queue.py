"""What is told, once, by one of several unlockers, and when another one does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise

import pytest

from unlocker.notifications import notification_queue
from unlocker.notifications.notification_queue import (
    AUTO_UNLOCKED,
    BLIND_AFTER_S,
    GATHER_S,
    IS_BLIND,
    MAX_AGE_S,
    MAX_PAUSE_S,
    MIN_KEPT_S,
    PAST_ALERT,
    SEES,
    TAKEOVER_S,
    BlindnessDetector,
    Notification,
    NotificationQueue,
)


def signs(**told: int | None) -> dict[str, str]:
    """Return signs of life, the oldest first; None: one that tells nobody."""
    return {
        name: json.dumps({"pid": 1} | ({} if at is None else {"told": at}))
        for name, at in told.items()
    }


def event(line: str = "it", at: float = 0.0, revision: int | None = 10) -> Notification:
    return Notification(PAST_ALERT, line, at, revision)


def when(
    box: NotificationQueue, unlockers: Mapping[str, str], until: float = 400
) -> list[tuple[int, str]]:
    """Return what is told in which second, all of it being sent."""
    found = []
    for second in range(int(until)):
        if message := box.take(second, unlockers):
            box.sent(second)
            found.append((second, message.body))
    return found


def test_what_comes_within_some_seconds_is_one_message() -> None:
    box = NotificationQueue("me", "/root")
    box.put(event("one", 0))
    box.put(Notification(AUTO_UNLOCKED, "two", 4, 11))
    assert box.take(GATHER_S - 1, signs(me=9)) is None
    message = box.take(GATHER_S, signs(me=9))
    assert message is not None
    assert message.title == "ClusterMutex /root: 1 lock past its alert, 1 lock auto-unlocked"
    assert message.body == "one\ntwo"
    assert not message.good


def test_a_flood_is_counted_and_its_messages_come_less_and_less_often() -> None:
    box = NotificationQueue("me", "/root")
    told: list[int] = []
    for second in range(600):
        for number in range(5):
            box.put(event(f"{second}-{number}", second))
        if message := box.take(second, signs(me=9)):
            assert message.body.count("\n") == 20
            box.sent(second)
            told.append(second)
    gaps = [after - before for before, after in pairwise(told)]
    assert GATHER_S <= gaps[0] <= GATHER_S + 1
    assert set(gaps[5:]) == {MAX_PAUSE_S}
    assert box.take(700, signs(me=9)) is not None
    box.sent(700)
    box.put(event("later", 2000))
    assert box.take(2000 + GATHER_S - 1, signs(me=9)) is None
    assert box.take(2000 + GATHER_S, signs(me=9)) is not None


def test_no_more_is_kept_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification_queue, "_MAX_EVENTS", 3)
    box = NotificationQueue("me", "/root")
    for number in range(10):
        box.put(event(f"{number}"))
    message = box.take(10, signs(me=9))
    assert message is not None
    assert message.title.endswith("10 locks past their alert")
    assert message.body == "0\n1\n2\nAnd 7 more: the dashboard shows all."
    box.failed(10)
    again = box.take(100, signs(me=9))
    assert again == message
    box.sent(100)
    assert box.take(1000, signs(me=9)) is None


def test_the_oldest_tells_and_the_others_forget_what_it_says_to_be_told() -> None:
    first, second = NotificationQueue("a", "/"), NotificationQueue("b", "/")
    for box in (first, second):
        box.put(event())
    assert first.notified_upto(15) == 9
    assert [at for at, _ in when(first, signs(a=9, b=9))] == [GATHER_S]
    assert first.notified_upto(20) == 20
    assert second.take(MIN_KEPT_S - 1, signs(a=20, b=9)) is None
    assert second.notified_upto(20) == 9  # it may have been noticed a moment later there
    assert second.take(MIN_KEPT_S, signs(a=20, b=9)) is None
    assert second.notified_upto(20) == 20
    assert when(second, signs(b=20)) == []


LEFT = {
    "it died": (signs(b=9, c=9), GATHER_S),
    "it does not get it told": (signs(a=9, b=9, c=9), TAKEOVER_S + GATHER_S),
    "two do not": (signs(z=9, a=9, b=9), 2 * TAKEOVER_S + GATHER_S),
    "it tells nobody": (signs(a=None, b=9), GATHER_S),
    "odd": ({"a": "[" * 500, "b": '{"told": 9}'}, GATHER_S),
    "none": ({}, GATHER_S),
}


@pytest.mark.parametrize(("left", "at"), LEFT.values(), ids=LEFT)
def test_the_next_one_tells_what_the_oldest_does_not(left: dict[str, str], at: float) -> None:
    box = NotificationQueue("b", "/")
    box.put(event())
    assert when(box, left) == [(at, "it")]


def test_a_younger_one_that_has_noticed_nothing_keeps_nobody_from_telling() -> None:
    box = NotificationQueue("a", "/")
    box.put(event())
    box.take(20, signs(a=9, b=50))
    box.failed(20)
    assert box.take(40, signs(a=9, b=50)) is not None
    box.failed(40)
    assert box.take(4 * TAKEOVER_S, signs(a=9, b=50)) is None  # that one has told it by now
    assert box.notified_upto(60) == 60


def test_what_does_not_stand_any_more_is_not_told() -> None:
    box = NotificationQueue("me", "/")
    box.put(Notification(PAST_ALERT, "it", 0, 10, stands=lambda: False))
    assert box.take(10, signs(me=9)) is None
    assert box.notified_upto(12) == 12


def test_what_nobody_takes_is_tried_on_and_at_last_given_up() -> None:
    box = NotificationQueue("me", "/")
    box.put(event())
    tries = []
    for second in range(5000):
        if box.take(second, signs(me=9)):
            box.failed(second)
            tries.append(second)
    assert tries[:4] == [5, 10, 20, 40]
    assert 40 < len(tries) < 80
    assert tries[-1] < MAX_AGE_S


def test_one_that_ends_leaves_the_rest_to_the_others_or_tells_it_now() -> None:
    for unlockers, told in ((signs(me=9, b=9), False), (signs(me=9), True), ({}, True)):
        box = NotificationQueue("me", "/")
        box.put(event())
        assert (box.take(0, unlockers, end=True) is not None) == told


def blindness(blind: Mapping[int, bool], rank: int = 0) -> list[tuple[int, str]]:
    """Return what is told in which second; `blind` maps a second to what begins with it."""
    sight, now_blind, told = BlindnessDetector("me"), False, []
    for second in range(1000):
        now_blind = blind.get(second, now_blind)
        if found := sight.observe("Why." if now_blind else None, rank, second):
            told.append((second, found.kind))
            assert found.revision is None
    return told


def test_it_is_told_when_an_unlocker_is_blind_for_a_while_and_when_it_sees_again() -> None:
    assert blindness({100: True, 120: False}) == []
    assert blindness({100: True, 300: False}) == [(129, IS_BLIND), (359, SEES)]


def test_one_that_comes_and_goes_is_blind() -> None:
    flapping = {100 + 20 * number: number % 2 == 0 for number in range(20)}
    (begin, kind), (_, end) = blindness(flapping)
    assert (kind, end) == (IS_BLIND, SEES)
    assert begin < 200


def test_one_that_was_stopped_is_not_blind_for_that() -> None:
    sight = BlindnessDetector("me")
    assert sight.observe(None, 0, 0) is None
    assert sight.observe("It was stopped.", 0, 900) is None
    assert sight.observe(None, 0, 901) is None


def test_younger_ones_leave_it_to_the_oldest_at_first() -> None:
    assert blindness({100: True, 180: False}, rank=1) == []
    assert blindness({100: True, 500: False}, rank=1)[0] == (129 + TAKEOVER_S, IS_BLIND)
    assert BLIND_AFTER_S < TAKEOVER_S
