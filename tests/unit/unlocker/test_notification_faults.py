"""Notifications by unlockers in virtual time, of which recipients or the store take none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.simulation.site import Site, Url
from tests.unit.unlocker.test_notifications import (
    ALERT,
    ALONE,
    END,
    NOTIFIED_S,
    ONE,
    OVER,
    OVER_S,
    REPEAT,
    STILL,
    TOTAL,
    sender,
    three,
    told,
)
from unlocker.notifications.message import UNKNOWN_LINE, Message
from unlocker.notifications.sent_document import BUSY, REFUSED, SENT

SENT_KEY = "notifications/sent/ops"


class Picky(Url):
    """A recipient whose outcome depends on the message; `seen` has what it did not take."""

    def __init__(self, outcome: Callable[[Message], str]) -> None:
        super().__init__()
        self.outcome = outcome
        self.seen: list[Message] = []

    def deliver(self, message: Message) -> str:
        """Stand for `Recipient.deliver`."""
        found = self.outcome(message)
        (self.messages if found == SENT else self.seen).append(message)
        return found


# ---------------------------------------------------------------- recipients that fail


def test_a_recipient_that_was_down_gets_what_is_true_now_and_the_ends(site: Site, ops: Url) -> None:
    """While it was down a lock came and went, and one of which it knows ended."""
    team = site.url("team")
    first = site.unlocker(ops, team)
    known = site.take("a")
    told(site, team, "'a'", ALERT)
    team.refuses = True
    first.stop()
    service = site.unlocker(ops, team)
    site.do(known.release)
    missed = site.take("b")
    told(site, ops, "'b'", ALERT)
    told(site, ops, "'a'", END)
    site.do(missed.release)
    told(site, ops, "'b'", END)
    site.take("c")
    told(site, ops, "'c'", ALERT)
    site.force_unlock(site.take("d", alert=600))
    told(site, ops, "'d'", "force-unlock")
    assert team.titles == [ONE]
    team.refuses = False
    told(site, team, "'c'", ALERT)
    assert team.titles[1:] in (
        [f"{ONE}, 1 lock force-unlocked, {OVER}"],  # one of them may be without texts
        [f"{ONE}, 1 lock force-unlocked, {OVER}", f"{ONE}, 1 lock force-unlocked, {OVER} {REPEAT}"],
    )
    told(site, team, "'a'", END)
    told(site, team, "'d'", "force-unlock by ann")
    assert not team.lines("'b'")
    assert service.figures()[TOTAL.format("failed")] > 1


def test_a_recipient_that_answers_after_thirty_seconds_is_notified_once(
    site: Site, ops: Url
) -> None:
    ops.delay_s = 30.0
    three(site, ops)
    site.take("a")
    site.until(lambda: ops.messages, "message", 90)
    site.take("b")
    told(site, ops, "'b'", ALERT)
    site.run(120)
    assert ops.titles == [ONE, ONE]


def test_a_recipient_that_never_answers_gets_three_attempts_and_delays_no_other(
    site: Site, ops: Url
) -> None:
    silent = site.url("silent")
    silent.answers.clear()
    service = site.unlocker(silent, ops, pace={"critical_again": 1800.0, "again": 1800.0})
    site.take("a")
    told(site, ops, "'a'", ALERT, seconds=NOTIFIED_S)
    site.until(lambda: site.log.count("took a message and never answered"), "log line", 300)
    assert service.figures()[TOTAL.format("unanswered")] == 1
    assert silent.titles == [ONE, f"{ONE} {REPEAT}", f"{ONE} {REPEAT}"]
    site.run(60)
    silent.answers.set()
    site.take("b")
    told(site, silent, "'b'", ALERT)
    assert len(silent.lines("'a'")) == 3
    site.until(lambda: len(silent.lines("'a'")) == 4, "reminder", 1900)
    assert silent.titles[-1] == f"2 locks past their alert {STILL}"


def test_an_unanswered_message_delays_news_by_its_repeats_only(site: Site) -> None:
    """And no other attempt is made while one runs."""
    silent = site.url("silent")
    silent.answers.clear()
    site.unlocker(silent)
    site.take("a")
    site.until(lambda: silent.messages, "message", 90)
    began = site.wall
    site.take("b")
    told(site, silent, "'b'", ALERT, seconds=400)
    assert silent.titles[:4] == [ONE, f"{ONE} {REPEAT}", f"{ONE} {REPEAT}", ONE]
    assert site.wall - began < 3 * (32 + 30) + 30


def test_a_refused_text_delays_nothing_for_long(site: Site) -> None:
    """After three refusals two messages in three leave out the texts of holders."""
    ops = Picky(lambda message: REFUSED if "'bad'" in message.body else SENT)
    site.unlocker(ops)
    site.take("bad")
    site.until(lambda: ops.messages, "message without the text", 200)
    assert ops.messages[0].body == "Lock bad is past its alert."
    began = site.wall
    site.take("b")
    told(site, ops, "'b'", ALERT)
    assert site.wall - began < 2 * NOTIFIED_S
    site.run(600)
    assert ops.titles == [ONE, ONE]
    assert [len(message.body.splitlines()) for message in ops.seen] == [1] * 4
    assert site.log.count("refuses its text") == 1


def test_a_recipient_of_counts_only_gets_those(site: Site) -> None:
    ops = Picky(lambda message: REFUSED if "Lock" in message.body.split() else SENT)
    site.unlocker(ops)
    site.take("a")
    site.until(lambda: site.log.count("refuses its text"), "log line", 400)
    assert ops.titles == [ONE]
    assert ops.messages[0].body == "1 more: the dashboard shows all."


@pytest.mark.parametrize("outcome", [REFUSED, BUSY])
def test_a_recipient_that_is_down_is_no_reason_to_mark_anything(site: Site, outcome: str) -> None:
    up: list[bool] = []
    ops = Picky(lambda _: SENT if up else outcome)
    site.unlocker(ops)
    site.take("a")
    site.run(1800)
    assert site.document()["sent"] == ""
    assert site.document()["error"] == outcome
    assert any("'" not in message.body for message in ops.seen) == (outcome == REFUSED)
    up.append(True)
    told(site, ops, "'a'", ALERT)
    site.run(300)
    assert len(ops.messages) <= 2


def test_a_refused_reminder_goes_on_without_texts(site: Site) -> None:
    bad: list[bool] = []
    ops = Picky(lambda message: REFUSED if bad and "'a'" in message.body else SENT)
    site.unlocker(ops, pace={"again": 600.0})
    site.take("a")
    site.until(lambda: ops.messages, "message", 90)
    bad.append(True)
    site.run(1900)
    assert ops.titles.count(f"{ONE} {STILL}") == 2  # the third is refused first
    assert len(ops.seen) <= 3


def test_a_busy_recipient_gets_its_reminder_later(site: Site) -> None:
    busy: list[bool] = []
    ops = Picky(lambda _: BUSY if busy else SENT)
    site.unlocker(ops, pace={"again": 600.0})
    site.take("a")
    site.until(lambda: ops.messages, "message", 90)
    busy.append(True)
    site.until(lambda: ops.seen, "reminder", 700)
    site.run(130)
    busy.clear()
    site.run(130)
    assert ops.titles == [ONE, f"{ONE} {STILL}"]


def test_an_error_in_a_try_ends_no_thread(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    ops.error = RuntimeError("a bug")
    site.take("a")
    told(site, ops, "'a'", ALERT)
    assert site.log.count("could not be processed") == 1


# ---------------------------------------------------------------- documents


def test_a_new_recipient_gets_what_is_true_and_no_older_removals(site: Site, ops: Url) -> None:
    first = site.unlocker(ops)
    site.take("a")
    site.force_unlock(site.take("c", alert=600))
    told(site, ops, "'a'", ALERT)
    told(site, ops, "'c'", "force-unlock")
    first.stop()
    team = site.url("team")
    site.unlocker(ops, team)
    told(site, team, "'a'", ALERT)
    site.force_unlock(site.take("d", alert=600))
    told(site, team, "'d'", "force-unlock")
    site.run(60)
    assert team.titles == [ONE, "1 lock force-unlocked"]
    assert len(ops.messages) == 3


@pytest.mark.parametrize("value", ["x" * (300 << 10), "[1]", '{"sent": 1}'])
def test_a_damaged_document_is_reported_and_replaced_once(site: Site, ops: Url, value: str) -> None:
    services = three(site, ops)
    held = site.take("a")
    told(site, ops, "'a'", ALERT)
    for service in services:
        service.kill()
    site.run(15)
    site.write({SENT_KEY: value})
    services = three(site, ops)
    first = services[0]
    site.until(lambda: "What ops was sent can't be read." in first.get("/readyz")[1], "a warning")
    site.run(5)
    assert first.ready()
    assert first.figures()['clustermutex_unlocker_notifications_damaged{recipient="ops"}'] == 1
    assert '"damaged": ["ops"]' in "".join(site.read("unlockers/").values())
    assert site.read("")[SENT_KEY] == value
    site.take("b")
    told(site, ops, "'b'", ALERT)
    site.run(60)
    assert site.log.count("is unknown: the document can't be read") == 1
    assert ops.messages[1].body.splitlines()[0] == UNKNOWN_LINE
    assert ops.lines(UNKNOWN_LINE) == [UNKNOWN_LINE]
    assert first.get("/readyz")[1] == "ready\n"
    site.do(held.release)
    if ops.lines("'a'", ALERT)[1:]:  # found locks have their time again
        told(site, ops, "'a'", END)


def test_a_removal_that_waits_outlives_the_damage_of_a_document(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    held = site.take("a", alert=600)
    site.run(20)
    ops.refuses = True
    site.force_unlock(held)
    site.run(60)
    site.write({SENT_KEY: "garbage"})
    site.run(150)
    ops.refuses = False
    told(site, ops, "'a'", "force-unlock")
    assert ops.lines(UNKNOWN_LINE)


def test_an_unlocker_that_sends_no_more_reports_no_damage(site: Site, ops: Url) -> None:
    """It becomes blind before the minute is over, and another one replaces the document."""
    site.write({SENT_KEY: "[1]"})
    site.unlocker(ops, ready=False, hangs=["look for locks that are due"])
    site.until(lambda: '"damaged"' in "".join(site.read("unlockers/").values()), "damage")
    site.unlocker(ops)
    site.until(lambda: site.read("")[SENT_KEY] != "[1]", "a document", 150)
    site.until(
        lambda: '"damaged"' not in "".join(site.read("unlockers/").values()), "no damage", 120
    )


def test_idle_costs_no_request_and_only_the_sender_reads(site: Site, ops: Url) -> None:
    three(site, ops)
    site.take("a")
    told(site, ops, "'a'", ALERT)
    site.run(60)
    before = site.document_requests()
    site.run(600)
    assert site.document_requests() == before == (1, 3)


@pytest.mark.soak
def test_documents_that_nobody_announces_for_a_day_are_deleted(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    site.write({"notifications/sent/gone": "{}"})
    site.run(24 * 3600)
    assert {*site.read("notifications/")} == {"sent/ops", "sent/gone"}
    site.run(7200)
    assert {*site.read("notifications/")} == {"sent/ops"}


def test_the_note_of_old_versions_stays_while_one_of_them_runs(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    old = '{"started_at": 1, "recipients": ["ops"]}'
    site.write({"notifications/note": "{}", "unlockers/old": old, "notifications/sent/x": "{}"})
    site.run(3700)
    assert "note" in site.read("notifications/")
    site.write({"unlockers/old": None})
    site.run(3700)
    assert {*site.read("notifications/")} == {"sent/ops", "sent/x"}


def test_without_recipients_there_is_no_document_and_no_field_in_the_heartbeat(site: Site) -> None:
    service = site.unlocker()
    site.take("a")
    site.run(60)
    assert not site.read("notifications/")
    (heartbeat,) = site.read("unlockers/").values()
    assert '"notifies"' not in heartbeat
    service.stop()


# ---------------------------------------------------------------- without the document


def test_a_blind_unlocker_notifies_once_and_of_its_recovery(site: Site, ops: Url) -> None:
    service = site.unlocker(ops)
    site.cut_off(service, 20)
    site.run(90)
    assert not ops.messages
    site.cut_off(service, 120)
    told(site, ops, "unlocker@", "does not answer")
    told(site, ops, "unlocker@", "is no longer blind.", seconds=400)
    site.run(60)
    assert ops.titles == [f"1 unlocker blind {ALONE}", "over: 1 unlocker blind"]


def test_an_unlocker_ready_half_of_the_time_is_blind(site: Site, ops: Url) -> None:
    service = site.unlocker(ops)
    for _ in range(10):
        site.cut_off(service, 30)
        site.run(45)
    assert ops.titles[0].startswith("1 unlocker blind")
    assert len(ops.messages) == 1


def test_without_the_document_the_sender_notifies_once(site: Site, ops: Url) -> None:
    services = three(site, ops)
    with site.refusing(f"/{SENT_KEY}"):
        site.take("a")
        site.run(90)
        assert site.log.count("can't be written") == 1
        assert site.log.count("setup-auth") == 1
        site.take("b")
        site.run(90)
        assert ops.titles == [f"{ONE} {ALONE}"]
        site.run(260)
    site.take("c")
    told(site, ops, "'c'", ALERT)
    site.run(120)
    assert ops.titles == [f"{ONE} {ALONE}", f"{ONE} {ALONE}", ONE]
    assert len(site.document()["sent"].split()) == 3
    assert all(service.ready() for service in services)


def test_what_was_wrong_before_a_first_document_is_sent_without_it(site: Site, ops: Url) -> None:
    with site.refusing(f"/{SENT_KEY}"):
        site.take("a")
        site.run(40)
        site.unlocker(ops)
        told(site, ops, "'a'", ALERT)
        assert ops.titles == [f"{ONE} {ALONE}"]


def test_what_was_sent_without_the_document_ends_for_others(site: Site, ops: Url) -> None:
    first = site.unlocker(ops)
    with site.refusing(f"/{SENT_KEY}"):
        held = site.take("a")
        told(site, ops, "'a'", ALERT)
    site.until(lambda: site.document().get("sent"), "document", 60)
    first.kill()
    site.unlocker(ops)
    site.do(held.release)
    told(site, ops, "'a'", END)
    assert ops.titles == [f"{ONE} {ALONE}", OVER]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_lost_write_of_the_attempt_repeats_nothing(site: Site, ops: Url, lost: str) -> None:
    service = site.unlocker(ops)
    site.take("a")
    site.run(25)
    part = 0.6
    name = service.process.name
    site.trouble[name] = (part, 0.0, 0.0) if lost == "request" else (0.0, part, 0.0)
    site.run(60)
    del site.trouble[name]
    site.run(OVER_S)
    coordinated = [title for title in ops.titles if re.fullmatch(f"{ONE}.*", title)]
    assert len(coordinated) == 1


def test_an_outcome_that_can_not_be_written_delays_the_next_attempt(site: Site, ops: Url) -> None:
    """A bucket takes one write a second of an object."""
    services = three(site, ops)
    ops.delay_s = 5.0
    site.take("a")
    site.until(lambda: sender(site, services), "attempt", 90)
    with site.refusing(f"/{SENT_KEY}"):
        site.run(9)
        assert ops.titles == [ONE]
    site.run(60)
    assert ops.titles == [ONE]
    assert site.document()["sent"]
