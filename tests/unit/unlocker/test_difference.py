"""The difference between what is true and what a recipient knows."""

from __future__ import annotations

import random

import pytest

from lockclient.model.holder import Holder
from tests.support.truths import Recipient, holder, late, named, removal, truth
from unlocker.notifications.conditions import (
    BLIND,
    BROKEN,
    OVER_S,
    OVERDUE,
    PAST_ALERT,
    RATE_LIMIT,
    TOO_LONG,
    Kind,
)
from unlocker.notifications.difference import MANY
from unlocker.notifications.message import MAX_LINES
from unlocker.notifications.sent_document import FEW, MAX_IDS
from unlocker.notifications.truth import Truth

SOON = OVER_S - 1


def past(number: int) -> Truth:
    return truth({PAST_ALERT: named(number)})


@pytest.fixture
def ops() -> Recipient:
    return Recipient()


# ---------------------------------------------------------------- begin and end


def test_a_condition_is_sent_once_and_its_end_after_three_minutes(ops: Recipient) -> None:
    assert ops.send(late("a", "b")) == "2 locks past their alert"
    assert ops.send(late("a", "b"), 9999) == ""
    assert ops.send(late("b"), SOON) == ""
    ops.now += 2
    ops.restarted()  # another sender counts anew
    assert ops.send(late("b"), SOON) == ""
    assert ops.send(late("b"), OVER_S) == "over: 1 lock past its alert"
    assert ops.messages[-1].body.endswith("'a' is no longer past its alert: it is no longer held.")
    assert ops.messages[-1].good


def test_what_is_true_again_begins_anew(ops: Recipient) -> None:
    ops.send(late("a"))
    for _ in range(3):
        assert not ops.change(late(), SOON)
        assert not ops.change(late("a"))
    assert ops.change(late(), OVER_S).ended


def test_not_true_for_me_is_no_end(ops: Recipient) -> None:
    """An unlocker that was restarted, is blind, or has a wrong clock knows less."""
    a = holder("a")
    ops.send(truth({PAST_ALERT: [a], TOO_LONG: [a], OVERDUE: [a]}))
    restarted, blind = truth(well=[a]), truth(is_ready=False)
    skewed = truth(well=[a], is_sure=False)
    for found in (restarted, blind, skewed):
        assert not ops.change(found, 10 * OVER_S), found


def test_time_without_readiness_is_no_evidence(ops: Recipient) -> None:
    ops.send(late("a"))
    ops.change(late())
    ops.now += SOON
    ops.change(truth(is_ready=False))
    ops.now += SOON
    assert not ops.change(late())
    assert ops.change(late(), OVER_S).ended


@pytest.mark.parametrize(
    ("now", "ended"),
    [
        (holder("a", alert_at=2000.0), {PAST_ALERT, OVERDUE, BROKEN}),
        (holder("a", uuid="another"), {PAST_ALERT, OVERDUE, BROKEN, TOO_LONG}),
        (None, {PAST_ALERT, OVERDUE, BROKEN, TOO_LONG}),
        (holder("a"), set()),
    ],
)
def test_a_heartbeat_another_holder_and_freedom_are_evidence(
    ops: Recipient, now: Holder | None, ended: set[Kind]
) -> None:
    kinds = (PAST_ALERT, OVERDUE, BROKEN, TOO_LONG)
    ops.send(truth({kind: [holder("a")] for kind in kinds}))
    change = ops.change(truth(well=[now] if now else []), OVER_S)
    assert {each[0] for each in change.ended} == {kind.code for kind in ended}


def test_a_holder_that_is_late_again_soon_is_no_news_and_has_one_end(ops: Recipient) -> None:
    ops.send(late("a"))
    for beat in range(1, 50):
        well = holder("a", alert_at=1000.0 + 60 * beat)
        assert not ops.change(truth(well=[well]), 100)
        assert not ops.change(truth({PAST_ALERT: [well]}), 30)
    assert len(ops.change(truth(well=[holder("a", alert_at=9e9)]), OVER_S).ended) == 1


def test_a_condition_of_an_unlocker_ends_by_its_announcement(ops: Recipient) -> None:
    announced = truth(unlockers={BLIND: ["u1", "u2"], RATE_LIMIT: ["u1"]})
    assert ops.send(announced) == "2 unlockers blind, 1 unlocker holding removals back"
    assert ops.send(truth(is_ready=False), OVER_S) == ""
    assert ops.send(truth(unlockers={BLIND: ["u2"]}), OVER_S) == (
        "over: 1 unlocker blind, 1 unlocker holding removals back"
    )
    assert ops.send(announced) == "1 unlocker blind, 1 unlocker holding removals back"


# ---------------------------------------------------------------- removals


def test_a_removal_is_sent_once_and_takes_the_place_of_its_ends(ops: Recipient) -> None:
    a, b = holder("a"), holder("b")
    ops.send(truth({PAST_ALERT: [a, b], OVERDUE: [a]}))
    gone = truth({PAST_ALERT: [b]}, removals=[removal(a)])
    assert ops.send(gone) == "1 lock auto-unlocked"
    assert ops.send(gone, 10 * OVER_S) == ""
    assert "auto-unlock by unlocker@a:1" in ops.messages[-1].body
    both = truth(removals=[removal(a), removal(b)])
    assert ops.send(truth(), OVER_S) == "over: 1 lock past its alert"
    assert ops.send(both) == "1 lock auto-unlocked"
    assert ops.send(truth()) == ops.send(both) == ""  # a restored store went back


def test_a_removal_and_a_late_view_of_its_lock_are_no_condition(ops: Recipient) -> None:
    a = holder("a")
    assert ops.send(truth({PAST_ALERT: [a]}, removals=[removal(a)])) == "1 lock auto-unlocked"
    assert ops.send(truth({PAST_ALERT: [a]}, removals=[removal(a)])) == ""


def test_each_of_the_newest_thousand_removals_is_sent(ops: Recipient) -> None:
    records = [removal(each) for each in named(3000)]
    sent = 0
    for end in range(700, 3001, 100):
        sent += len(ops.change(truth(removals=records[max(0, end - 1000) : end])).removals)
        ops.send(truth(removals=records[max(0, end - 1000) : end]))
    assert sent == 3000


def test_perhaps_sent_conditions_have_one_end_or_none(ops: Recipient) -> None:
    a, b, c = holder("a"), holder("b"), holder("c")
    found = truth({PAST_ALERT: [a, b, c]})
    message = ops.change(found)
    ops.known.begin(message, {}, "dead")
    ops.known.take_over()
    later = holder("b", alert_at=2000.0)
    change = ops.change(truth({PAST_ALERT: [later]}, removals=[removal(a)]), OVER_S)
    assert (len(change.begun), len(change.ended), len(change.removals)) == (1, 1, 1)
    assert ops.known.perhaps.keys() >= {*change.begun}  # `later`: the message is marked
    assert ops.known.perhaps.keys() >= {*change.ended}  # `c`


# ---------------------------------------------------------------- many of a kind


def test_many_of_a_kind_are_sent_at_their_start_doubling_halving_and_end(ops: Recipient) -> None:
    assert ops.send(past(MANY)) == "500 locks past their alert"
    assert len(ops.known.sent) == MANY
    assert ops.send(past(MANY + 1)) == "501 locks past their alert"
    assert not ops.known.sent
    assert ops.send(past(1001)) == ""
    assert ops.send(past(1002)) == "1,002 locks past their alert"
    assert ops.send(past(2003)) == ""
    assert ops.send(past(2004)) == "2,004 locks past their alert"
    assert ops.send(past(1003), 9999) == ""
    assert ops.send(past(1002), SOON) == ""
    assert ops.send(past(1002), OVER_S) == "1,002 locks past their alert"
    assert ops.send(past(400), OVER_S) == "400 locks past their alert"
    assert ops.send(past(FEW), OVER_S) == ""
    assert ops.send(past(FEW - 1), OVER_S) == "down to 249 locks past their alert"
    assert len(ops.known.sent) == FEW - 1
    assert not ops.known.many
    assert ops.send(past(FEW - 1), 9999) == ""
    assert ops.send(past(FEW)) == "1 lock past its alert"


def test_the_end_of_many_is_good_news(ops: Recipient) -> None:
    ops.send(past(900))
    assert ops.send(past(0), SOON) == ""
    assert ops.send(past(0), OVER_S) == "down to 0 locks past their alert"
    assert ops.messages[-1].good
    assert ops.messages[-1].body == "down to 0 locks past their alert."
    assert ops.send(past(0), OVER_S) == ""


def test_a_number_falls_only_for_an_unlocker_that_finds_all(ops: Recipient) -> None:
    ops.send(past(2000))
    for found in (
        truth({PAST_ALERT: named(10)}, is_sure=False),
        truth(is_ready=False),
    ):
        assert not ops.change(found, 10 * OVER_S)
    assert ops.change(past(10), OVER_S)


def test_a_number_that_goes_up_and_down_is_no_ping_pong(ops: Recipient) -> None:
    dice, messages = random.Random(1), 0
    ops.send(past(600))
    for _ in range(300):
        messages += bool(ops.send(past(dice.randint(400, 900)), 30))
    assert messages == 0


def test_critical_kinds_and_unlockers_keep_their_hashes(ops: Recipient) -> None:
    unlockers = [f"u{number}" for number in range(600)]
    title = ops.send(truth({OVERDUE: named(1200)}, unlockers={BLIND: unlockers}))
    assert title == "600 unlockers blind, 1,200 locks overdue and not removed"
    assert (len(ops.known.sent), ops.known.many) == (1800, {})
    assert ops.change(truth(unlockers={BLIND: unlockers}), OVER_S).ended


def test_a_document_never_has_more_hashes_than_fit(ops: Recipient) -> None:
    """The most numerous kinds of locks are counted then, critical ones too."""
    ops.send(truth({OVERDUE: named(MAX_IDS + 1), BROKEN: named(100, "b")}))
    assert ops.known.many == {OVERDUE.code: MAX_IDS + 1}
    assert len(ops.known.sent) == 100


# ---------------------------------------------------------------- messages


def test_a_message_spells_out_twenty_the_most_severe_first(ops: Recipient) -> None:
    found = truth(
        {PAST_ALERT: named(30, "late"), OVERDUE: named(3, "due"), BROKEN: named(2, "broken")},
        removals=[removal(holder("gone"))],
        unlockers={BLIND: ["u1"]},
    )
    assert ops.send(found) == (
        "1 unlocker blind, 3 locks overdue and not removed, 30 locks past their alert, "
        "2 locks broken and never removed, 1 lock auto-unlocked"
    )
    lines = ops.messages[-1].body.splitlines()
    assert lines[0] == "u1: It is so."
    assert all("is overdue and not removed" in line for line in lines[1:4])
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "And 17 more: the dashboard shows all."
    assert len(ops.known.named) == MAX_LINES


def test_ends_of_named_conditions_are_named_and_the_others_counted(ops: Recipient) -> None:
    ops.send(past(30))
    assert ops.send(past(0), OVER_S) == "over: 30 locks past their alert"
    lines = ops.messages[-1].body.splitlines()
    assert len(lines) == MAX_LINES + 1
    assert all("no longer past its alert" in line for line in lines[:-1])
    assert lines[-1] == "And 10 more: the dashboard shows all."
