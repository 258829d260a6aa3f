"""Alerts, removals and metrics of unlockers, in virtual time."""

from __future__ import annotations

import json

import pytest

from lockclient import LockLost
from lockclient.model.removal import Removal
from tests.simulation.site import Site, UnlockerProcess

LOCKS = 'clustermutex_locks{{state="{}"}}'.format
ALERT = 'clustermutex_lock_past_alert_seconds{{name="{}"}}'.format
UNLOCK = 'clustermutex_lock_overdue_seconds{{name="{}"}}'.format
RESULT = 'clustermutex_auto_unlocks_total{{result="{}"}}'.format
SEEN = 'clustermutex_removals_seen_total{how="auto-unlock"}'
LOADS = "clustermutex_unlocker_table_loads_total"
WITHHELD = "clustermutex_unlocker_removals_withheld"
ENGAGED = "clustermutex_unlocker_rate_limit_engaged"
FULL = "clustermutex_unlocker_store_out_of_space"


def record(site: Site, name: str) -> Removal:
    """Return the record of the one removal of a lock."""
    ((path, value),) = site.read(f"removed/{name}/").items()
    return Removal.read(name, path, value.encode())


def gone(site: Site, *names: str, seconds: float = 60) -> None:
    site.until(lambda: {*names} <= site.removed().keys(), f"removal of {names}", seconds)
    assert not any(site.read(f"locks/{name}/") for name in names)


def results(service: UnlockerProcess) -> dict[str, float]:
    """Return how often attempts ended in which way, those that never happened left out."""
    figures, names = service.figures(), ("removed", "changed", "gone", "failed")
    return {name: count for name in names if (count := figures[RESULT(name)])}


# ---------------------------------------------------------------- silent and pushed


def test_a_silent_lock_is_alerted_on_then_removed_with_a_record(site: Site) -> None:
    service = site.unlocker()
    held = site.take("a", alert=10, unlock=20)
    site.run(11.5)
    now = service.figures()
    silent = site.wall - (held.record.alive_at or 0)
    assert now[ALERT("a")] == pytest.approx(silent - 10, abs=0.1)
    assert now[UNLOCK("a")] == pytest.approx(silent - 20, abs=0.1)
    assert now[LOCKS("alert")] == 1
    assert sum(name.startswith("clustermutex_lock_info{") for name in now) == 1
    assert not site.removed()
    gone(site, "a")
    removal = record(site, "a")
    assert (removal.removed_by, removal.how) == (service.unlocker.identity, "auto-unlock")
    assert removal.holder.uuid == held.uuid
    assert removal.why.startswith("no heartbeat for 20")
    assert 20 <= site.removed()["a"] - (held.record.alert_at or 0) + 10 < 22
    site.run(1)
    now = service.figures()
    assert ALERT("a") not in now
    assert (now["clustermutex_alerts_total"], now[RESULT("removed")], now[SEEN]) == (1, 1, 1)
    assert now["clustermutex_lock_held_seconds_count"] == 1

    def push() -> str:
        with pytest.raises(LockLost) as lost:
            held.alive(force=True)
        return str(lost.value)

    assert "no heartbeat" in site.do(push)


def test_a_lock_released_in_time_is_not_removed(site: Site) -> None:
    service = site.unlocker()
    site.do(site.take("a", alert=2, unlock=4).release)
    site.take("a", alert=2, unlock=4)
    gone(site, "a")
    site.run(1)
    assert results(service) == {"removed": 1}
    assert service.figures()["clustermutex_lock_held_seconds_count"] == 2


def test_a_lock_found_at_the_start_has_its_whole_time_again(site: Site) -> None:
    site.foreign("a", site.wall - 3600, site.wall - 1800)
    for _ in range(3):
        service = site.unlocker()
        site.until(lambda: service.figures()["clustermutex_unlocker_locks_kept"] == 1)  # noqa: B023
        site.run(60)
        service.kill()
    assert not site.removed()
    site.unlocker()
    started = site.wall
    gone(site, "a", seconds=2000)
    assert site.removed()["a"] - started > 1790


def test_reading_all_locks_again_resets_no_time(site: Site) -> None:
    service = site.unlocker()
    taken = site.wall
    site.take("a", alert=1190, unlock=1300)
    gone(site, "a", seconds=1400)
    assert service.figures()[LOADS] == 2
    assert service.figures()["clustermutex_alerts_total"] == 1
    assert 1300 <= site.removed()["a"] - taken < 1303


# ---------------------------------------------------------------- what locks say

SOUND: dict[str, str | None] = {
    "uuid": "u",
    "hostname": "h",
    "alert_at": "1",
    "auto_unlock_at": "2",
    "about": '{"expected_runtime": 1, "auto_unlock_after": 2}',
}
BROKEN: dict[str, dict[str, str | None]] = {
    "no-uuid": {"uuid": None},
    "no-hostname": {"hostname": None},
    "no-alert_at": {"alert_at": None},
    "empty-uuid": {"uuid": ""},
    "a-word-for-a-stamp": {"auto_unlock_at": "soon"},
    "nan-for-a-stamp": {"auto_unlock_at": "nan"},
    "a-negative-stamp": {"auto_unlock_at": "-1"},
    "milliseconds": {"auto_unlock_at": "1800000000000"},
    "no-JSON": {"about": "auto_unlock_after: 2"},
    "a-word-for-a-pid": {"about": '{"auto_unlock_after": 2, "pid": "init"}'},
    "a-word-for-a-duration": {"about": '{"auto_unlock_after": "2"}'},
    "a-word-for-a-format": {"about": '{"auto_unlock_after": 2, "format": "warp"}'},
    "a-huge-value": {"about": '{"auto_unlock_after": 2, "reason": "%s"}' % ("x" * 1_000_000)},
}
"""What is wrong with a lock: subkeys and their values, None: missing."""


def test_broken_locks_are_counted_and_never_removed(site: Site) -> None:
    """Half of them are found, half of them are seen to be written."""

    def write(names: list[str]) -> None:
        for name in names:
            said = (SOUND | BROKEN[name]).items()
            site.write({f"locks/{name}/{part}": value for part, value in said})

    names = [*BROKEN]
    write(names[::2])
    service = site.unlocker()
    write(names[1::2])
    site.run(120)
    assert service.figures()[LOCKS("broken")] == len(BROKEN)
    assert not site.removed()


FOUR: dict[str, str | None] = {"about": None, "auto_unlock_at": None}
OTHERS: dict[str, dict[str, str | None]] = {
    "no-auto-unlock": FOUR,
    "no-duration": {"about": '{"reason": "by hand"}'},
    "newer": {"about": '{"expected_runtime": 1, "auto_unlock_after": 2, "format": 2}'},
}


@pytest.mark.parametrize("found", [True, False])
def test_undecided_locks_are_alerted_on_and_never_removed(site: Site, found: bool) -> None:
    if not found:
        service = site.unlocker()
    for name, facts in OTHERS.items():
        site.foreign(name, site.wall + 10, site.wall + 11, **facts)
    if found:
        service = site.unlocker()
    site.run(9)
    assert service.figures()["clustermutex_alerts_total"] == 0
    site.run(60)
    now = service.figures()
    assert all(ALERT(name) in now and UNLOCK(name) not in now for name in OTHERS)
    assert now[LOCKS("undecided")] == len(OTHERS) - 1
    for name in OTHERS:
        said = site.log.count(f"Lock '{name}' will not be auto-unlocked: ")
        assert said == (name != "no-auto-unlock")
    assert not site.removed()


def test_plain_keys_with_a_duration_and_unknown_keys_are_removed(site: Site) -> None:
    site.unlocker()
    for name, runs in (("a", '"expected_runtime": 1, '), ("b", "")):
        about = f'{{{runs}"auto_unlock_after": 2}}'
        site.foreign(name, site.wall + 1, site.wall + 2, about=about, future="?")
    gone(site, "a", "b")
    assert record(site, "a").holder.hostname == "elsewhere"


@pytest.mark.parametrize(
    ("stamp", "later"), [("alert_at", 1.5), ("auto_unlock_at", 500), ("auto_unlock_at", -500)]
)
def test_a_stamp_moved_by_a_person_restarts_the_count(site: Site, stamp: str, later: float) -> None:
    service = site.unlocker()
    site.take("a", alert=4, unlock=8)
    site.run(6)
    site.write({f"locks/a/{stamp}": f"{site.wall + later:.3f}"})
    moved_at = site.wall
    site.run(2)
    now = service.figures()
    assert (now[LOCKS("undecided")], ALERT("a") in now) == (0, stamp != "alert_at")
    (skew,) = (now[name] for name in now if name.startswith("clustermutex_client_clock_skew"))
    assert abs(skew) < 5
    gone(site, "a")
    assert site.removed()["a"] - moved_at >= 8


def test_the_skew_of_a_host_is_measured(site: Site) -> None:
    service = site.unlocker()
    about = json.dumps(
        {"expected_runtime": 100, "auto_unlock_after": 200, "locked_at": site.wall - 50}
    )
    site.foreign("a", site.wall + 50, site.wall + 150, about=about, hostname="late")
    site.run(2)
    skew = service.figures()['clustermutex_client_clock_skew_seconds{hostname="late"}']
    assert 49 <= skew < 53


# ---------------------------------------------------------------- clocks


def test_four_keys_are_alerted_on_when_the_clocks_can_be_compared(site: Site) -> None:
    """Only the wall clock knows the time of their alert."""
    site.hub.clock_offsets = list
    site.foreign("a", site.wall - 1, None, **FOUR)
    service = site.unlocker()
    site.run(5)
    assert ALERT("a") not in service.figures()
    assert service.figures()['clustermutex_unlocker_store_requests_total{task="clock-check"}'] <= 2
    site.hub.clock_offsets = lambda: [0.0]
    site.run(15)
    assert ALERT("a") in service.figures()


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, -1_699_999_000.0])
def test_a_wrong_wall_clock_is_reported_and_removes_nothing_early(site: Site, ahead: float) -> None:
    service = site.unlocker()
    service.process.wall_ahead = ahead
    site.hub.clock_offsets = lambda: [-site.hub.process.wall_ahead]
    site.run(15)
    side = "ahead of" if ahead > 0 else "behind"
    said = service.get("/readyz")[1]
    assert f"{abs(ahead):.1f} s {side} the store's members'" in said
    assert "four plain keys are alerted on later" in said
    assert service.figures()["clustermutex_unlocker_clock_trusted"] == 0
    taken = site.wall
    site.take("a", alert=10, unlock=30)
    site.foreign("four-keys", site.wall + 1, site.wall + 3, about=None)
    gone(site, "a")
    assert 30 <= site.removed()["a"] - taken < 33
    site.run(60)
    assert "four-keys" not in site.removed()
    service.process.wall_ahead = 0.0
    gone(site, "four-keys")
    assert service.get("/readyz") == (200, "ready\n")


# ---------------------------------------------------------------- several unlockers, rate limit


def test_each_lock_is_removed_once_and_counted_once_by_three(site: Site) -> None:
    services = [site.unlocker(max_removals=None) for _ in range(3)]
    site.lag(40, most=0.5)
    for number in range(150):
        site.foreign(f"lock-{number}", site.wall + 1, site.wall + 5)
    site.run(30)
    removals = [write for write in site.etcd.past if write.value and b"/removed/lock-" in write.key]
    assert len(removals) == len(site.removed()) == 150
    figures = [service.figures() for service in services]
    assert sum(found[RESULT("removed")] for found in figures) == 150
    assert [found[SEEN] for found in figures] == [150] * 3
    assert [found[RESULT("failed")] for found in figures] == [0] * 3
    assert [found["clustermutex_unlockers"] for found in figures] == [3] * 3
    # Each that is removed has a series of its own, or is counted.
    named = sum(name.startswith("clustermutex_lock_auto_unlocked_") for name in figures[0])
    assert named + figures[0]["clustermutex_locks_auto_unlocked_unlisted"] == 150
    assert named <= 100


def test_one_rate_limit_holds_for_all_unlockers_and_can_be_overruled(site: Site) -> None:
    site.lag(90, most=0.5)
    services = [site.unlocker(max_removals=12) for _ in range(3)]
    back = site.take("back", alert=1, unlock=600)
    for number in range(60):
        site.foreign(f"lock-{number}", site.wall + 1, site.wall + 5)
    site.run(30)
    passed = len(site.removed())
    assert 12 <= passed <= 14
    for service in services:
        now = service.figures()
        limit = now["clustermutex_unlocker_removals_limit"]
        assert (now[ENGAGED], limit, now[WITHHELD]) == (1, 12, 60 - passed)
    assert site.log.count("The rate limit holds locks back") == 3
    assert site.log.count("--max-removals off") == 3
    held_back = next(name for name in sorted(site.read("locks/")) if name.startswith("lock-"))
    name = held_back.split("/")[0]
    site.foreign(name, site.wall + 600, site.wall + 900)
    services.pop().kill()
    late = site.unlocker(max_removals=12)  # knows what was removed before it came
    site.run(10)
    assert late.figures()[WITHHELD] > 0
    assert len(site.removed()) == passed
    site.unlocker(max_removals=None)
    site.run(30)
    assert len(site.removed()) == 59
    assert name not in site.removed()
    assert [service.figures()[WITHHELD] for service in (*services, late)] == [0] * 3
    site.do(back.release)


def test_an_overdue_lock_is_listed_though_a_hundred_have_been_silent_for_longer(
    site: Site,
) -> None:
    service = site.unlocker(max_removals=1)
    for number in range(101):
        site.foreign(f"zombie-{number}", site.wall + 1, None)
    site.run(3)
    assert service.figures()['clustermutex_locks_unlisted{state="alert"}'] == 1
    for number in range(40):
        site.foreign(f"dead-{number}", site.wall + 1, site.wall + 5)
    site.run(10)
    now = service.figures()
    listed = [name for name in now if name.startswith(UNLOCK("dead-")[:-2])]
    assert now[ENGAGED]
    assert 0 < now[LOCKS("overdue")] <= len(listed)
    unlisted = now['clustermutex_locks_unlisted{state="alert"}']
    assert unlisted == now[LOCKS("alert")] + now[LOCKS("overdue")] - 100


# ---------------------------------------------------------------- the store


def test_a_push_not_yet_seen_by_the_watch_wins(site: Site) -> None:
    service = site.unlocker()
    held = site.take("a", alert=5, unlock=10)
    site.run(9)
    site.lag(6, 60)
    site.do(lambda: held.alive(force=True))
    site.run(6)
    assert results(service) == {"changed": 1}
    assert not site.removed()


def test_a_removal_with_a_lost_answer_is_counted_as_ours(site: Site) -> None:
    service = site.unlocker()
    site.take("a", alert=1, unlock=5)
    site.run(4)
    site.trouble[service.process.name] = (0.0, 0.5, 0.0)
    gone(site, "a", seconds=120)
    site.trouble.clear()
    site.run(30)
    assert results(service)["removed"] == 1
    assert site.log.count("Removed lock 'a'") == 1


def test_a_refused_removal_is_logged_and_delays_no_other(site: Site) -> None:
    service = site.unlocker()
    with site.refusing("/removed/a/"):
        site.take("a", alert=1, unlock=5)
        site.take("b", alert=1, unlock=5)
        gone(site, "b")
        site.run(20)
        failing = [name for name in service.figures() if "_removal_failing" in name]
        assert failing == ['clustermutex_unlocker_removal_failing{name="a"}']
        assert site.log.count("'a' is due and can't be removed; retrying") == 1
        assert results(service)["failed"] > 5
    gone(site, "a")
    assert not any("_removal_failing" in name for name in service.figures())


def test_a_lock_without_an_answer_delays_no_other(site: Site) -> None:
    service = site.unlocker()
    for name in ("bad", "good-1", "good-2", "good-3"):
        site.take(name, alert=1, unlock=5)
    site.network.unanswered = b"/locks/bad/"
    gone(site, "good-1", "good-2", "good-3")
    site.run(10)
    assert service.ready()
    site.network.unanswered = b""
    gone(site, "bad")


def slowly(site: Site) -> None:
    """Go on for half a second, in which the store answers for 2 ms."""
    for member in site.network.members.values():
        member.frozen_until = site.hub.now + 0.498
    site.run(0.5)


def test_a_run_cut_short_by_its_budget_continues_in_the_next(site: Site) -> None:
    site.unlocker(max_removals=None)
    for number in range(100):
        site.foreign(f"lock-{number}", site.wall + 1, site.wall + 5)
    site.run(4)
    while not site.removed():
        slowly(site)
    site.foreign("alerted", site.wall + 1, None)
    for _ in range(20):
        slowly(site)
    assert site.log.count("'alerted' is past its alert") == 1
    assert len(site.removed()) < 90
    gone(site, *(f"lock-{number}" for number in range(100)))
    assert not site.log.count("The rate limit holds locks back")


def test_a_full_store_is_reported_and_removals_follow(site: Site) -> None:
    service = site.unlocker()
    held = site.take("a", alert=1, unlock=5)
    site.etcd.full = True
    site.run(60)
    now = service.figures()
    assert now[FULL] == 1
    assert now['clustermutex_unlocker_store_failures_total{task="heartbeat"}'] > 2
    status, why = service.get("/readyz")
    assert status == 503
    assert "has accepted no heartbeat of ours" in why
    assert "database space exceeded" in why
    assert site.log.count("The store refuses the heartbeat") == 1
    assert site.read("locks/a/")["uuid"] == held.uuid
    site.etcd.full = False
    gone(site, "a")
    site.run(5)
    assert service.figures()[FULL] == 0
    assert service.ready()


ABOUT_LOCKS = {
    *("clustermutex_locks", "clustermutex_locks_unlisted", "clustermutex_locks_held_too_long"),
    *("clustermutex_lock_info", "clustermutex_lock_past_alert_seconds"),
    *("clustermutex_lock_overdue_seconds", "clustermutex_waiters"),
    *("clustermutex_locks_held_too_long_unlisted", "clustermutex_locks_auto_unlocked_unlisted"),
    *("clustermutex_locks_free_with_waiters", "clustermutex_locks_free_with_waiters_unlisted"),
    *("clustermutex_longest_queue_waiters", "clustermutex_unlockers"),
    *("clustermutex_unlocker_locks_kept", "clustermutex_unlocker_locks_on_few_servers"),
    *("clustermutex_unlocker_rate_limit_engaged", "clustermutex_unlocker_removals_withheld"),
    *("clustermutex_unlocker_removals_limit", "clustermutex_client_clock_skew_seconds"),
    "clustermutex_unlocker_store_out_of_space",
}


def families(service: UnlockerProcess) -> set[str]:
    return {name.partition("{")[0] for name in service.figures()}


def test_an_unlocker_cut_off_from_its_store_shows_no_lock_after_30_s(
    site: Site,
) -> None:
    service = site.unlocker()
    site.take("silent", alert=1, unlock=600)
    pushed = site.take("pushed", alert=80, unlock=600)
    site.run(3)
    before = families(service)
    alerts = site.log.count("is past its alert")
    site.cut_off(service, 100)
    held = site.take("a", alert=5, unlock=20)
    site.run(25)
    assert families(service) == before
    status, why = service.get("/readyz")
    assert status == 503
    assert "No lock is alerted on or removed" in why
    assert service.get("/healthz")[0] == 200
    site.run(10)
    assert before - families(service) == ABOUT_LOCKS
    assert service.figures()["clustermutex_unlocker_store_up"] == 0
    site.run(20)
    site.do(lambda: pushed.alive(force=True))
    site.run(30)
    assert site.log.count("is past its alert") == alerts
    assert not site.removed()
    gone(site, "a")
    assert record(site, "a").holder.uuid == held.uuid
    assert families(service) >= before
    assert service.ready()
    assert site.log.count("'pushed' is past its alert") == 0


def test_a_compacted_watch_leads_to_a_full_read(site: Site) -> None:
    service = site.unlocker()
    site.take("silent", alert=1, unlock=600)
    released = site.take("released", alert=300, unlock=600)
    site.run(5)
    site.cut_off(service, 40)
    site.run(20)
    site.do(released.release)
    site.etcd.compact()
    site.run(60)
    now = service.figures()
    assert (now[LOCKS("alert")], now[LOCKS("ok")]) == (1, 0)
    assert now[LOADS] == 2
    assert site.log.count("Lock 'silent' is past its alert") == 1


def test_an_unlocker_that_never_sweeps_is_not_ready(site: Site) -> None:
    service = site.unlocker()
    site.run(5)

    def stopped_again() -> str:
        service.process.frozen_until = site.hub.now + 3.3
        site.run(3.5)
        status, why = service.get("/readyz")
        return why if status == 503 and "The last check for overdue locks" in why else ""

    site.until(stopped_again, "word of it")
    site.until(service.ready, "readiness, left alone")
