"""The document of what one recipient was sent: its bounds, and the outcomes of attempts."""

from __future__ import annotations

import json
import random

import pytest

from lockclient.stores.service_store import MAX_DOCUMENT_BYTES
from tests.support.truths import WRITER, Recipient, late, named, removal, truth
from unlocker.notifications.conditions import (
    BLIND,
    BROKEN,
    CLOCK,
    KEPT,
    KINDS,
    OF_UNLOCKER,
    OVER_S,
    OVERDUE,
    PAST_ALERT,
    TOO_LONG,
    UNDECIDED,
)
from unlocker.notifications.sent_document import (
    BUSY,
    MAX_IDS,
    MAX_NAMED,
    MAX_REMOVALS,
    MAX_UNANSWERED,
    REFUSED,
    SENT,
    UNANSWERED,
    DamagedDocument,
    SentDocument,
)

LOCK_KINDS = [kind for kind in KINDS.values() if kind.of is not OF_UNLOCKER]
INCIDENT_BYTES = 100_000
SOON = OVER_S - 1


def written(**fields: object) -> bytes:
    """Return a document in which some fields are others."""
    return json.dumps({**json.loads(SentDocument().value()), **fields}).encode()


# ---------------------------------------------------------------- parse and bounds


def test_a_document_is_read_as_it_was_written() -> None:
    ops = Recipient()
    ops.send(truth({PAST_ALERT: named(600), BROKEN: named(3, "b")}, unlockers={BLIND: ["u"]}))
    ops.known.begin(ops.change(truth(removals=[removal(each) for each in named(5)])), {}, "me")
    ops.known.perhaps = {"x": 1, "-y": 0}
    ops.known.error, ops.known.failed, ops.known.is_unknown = BUSY, 3, True
    again = SentDocument.parse(ops.known.value())
    assert again == ops.known
    assert SentDocument.parse(SentDocument().value()) == SentDocument()


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"x",
        b"\xff",
        b"[1]",
        b"[" * 100_000,
        b"{}",
        written(sent=1),
        written(sent=["aX"]),
        written(removals=None),
        written(named=[]),
        written(named={"a": 1}),
        written(many={"a": "x"}),
        written(many={"a": "9" * 10_000}),
        written(many={"a": "1e999"}),
        written(number=1.5),
        written(failed="1"),
        written(is_reduced=0),
        written(attempt={"begun": 1}),
        b'{"sent": "", ' + SentDocument().value()[1:],
    ],
)
def test_what_can_not_be_read_is_damage_and_not_empty(value: bytes | None) -> None:
    with pytest.raises(DamagedDocument) as caught:
        SentDocument.parse(value)
    assert str(caught.value).startswith("it")


def test_fields_and_kinds_of_newer_versions_are_left_out() -> None:
    found = SentDocument.parse(written(sent="aX !Y", many={"!": "5"}, new=1, perhaps={"!Z": "1"}))
    assert found.sent == {"aX"}
    assert not found.many
    ops = Recipient()
    ops.known = found
    assert not ops.change(late(), SOON)


def test_twenty_recipients_of_a_hundred_thousand_locks_have_small_documents() -> None:
    """Each document stays small while the incident grows, ends, and all locks are removed."""
    holders = named(100_000)
    recipients = [Recipient() for _ in range(20)]
    for number in (100, 400, 1900, 10_000, 100_000):
        found = truth({PAST_ALERT: holders[:number], OVERDUE: holders[: number // 10]})
        for each in recipients:
            each.send(found)
    gone = [removal(each) for each in holders[:1000]]
    for each in recipients:
        each.send(truth(removals=gone), OVER_S)
        assert 1000 < each.most_bytes < INCIDENT_BYTES
        assert len(each.messages) <= 6


def test_the_worst_document_has_its_bound() -> None:
    """Each kind has as many as have hashes, names are long, attempts have no outcome."""
    dice = random.Random(1)
    ops, most = Recipient(), 0
    for turn in range(40):
        sizes = {kind: dice.choice([0, 10, 249, 400, 500, 900]) for kind in LOCK_KINDS}
        found = truth(
            {kind: named(n, f"{'ü' * 90}{turn}{kind.code}") for kind, n in sizes.items()},
            removals=[removal(each) for each in named(1000, f"gone{turn}")],
            unlockers={BLIND: [f"u{n}" for n in range(100)], CLOCK: ["u1"]},
        )
        change = ops.change(found, OVER_S)
        message = WRITER.message(change, ops.known, found)
        ops.known.begin(change, message.named, "unlocker@some-host.example:12345-abcd")
        ops.measure()
        if dice.random() < 0.6:
            ops.known.take_over()
        else:
            outcome = dice.choice([SENT, REFUSED, UNANSWERED])
            ops.known.settle(change, outcome, is_full=True)
        ops.measure()
        ops.restarted()
        assert len(ops.known.sent) <= MAX_IDS
        assert len(ops.known.removals) <= MAX_REMOVALS
        assert len(ops.known.named) <= MAX_NAMED
    most = ops.most_bytes
    assert INCIDENT_BYTES < most < 0.9 * MAX_DOCUMENT_BYTES


# ---------------------------------------------------------------- outcomes


class Attempts:
    """Attempts at a recipient to which two locks are late."""

    def __init__(self) -> None:
        self.known = SentDocument()
        self.found = late("a", "b")
        self.ids = {each for found in self.found.found.values() for each in found}
        self.reader = Recipient()
        self.reader.known = self.known

    def make(self, outcome: str, *, is_full: bool = True) -> bool:
        """Make one; return whether its content is given up."""
        change = self.reader.change(self.found)
        assert {*change.begun} == self.ids
        self.known.begin(change, {}, "me")
        return bool(self.known.settle(change, outcome, is_full=is_full))

    @property
    def is_sent(self) -> bool:
        """Return whether all counts as sent."""
        return self.known.sent == self.ids


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def test_an_accepted_message_counts_as_sent(attempts: Attempts) -> None:
    assert not attempts.make(SENT)
    assert attempts.is_sent
    assert not attempts.known.perhaps
    assert not attempts.known.attempt


def test_an_attempt_is_no_mark(attempts: Attempts) -> None:
    attempts.known.begin(attempts.reader.change(attempts.found), {}, "me")
    assert not attempts.known.sent
    attempts.known.take_over()
    assert not attempts.known.sent
    assert attempts.known.perhaps.keys() == attempts.ids


def test_three_unanswered_attempts_count_as_sent(attempts: Attempts) -> None:
    assert [attempts.make(UNANSWERED) for _ in range(MAX_UNANSWERED)] == [False, False, True]
    assert attempts.is_sent
    assert not attempts.known.perhaps


def test_each_condition_has_three_unanswered_attempts_of_its_own(attempts: Attempts) -> None:
    for _ in range(MAX_UNANSWERED - 1):
        attempts.make(UNANSWERED)
    attempts.found = late("a", "b", "c")
    change = attempts.reader.change(attempts.found)
    attempts.known.begin(change, {}, "me")
    given_up = attempts.known.settle(change, UNANSWERED, is_full=True)
    assert {*given_up.begun} == attempts.ids == attempts.known.sent
    assert [*attempts.known.perhaps.values()] == [1]


def test_a_refused_full_message_after_an_accepted_reduced_one_counts_as_sent(
    attempts: Attempts,
) -> None:
    for _ in range(3):
        assert not attempts.make(REFUSED)
    assert not attempts.make(SENT, is_full=False)
    assert not attempts.known.sent
    assert attempts.known.perhaps.keys() == attempts.ids
    assert attempts.make(REFUSED)
    assert attempts.is_sent
    assert (attempts.known.refused, attempts.known.failed) == (0, 0)
    assert not attempts.known.is_reduced


def test_a_full_message_that_is_accepted_after_a_reduced_one_is_no_fault(
    attempts: Attempts,
) -> None:
    for outcome in (REFUSED, REFUSED, REFUSED):
        attempts.make(outcome)
    attempts.make(SENT, is_full=False)
    assert not attempts.make(BUSY)
    assert not attempts.make(SENT)
    assert attempts.is_sent


@pytest.mark.parametrize("outcome", [REFUSED, BUSY])
def test_a_recipient_that_is_down_is_no_reason_to_mark_anything(
    attempts: Attempts, outcome: str
) -> None:
    for _ in range(500):
        assert not attempts.make(outcome)
    assert not attempts.known.sent
    assert not attempts.known.perhaps
    assert attempts.known.failed == 500
    assert attempts.known.refused == (500 if outcome == REFUSED else 0)
    assert attempts.known.error == outcome


def test_names_are_kept_while_their_conditions_may_end() -> None:
    ops = Recipient()
    for turn in range(30):
        ops.send(truth({TOO_LONG: named(20, f"{turn}-"), KEPT: named(1, "ü" * 300)}), OVER_S)
        ops.now += OVER_S
        assert len(ops.known.named) <= 20 * (turn + 1)
        assert all(len(name) < 300 for name in ops.known.named.values())
    ops.send(truth({UNDECIDED: named(1)}), OVER_S)
    ops.send(truth({UNDECIDED: named(1)}), OVER_S)
    assert len(ops.known.named) <= MAX_NAMED
