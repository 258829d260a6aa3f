"""Notifications by several unlockers in virtual time, killed at any moment."""

from __future__ import annotations

import json
import random
import re

import pytest

from tests.simulation.site import Site, UnlockerProcess, Url, virtual_site
from tests.support.soak import soaking

ALERT, END = "is past its alert, held by", "is no longer past its alert"
TOTAL = 'clustermutex_unlocker_notifications_total{{result="{}"}}'


def three(site: Site, *urls: Url) -> list[UnlockerProcess]:
    return [site.unlocker(*urls) for _ in range(3)]


def told(site: Site, url: Url, *words: str) -> str:
    """Go on until a line with these words came; return it. A second one is a failure."""
    (line,) = site.until(lambda: url.lines(*words), f"message with {words}", 150)
    return line


def sender(site: Site, services: list[UnlockerProcess]) -> UnlockerProcess | None:
    """Return the unlocker whose attempt has no outcome yet."""
    note = site.note()
    by = {url["by"] for url in note.get("urls", {}).values() if url["by"]}
    return next((one for one in services if one.unlocker.identity in by), None)


# ---------------------------------------------------------------- who notifies


def test_three_unlockers_notify_once_with_holder_and_reason(site: Site, ops: Url) -> None:
    three(site, ops)
    site.take("a/b", unlock=20)
    told(site, ops, "'a/b'", ALERT)
    told(site, ops, "'a/b'", "auto-unlock by unlocker@", "no heartbeat")
    site.force_unlock(site.take("c", alert=600))
    told(site, ops, "'c'", "force-unlock by ann", "it hangs")
    site.run(60)
    assert not ops.lines(END)  # the removal says so
    assert [message.good for message in ops.messages] == [False] * len(ops.messages)
    assert len(ops.lines()) == 3


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_a_killed_sender_repeats_an_alert_once_at_most(site: Site, ops: Url, moment: str) -> None:
    services = three(site, ops)
    ops.delay_s = 1.0
    if moment == "while":
        ops.answers.clear()
    held = site.take("a")
    if moment == "before":
        site.run(1.5)
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
    again = ["1 lock past its alert (again)"] * (moment == "while")
    assert ops.titles == ["1 lock past its alert", *again, "1 alert resolved"]


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
    assert ops.titles == ["1 lock past its alert (again)", "1 lock past its alert"]
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
    assert [url.titles for url in (ops, away)] == [["1 lock past its alert"] * n for n in (2, 1)]


def test_senders_take_turns_while_no_recipient_works(site: Site, ops: Url) -> None:
    away = site.url("ops")
    away.refuses = ops.refuses = True
    for _ in range(2):
        site.unlocker(away)
    site.unlocker(ops)
    site.take("a")
    site.until(lambda: site.note()["urls"]["ops"]["failed"] > 5, "failures", 300)
    ops.refuses = False
    told(site, ops, "'a'", ALERT)


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
    site.run(60)
    assert len(ops.lines()) == 3


def test_the_last_unlocker_sends_what_is_owed_before_it_ends(site: Site, ops: Url) -> None:
    service = site.unlocker(ops)
    site.take("a")
    site.run(2)
    assert not ops.messages
    service.stop()
    told(site, ops, "'a'", ALERT)
    site.unlocker(ops)
    site.run(60)
    assert len(ops.lines("'a'")) == 1


# ---------------------------------------------------------------- URLs that fail


def test_a_recipient_that_was_down_gets_all_missed_events_in_order(site: Site, ops: Url) -> None:
    team = site.url("team")
    team.refuses = True
    first = site.unlocker(ops, team)
    held = site.take("a")
    told(site, ops, "'a'", ALERT)
    first.stop()
    service = site.unlocker(ops, team)
    site.do(held.release)
    told(site, ops, "'a'", END)
    site.run(60)
    site.take("b")
    told(site, ops, "'b'", ALERT)
    assert not team.messages
    team.refuses = False
    site.until(lambda: team.lines("'b'"), "message of what it missed", 150)
    assert [line.split(" ", 2)[1] for line in team.lines()] == ["'a'", "'a'", "'b'"]
    assert END in team.lines()[1]
    assert all(re.search(r"\(.+ ago\)$", line) for line in team.lines()[:2])
    assert [len(ops.lines(name)) for name in ("'a'", "'b'")] == [2, 1]
    assert service.figures()[TOTAL.format("failed")] > 1


def test_a_recipient_that_answers_after_thirty_seconds_is_notified_once(
    site: Site, ops: Url
) -> None:
    ops.delay_s = 30.0
    three(site, ops)
    site.take("a")
    site.until(lambda: ops.messages, "message")
    site.take("b")
    told(site, ops, "'b'", ALERT)
    site.run(120)
    assert ops.titles == ["1 lock past its alert"] * 2


def test_a_recipient_that_never_answers_gets_three_attempts_and_delays_no_other(
    site: Site, ops: Url
) -> None:
    silent = site.url("silent")
    silent.answers.clear()
    service = site.unlocker(silent, ops)
    site.take("a")
    told(site, ops, "'a'", ALERT)
    site.until(lambda: site.log.count("took a message and never answered"), "log line", 300)
    assert service.figures()[TOTAL.format("unanswered")] == 1
    assert silent.titles == [
        "1 lock past its alert",
        *["1 lock past its alert (again)"] * 2,
    ]
    silent.answers.set()
    site.take("b")
    told(site, silent, "'b'", ALERT)
    assert len(silent.lines("'a'")) == 3


def test_an_error_in_a_try_ends_no_thread(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    ops.error = RuntimeError("a bug")
    site.take("a")
    told(site, ops, "'a'", ALERT)
    assert site.log.count("could not be processed") == 1


# ---------------------------------------------------------------- ends, many events, the rate limit


@pytest.mark.parametrize("running", [True, False])
def test_a_notified_alert_is_followed_by_its_end(site: Site, ops: Url, running: bool) -> None:
    service = site.unlocker(ops)
    first, second, third = (site.take(name, alert=30) for name in ("a", "b", "c"))
    site.until(lambda: len(ops.lines(ALERT)) == 3, "alerts")
    site.run(5)
    if not running:
        service.kill()
    site.do(lambda: first.alive(force=True))
    site.do(second.release)
    site.do(third.release)
    site.take("c", alert=600)
    if not running:
        site.unlocker(ops)
    assert "its holder sent a heartbeat" in told(site, ops, "'a'", END)
    assert "no longer held" in told(site, ops, "'b'", END)
    assert "somebody else holds it by now" in told(site, ops, "'c'", END)
    assert ops.messages[-1].good


def test_an_alert_that_ends_at_once_is_not_notified(site: Site, ops: Url) -> None:
    site.unlocker(ops)
    held = site.take("a")
    site.until(lambda: site.log.count(ALERT), "alert")
    site.do(held.release)
    site.run(30)
    assert not ops.messages


def test_locks_held_too_long_broken_or_unclaimed_are_notified_with_their_end(
    site: Site, ops: Url
) -> None:
    services = three(site, ops)
    about = {"expected_runtime": 900, "locked_at": site.wall, "max_hold": 20}
    site.foreign("long", site.wall + 900, None, about=json.dumps(about))
    for times in (1, 2):
        site.write({"locks/half/uuid": "u-half", "queue/free/w1": '{"hostname": "a", "pid": 1}'})
        site.run(90)
        services.pop(0).kill()
        services.append(site.unlocker(ops))
        site.clear("half")
        site.write({"queue/free/w1": None})
        site.run(200)
        for words in (
            "'half' is broken and never removed: ",
            "'half' is no longer broken",
            "'free' is free, and its first waiter does not take it",
            "'free' is no longer free while clients wait",
        ):
            assert len(ops.lines(words)) == times, words
    told(site, ops, "'long' is held longer than its max_hold, by elsewhere")
    site.clear("long")
    told(site, ops, "'long' is no longer held too long")


def test_five_hundred_locks_are_one_message_and_few_writes(site: Site, ops: Url) -> None:
    """They go past their alert within the seconds in which an unlocker gathers."""
    site.unlocker(ops)
    site.unlocker(ops)
    before = site.note_writes()
    at = site.wall + 5
    for number in range(500):
        site.foreign(f"lock-{number}", at, None)
    site.until(lambda: ops.messages, "message")
    site.run(30)
    assert ops.titles == ["500 locks past their alert"]
    assert ops.lines("And")[0] == "And 480 more: the dashboard shows all."
    assert site.note_writes() - before <= 20


def test_the_rate_limit_is_notified_once_for_several_unlockers(site: Site, ops: Url) -> None:
    for _ in range(3):
        site.unlocker(ops, max_removals=2)
    for number in range(6):
        site.foreign(f"lock-{number}", site.wall + 1, site.wall + 4)
    told(site, ops, "More locks are due than may be removed in a minute")
    site.until(lambda: len(ops.lines("auto-unlock by")) == 6, "removals", 300)
    assert len(ops.lines("More locks are due")) == 1


# ---------------------------------------------------------------- without a note


def test_a_blind_unlocker_notifies_once_and_of_its_recovery(site: Site, ops: Url) -> None:
    service = site.unlocker(ops)
    site.cut_off(service, 20)
    site.run(90)
    assert not ops.messages
    site.cut_off(service, 120)
    told(site, ops, "unlocker@", "can't do its work")
    told(site, ops, "unlocker@", "is working again")
    site.run(60)
    assert ops.titles == ["1 unlocker blind (not coordinated)", "1 unlocker working again"]


def test_an_unlocker_ready_half_of_the_time_is_blind(site: Site, ops: Url) -> None:
    service = site.unlocker(ops)
    for _ in range(10):
        site.cut_off(service, 30)
        site.run(45)
    assert ops.titles[0].startswith("1 unlocker blind")
    assert len(ops.lines("can't do its work")) == 1


def test_without_a_note_each_unlocker_notifies_once(site: Site, ops: Url) -> None:
    services = three(site, ops)
    with site.refusing("/notifications/note"):
        site.take("a")
        site.run(60)
        assert site.log.count("can't be written") == 3
        assert site.log.count("setup-auth") == 3
    site.take("b")
    told(site, ops, "'b'", ALERT)
    site.run(120)
    assert ops.titles == [
        *["1 lock past its alert (not coordinated)"] * 3,
        "1 lock past its alert",
    ]
    assert all(service.ready() for service in services)


def test_without_recipients_there_is_no_note_and_no_field_in_the_heartbeat(site: Site) -> None:
    site.unlocker()
    site.take("a")
    site.run(30)
    assert not site.read("notifications/")
    (heartbeat,) = site.read("unlockers/").values()
    assert '"recipients"' not in heartbeat


# ---------------------------------------------------------------- kills at random


@pytest.mark.parametrize("seed", [1, 2, *soaking(*range(3, 40))])
def test_no_event_is_lost_and_each_kill_repeats_one_message_at_most(seed: int) -> None:
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
                    site.foreign(name, site.wall + 9999, None)
                    ends[name] = "sent a heartbeat"
                else:
                    site.clear(name)
                    ends[name] = "no longer held"
                del standing[name]
            ops.delay_s, team.refuses = dice.choice([0.0, 0.5, 2.0, 10.0]), dice.random() < 0.3
            site.run(dice.uniform(0.5, 20))
            victims, chance = [dice.choice(services)], dice.random()
            if chance < 0.1:
                victims = [*services]
            elif chance < 0.6 and (aimed := sender(site, services)) is not None:
                victims = [aimed]
            for victim in victims:
                victim.kill()
                services.remove(victim)
                services.append(site.unlocker(ops, team, ready=False))
            kills += len(victims)
        ops.delay_s, team.refuses = 0.0, False
        site.run(300)
        number = next(locks)
        for url in (ops, team):
            for name in [f"k{index}" for index in range(number)]:
                alerts, over = url.lines(f"'{name}'", ALERT), url.lines(f"'{name}'", END)
                assert alerts or name in ends, (url.name, name)
                assert not alerts or name not in ends or ends[name] in over[0], (url.name, name)
            assert sum(title.endswith("(again)") for title in url.titles) <= kills
            bodies = [line for message in url.messages for line in {*_facts(message.body)}]
            assert len(bodies) - len({*bodies}) <= kills * 20
            repeated, seen = 0, set[str]()
            for message in url.messages:
                facts = {*_facts(message.body)}
                repeated += bool(facts & seen)
                seen |= facts
            assert repeated <= kills


def _facts(body: str) -> list[str]:
    """Return which locks are in a message, and whether it is their alert or its end."""
    return re.findall(r"^Lock '(\w+ ?' is (?:past|no longer))", body, re.MULTILINE)
