"""Notifications by several unlockers in virtual time: who sends, when, and what people read."""

from __future__ import annotations

import json
import math
import random
import re

import pytest

from tests.simulation.site import Site, UnlockerProcess, Url, virtual_site
from tests.support.soak import soaking

ALERT, END = "is past its alert, held by", "is no longer past its alert"
ONE, OVER = "1 lock past its alert", "over: 1 lock past its alert"
REPEAT, STILL, ALONE = "(may be a repeat)", "(still true)", "(not coordinated)"
TOTAL = 'clustermutex_unlocker_notifications_total{{result="{}"}}'
NOTIFIED_S = 75.0
"""Seconds within which people are notified of a lock past its alert: its `for` of 30 s, 10 s in
which news are gathered, and 30 s from one message to the next."""
OVER_S = 180.0 + NOTIFIED_S


def three(site: Site, *urls: Url) -> list[UnlockerProcess]:
    return [site.unlocker(*urls) for _ in range(3)]


def told(site: Site, url: Url, *words: str, seconds: float = 300.0) -> str:
    """Go on until a line with these words came; return it. A second one is a failure."""
    (line,) = site.until(lambda: url.lines(*words), f"message with {words}", seconds)
    return line


def sender(site: Site, services: list[UnlockerProcess], *urls: str) -> UnlockerProcess | None:
    """Return the unlocker whose attempt has no outcome yet."""
    documents = [site.document(url) for url in urls or ("ops",)]
    by = {document["writer"] for document in documents if document.get("attempt")}
    return next((one for one in services if one.unlocker.identity in by), None)


# ---------------------------------------------------------------- who notifies


def test_three_unlockers_notify_once_with_holder_and_reason(site: Site, ops: Url) -> None:
    three(site, ops)
    site.take("a/b", unlock=200)
    told(site, ops, "'a/b'", ALERT)
    told(site, ops, "'a/b'", "auto-unlock by unlocker@", "no heartbeat")
    site.force_unlock(site.take("c", alert=600))
    told(site, ops, "'c'", "force-unlock by ann", "it hangs")
    site.run(OVER_S)
    assert ops.titles == [ONE, "1 lock auto-unlocked", "1 lock force-unlocked"]
    assert not any(message.good for message in ops.messages)
    assert len(ops.lines()) == 3  # a removal takes the place of the end


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_killed_sender_repeats_an_alert_once_at_most(site: Site, ops: Url, moment: str) -> None:
    services = three(site, ops)
    ops.delay_s = 1.0
    if moment == "while":
        ops.answers.clear()
    held = site.take("a")
    if moment == "before":
        site.run(35)
        services[0].kill()
    else:
        sending = site.until(lambda: sender(site, services), "attempt")
        site.until(lambda: ops.messages, "message")
        if moment == "after":
            site.until(lambda: not sender(site, services), "outcome")
        assert sending is not None
        sending.kill()
        if moment == "while":
            site.until(lambda: len(ops.messages) == 2, "message again", 150)
            ops.answers.set()
    site.until(lambda: ops.lines("'a'", ALERT), "alert")
    site.run(60)
    site.do(held.release)
    told(site, ops, "'a'", END)
    site.run(60)
    assert ops.titles == [ONE, *[f"{ONE} {REPEAT}"] * (moment == "while"), OVER]


@pytest.mark.parametrize("end", ["release", "heartbeat", "removal"])
def test_what_was_perhaps_sent_has_an_end(site: Site, ops: Url, end: str) -> None:
    """The sender is killed in an attempt, and the condition ends before the repeat."""
    services = three(site, ops)
    ops.answers.clear()
    held = site.take("a")
    site.until(lambda: ops.messages, "message")
    sending = sender(site, services)
    assert sending is not None
    sending.kill()
    ops.answers.set()
    if end == "release":
        site.do(held.release)
        assert "no longer held" in told(site, ops, "'a'", END)
    elif end == "heartbeat":
        site.do(lambda: held.alive(force=True))  # which is past its alert again a second later
        site.run(400)
        assert ops.titles == [ONE, f"{ONE} {REPEAT}"]
    else:
        site.force_unlock(held)
        site.run(400)
        assert ops.titles == [ONE, "1 lock force-unlocked"]


def test_a_hanging_or_cut_off_unlocker_delays_no_notification(site: Site, ops: Url) -> None:
    away = site.url("ops")
    away.refuses = True
    site.unlocker(ops, hangs=["look for locks that are due"])
    site.unlocker(away)
    site.unlocker(ops)
    site.take("a")
    told(site, ops, "'a'", ALERT)


def test_a_stuck_sender_is_replaced_after_ninety_seconds(site: Site, ops: Url) -> None:
    stuck = site.url("ops")
    stuck.delay_s = 1e6
    first = site.unlocker(stuck)
    site.unlocker(ops)
    site.take("a")
    site.until(lambda: stuck.messages, "message")
    site.run(80)
    assert not ops.messages
    site.take("b")
    told(site, ops, "'a'", ALERT)
    told(site, ops, "'b'", ALERT)
    assert ops.titles == [f"{ONE} {REPEAT}", ONE]
    site.run(500)
    failing = 'clustermutex_unlocker_notifications_failing{recipient="ops"}'
    site.until(lambda: first.figures().get(failing), "that it counts as failing")


def test_a_failed_sender_is_replaced_until_the_other_one_fails_or_ends(
    site: Site, ops: Url
) -> None:
    away = site.url("ops")
    away.refuses = True
    site.unlocker(away)
    other = site.unlocker(ops)
    site.take("a")
    told(site, ops, "'a'", ALERT)
    away.refuses = False
    site.take("b")
    told(site, ops, "'b'", ALERT)
    other.kill()
    site.take("c")
    told(site, away, "'c'", ALERT)
    assert [url.titles for url in (ops, away)] == [[ONE] * n for n in (2, 1)]


def test_senders_take_turns_while_no_recipient_works(site: Site, ops: Url) -> None:
    away = site.url("ops")
    away.refuses = ops.refuses = True
    for _ in range(2):
        site.unlocker(away)
    site.unlocker(ops)
    site.take("a")
    site.until(lambda: site.document().get("failed", 0) > 5, "failures", 600)
    ops.refuses = False
    site.until(lambda: ops.messages, "message", 600)
    assert not away.messages


def test_a_sender_that_is_replaced_in_an_attempt_delays_no_news(site: Site, ops: Url) -> None:
    """An older unlocker comes while a message has no answer, and waits for the outcome."""
    first = site.unlocker(ops)
    ops.delay_s = 30.0
    site.take("a")
    site.until(lambda: sender(site, [first]), "attempt")
    older = site.unlocker(ops, ready=False)
    older.process.wall_ahead = -100.0
    site.take("b")
    told(site, ops, "'b'", ALERT, seconds=NOTIFIED_S)
    assert sender(site, [older])
    assert ops.titles == [ONE, ONE]


def test_restarted_unlockers_notify_nothing_again(site: Site, ops: Url) -> None:
    services = [site.unlocker(ops), site.unlocker(ops)]
    site.take("a")
    site.force_unlock(site.take("c", alert=600))
    told(site, ops, "'a'", ALERT)
    told(site, ops, "'c'", "force-unlock")
    site.run(5)
    for service in services:
        service.stop()
        services = [*services[1:], site.unlocker(ops)]
    for service in services:
        service.kill()
    site.unlocker(ops)
    site.unlocker(ops)
    site.take("b")
    told(site, ops, "'b'", ALERT)
    site.run(OVER_S)
    assert len(ops.lines()) == 3


def test_the_last_unlocker_sends_what_is_owed_before_it_ends(site: Site, ops: Url) -> None:
    first, last = site.unlocker(ops), site.unlocker(ops)
    site.take("a")
    site.run(33)
    first.stop()
    assert not ops.messages
    last.stop()
    told(site, ops, "'a'", ALERT)
    site.unlocker(ops)
    site.run(60)
    assert len(ops.lines("'a'")) == 1


# ---------------------------------------------------------------- conditions and their ends


@pytest.mark.parametrize("running", [True, False])
def test_a_notified_alert_is_followed_by_its_end(site: Site, ops: Url, running: bool) -> None:
    service = site.unlocker(ops)
    first, second, third = (site.take(name, alert=30) for name in ("a", "b", "c"))
    site.until(lambda: len(ops.lines(ALERT)) == 3, "alerts", 90)
    site.run(5)
    if not running:
        service.kill()
    site.do(lambda: first.alive(force=True))
    site.do(second.release)
    site.do(third.release)
    site.take("c", alert=600)
    if not running:
        site.unlocker(ops)
    for _ in range(12):
        site.run(20)
        site.do(lambda: first.alive(force=True))
    assert "its holder sent a heartbeat" in told(site, ops, "'a'", END)
    assert "no longer held" in told(site, ops, "'b'", END)
    assert "somebody else holds it by now" in told(site, ops, "'c'", END)
    assert ops.messages[-1].good
    assert sum(message.good for message in ops.messages) == len(ops.messages) - 1


def test_a_lock_late_for_less_than_its_for_is_not_notified(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    held = site.take("a")
    site.until(lambda: site.log.count(ALERT), "alert")
    site.run(28)
    site.do(held.release)
    site.run(OVER_S)
    assert not ops.messages


def test_a_condition_and_its_end_have_their_durations(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    held, began = site.take("a"), site.wall
    site.until(lambda: ops.messages, "alert")
    assert site.wall - began == pytest.approx(1 + 30 + 10, abs=3)
    site.do(held.release)
    released = site.wall
    site.until(lambda: ops.lines(END), "end", 300)
    assert site.wall - released == pytest.approx(180 + 10, abs=3)


def test_a_flapping_lock_is_at_most_seventeen_pairs_in_an_hour(site: Site, ops: Url) -> None:
    """It is late for a minute, then well for more than three, and so on."""
    site.unlocker(ops)
    end = site.wall + 3600
    while site.wall < end:
        held = site.take("a")
        site.run(45)
        site.do(held.release)
        site.run(182)
    assert 12 <= len(ops.lines(ALERT)) <= 17
    assert len(ops.lines(END)) <= 17
    assert len(ops.messages) <= 34


def test_a_slow_holder_is_one_alert_while_it_is_late_again_and_again(site: Site, ops: Url) -> None:
    """A heartbeat that is late each time made 208 messages an hour of the lists of events."""
    site.unlocker(ops)
    held = site.take("a", alert=10)
    for _ in range(20):
        site.run(60)
        site.do(lambda: held.alive(force=True))
    assert ops.titles == [ONE]
    site.do(held.release)
    told(site, ops, "'a'", END)


@pytest.mark.parametrize("how", ["restarted", "skewed", "blind"])
def test_an_unlocker_that_knows_less_ends_nothing(site: Site, ops: Url, how: str) -> None:
    """It finds the lock at its start, with a clock that nobody trusts, and its whole time again."""
    service = site.unlocker(ops)
    site.take("a", alert=300, unlock=7200)
    told(site, ops, "'a'", ALERT, seconds=400)
    service.kill()
    site.run(15)
    service = site.unlocker(ops)
    if how == "skewed":
        service.process.wall_ahead = -7200.0
        site.hub.clock_offsets = lambda: [-site.hub.process.wall_ahead]
    elif how == "blind":
        site.cut_off(service, 400)
    site.run(900)
    assert not [title for title in ops.titles if title.startswith("over: 1 lock")]
    assert len(ops.lines("'a'", ALERT)) == 1


def test_held_too_long_broken_and_undecided_locks_are_notified_with_their_end(
    site: Site, ops: Url
) -> None:
    services = three(site, ops)
    about = {"expected_runtime": 9000, "locked_at": site.wall, "max_hold": 20}
    site.foreign("long", site.wall + 9000, None, about=json.dumps(about))
    for times in (1, 2):
        site.write({"locks/half/uuid": "u-half", "queue/free/w1": '{"hostname": "a", "pid": 1}'})
        site.run(180)
        services.pop(0).kill()
        services.append(site.unlocker(ops))
        site.clear("half")
        site.write({"queue/free/w1": None})
        site.run(OVER_S)
        for words in ("'half' is broken and never removed: ", "'half' is no longer broken"):
            assert len(ops.lines(words)) == times, words
        assert ops.lines("Free, and not taken by the first waiter: 'free'.")
    told(site, ops, "'long' is held longer than its max_hold, held by elsewhere")
    site.clear("long")
    told(site, ops, "'long' is no longer held longer than its max_hold: it is no longer held")
    site.run(100)
    over = [title for title in ops.titles if "over:" in title and "free locks" in title]
    assert over


def test_a_condition_of_an_unlocker_is_ended_by_others_when_it_is_gone(
    site: Site, ops: Url
) -> None:
    site.unlocker(ops)
    hanging = site.unlocker(ops, ready=False, hangs=["look for locks that are due"])
    told(site, ops, "unlocker@", "last check for overdue locks")
    site.run(300)
    assert ops.titles == ["1 unlocker blind"]
    hanging.kill()
    told(site, ops, "is no longer blind.")
    assert ops.titles == ["1 unlocker blind", "over: 1 unlocker blind"]


def test_the_rate_limit_is_notified_again_after_its_end(site: Site, ops: Url) -> None:
    site.unlocker(ops, max_removals=2)
    for times in (1, 2):
        for number in range(6):
            site.foreign(f"lock-{times}-{number}", site.wall + 1, site.wall + 4)
        site.until(lambda: len(ops.lines("auto-unlock by")) == 6 * times, "removals", 400)  # noqa: B023
        site.run(OVER_S)
        assert len(ops.lines("More locks are due than may be removed")) == times
        assert len(ops.lines("is no longer holding removals back")) == times


def test_a_restored_store_repeats_no_removal(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    site.force_unlock(site.take("a", alert=600))
    told(site, ops, "'a'", "force-unlock")
    records = site.read("removed/")
    site.write({f"removed/{name}": None for name in records})
    site.run(60)
    site.write({f"removed/{name}": value for name, value in records.items()})
    site.unlocker(ops)
    site.run(120)
    assert ops.titles == ["1 lock force-unlocked"]


# ---------------------------------------------------------------- messages and their pace


def test_messages_have_the_pace_that_is_set(site: Site, ops: Url) -> None:
    site.unlocker(ops, pace={"first": 2.0, "interval": 100.0})
    at = []
    for name in "abc":
        site.take(name)
        count = len(ops.messages)
        site.until(lambda: len(ops.messages) > count, "message", 150)  # noqa: B023
        at.append(site.wall)
    assert at[1] - at[0] == pytest.approx(100, abs=2)
    assert at[2] - at[1] == pytest.approx(100, abs=2)


def test_five_hundred_locks_are_one_message_and_few_writes(site: Site, ops: Url) -> None:
    site.unlocker(ops, link="https://locks.example/")
    site.unlocker(ops)
    at = site.wall + 5
    for number in range(500):
        site.foreign(f"lock-{number}", at, None)
    site.until(lambda: ops.messages, "message", 90)
    site.run(60)
    assert ops.titles == ["500 locks past their alert"]
    assert len(ops.lines(ALERT)) == 20
    assert ops.lines("And")[0] == "And 480 more: the dashboard shows all."
    assert ops.lines()[-1] == "https://locks.example/"
    assert site.document_requests() == (1, 3)  # a new recipient, the attempt, its outcome


def test_what_is_still_true_is_repeated_until_it_ends(site: Site, ops: Url) -> None:
    site.unlocker(ops, pace={"critical_again": math.inf, "again": 1800.0})
    held = site.take("a")
    site.run(3700)
    assert ops.titles == [ONE, f"{ONE} {STILL}", f"{ONE} {STILL}"]
    site.do(held.release)
    site.run(3700)
    assert ops.titles[3:] == [OVER]


def test_what_is_critical_is_repeated_more_often(site: Site, ops: Url) -> None:
    site.unlocker(ops, pace={"critical_again": 600.0, "again": math.inf})
    site.take("b", alert=1)
    with site.refusing("/removed/"):
        site.take("a", unlock=30)
        site.run(2000)
    reminder = f"1 lock overdue and not removed, 2 locks past their alert {STILL}"
    assert ops.titles[-3:] == [reminder] * 3
    assert len(ops.messages) <= 5  # and those of their beginning


def test_reminders_can_be_off(site: Site, ops: Url) -> None:
    site.unlocker(ops, pace={"critical_again": 600.0, "again": math.inf})
    site.take("a")
    site.run(1300)
    assert ops.titles == [ONE]


# ---------------------------------------------------------------- kills at random


@pytest.mark.parametrize("seed", [1, 2, *soaking(*range(3, 40))])
def test_no_condition_is_lost_and_each_kill_repeats_one_message_at_most(seed: int) -> None:
    dice, kills = random.Random(seed), 0
    with virtual_site(seed) as site:
        ops, team = site.url("ops"), site.url("team")
        services, ends, locks = three(site, ops, team), dict[str, str](), iter(range(1000))
        standing: dict[str, float] = {}
        for _ in range(25):
            for _ in range(dice.randint(0, 3)):
                name = f"k{next(locks)}"
                site.foreign(name, site.wall + 1, None)
                standing[name] = site.wall
            for name in [name for name, since in standing.items() if site.wall - since > 100]:
                if dice.random() < 0.5:
                    site.foreign(name, site.wall + 99_999, None)
                    ends[name] = "sent a heartbeat"
                else:
                    site.clear(name)
                    ends[name] = "no longer held"
                del standing[name]
            ops.delay_s, team.refuses = dice.choice([0.0, 0.5, 2.0, 10.0]), dice.random() < 0.3
            site.run(dice.uniform(0.5, 40))
            victims, chance = [dice.choice(services)], dice.random()
            if chance < 0.1:
                victims = [*services]
            elif chance < 0.6 and (aimed := sender(site, services, "ops", "team")) is not None:
                victims = [aimed]
            for victim in victims:
                victim.kill()
                services.remove(victim)
                services.append(site.unlocker(ops, team, ready=False))
            kills += len(victims)
        ops.delay_s, team.refuses = 0.0, False
        site.run(600)
        names = [f"k{index}" for index in range(next(locks))]
        for url in (ops, team):
            notified = {name for name in names if url.lines(f"'{name}'", ALERT)}
            assert notified >= {*standing}, url.name
            assert len(site.document(url.name)["sent"].split()) == len(standing)
            for name in notified & ends.keys():
                assert all(ends[name] in line for line in url.lines(f"'{name}'", END)), name
            over = [int(number) for number in re.findall(r"over: (\d+)", " ".join(url.titles))]
            assert sum(over) >= len(notified & ends.keys())  # a message spells out twenty
            marked = sum(title.endswith(REPEAT) for title in url.titles)
            repeated, seen = 0, set[str]()
            for message in url.messages:
                facts = {*_facts(message.body)}
                repeated += bool(facts & seen)
                seen |= facts
            assert repeated <= marked <= kills


def _facts(body: str) -> list[str]:
    """Return which locks are in a message, and whether it is their alert or its end."""
    return re.findall(r"^Lock '(\w+' is (?:past|no longer))", body, re.MULTILINE)
