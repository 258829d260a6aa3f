"""Scrapes: well-formed, complete from the start, bounded for hostile locks."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.holder import STATES, Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.stores.common.segments import encode
from lockclient.text.escaping import plain
from tests.simulation.hub import Hub
from tests.simulation.site import Site, UnlockerProcess
from tests.support.processes import needed

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
TASKS = ("sweep", "heartbeat", "clock-check", "resync")
COUNTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("clustermutex_auto_unlocks_total", "result"): ("removed", "changed", "gone", "failed"),
    ("clustermutex_removals_seen_total", "how"): ("auto-unlock", "force-unlock", "other"),
    ("clustermutex_locks", "state"): tuple(STATES),
    ("clustermutex_unlocker_store_failures_total", "task"): TASKS,
}


def samples(service: UnlockerProcess) -> dict[Any, float]:
    """Return what a scrape shows: (name, labels…) to value. No sample may come twice."""
    found: dict[Any, float] = {}
    for family in parse(service.get("/metrics")[1]):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def test_every_combination_of_labels_is_there_at_0_from_the_start(site: Site) -> None:
    """A counter that first appears at 1 never fires `increase()`."""
    found = samples(site.unlocker())
    for (name, label), values in COUNTS.items():
        told = {key: value for key, value in found.items() if key[0] == name}
        assert told == {(name, (label, value)): 0 for value in values}
    for name in ("last_success_age_seconds", "store_requests_total"):
        assert all((f"clustermutex_unlocker_{name}", ("task", task)) in found for task in TASKS)


def test_the_metrics_of_the_service(site: Site) -> None:
    service = site.unlocker(max_removals=None, version="1.2.3")
    site.unlocker()
    for number in range(4):
        site.write({f"queue/a/{number}": "{}"})
    site.write({"queue/b/x": "{}"})
    site.foreign("a", site.wall + 600, site.wall + 900)
    site.foreign("b", site.wall + 600, site.wall + 900)
    site.run(5)
    found = samples(service)
    expected = {
        ("clustermutex_locks", ("state", "ok")): 2,
        ("clustermutex_waiters",): 5,
        ("clustermutex_longest_queue_waiters",): 4,
        ("clustermutex_unlockers",): 2,
        ("clustermutex_unlocker_store_up",): 1,
        ("clustermutex_unlocker_table_loads_total",): 1,
        ("clustermutex_unlocker_watch_restarts_total",): 0,
        ("clustermutex_unlocker_clock_trusted",): 1,
        ("clustermutex_unlocker_clock_offset_seconds",): 0,
        ("clustermutex_unlocker_rate_limit_engaged",): 0,
        ("clustermutex_unlocker_removals_limit",): math.inf,
        ("clustermutex_unlocker_info", ("version", "1.2.3")): 1,
    }
    assert {key: found[key] for key in expected} == expected
    name = "clustermutex_unlocker_last_success_age_seconds"
    ages = {task: found[name, ("task", task)] for task in TASKS}
    assert ages["sweep"] < 2 < ages["resync"] < 10


def test_an_unknown_clock_is_not_shown_as_right(site: Site) -> None:
    site.hub.clock_offsets = list
    found = samples(site.unlocker())
    assert found["clustermutex_unlocker_clock_trusted",] == 0
    assert ("clustermutex_unlocker_clock_offset_seconds",) not in found


def test_the_series_of_a_lock_past_its_alert_name_its_holder(site: Site) -> None:
    service = site.unlocker()
    who = {"pid": 4711, "reason": "totals", "owner": "team-billing", "container": "prod/web-1"}
    about = {"labels": {"env": "prod", "zone": "a"}, "auto_unlock_after": 900, **who}
    now = site.wall
    site.foreign("a", now + 1, now + 900, about=json.dumps(about), hostname="web-1")
    site.run(3)
    found = samples(service)
    labels = {key: str(value) for key, value in who.items()}
    labels |= {"name": "a", "hostname": "web-1", "labels": "env=prod, zone=a"}
    info = ("clustermutex_lock_info", *sorted(labels.items()))
    assert found[info] == 1
    late = found["clustermutex_lock_past_alert_seconds", ("name", "a")]
    assert late == pytest.approx(site.wall - now - 1, abs=0.1)


def test_the_removal_time_of_a_lock_found_at_the_start_counts_from_then(site: Site) -> None:
    site.foreign("a", site.wall - 500, site.wall - 400)
    started = site.wall
    service = site.unlocker()
    site.run(50)
    overdue = samples(service)["clustermutex_lock_overdue_seconds", ("name", "a")]
    assert 100 <= site.wall - overdue - started < 105


HOSTILE = 'a"b\\c\nd\r\x00\u2028{}=,#🙂' + "x" * 3000


def test_hostile_texts_stay_inside_their_labels(site: Site) -> None:
    service = site.unlocker()
    about = json.dumps({"reason": HOSTILE, "locked_at": site.wall - 5, "expected_runtime": 1})
    site.foreign("a", site.wall + 1, None, about=about, hostname=HOSTILE)
    site.write({"queue/free/x": json.dumps({"hostname": HOSTILE, "reason": HOSTILE})})
    site.run(30)
    for headers, read, info in (
        ({}, parse, "clustermutex_lock_info"),
        (OPENMETRICS, parse_openmetrics, "clustermutex_lock"),
    ):
        page = service.get("/metrics", headers)[1]
        families = {family.name: family for family in read(page)}
        (sample,) = families[info].samples
        assert sample.labels["reason"] == plain(HOSTILE)[:99] + "…"
        (skew,) = families["clustermutex_client_clock_skew_seconds"].samples
        assert len(skew.labels["hostname"]) == 100


def test_promtool_finds_no_fault(site: Site) -> None:
    service = site.unlocker()
    pages = [service.get("/metrics")[1]]
    site.foreign("a", site.wall + 1, site.wall + 600)
    site.foreign("b", site.wall + 1, site.wall + 4)
    site.write({"queue/free/x": "{}"})
    site.run(30)
    pages.append(service.get("/metrics")[1])
    for page in pages:
        words = [needed("promtool"), "check", "metrics"]
        done = subprocess.run(words, input=page.encode(), capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


OF_LOCKS = {
    *("clustermutex_lock_past_alert_seconds", "clustermutex_lock_info"),
    *("clustermutex_lock_overdue_seconds", "clustermutex_client_clock_skew_seconds"),
    "clustermutex_lock_auto_unlocked_age_seconds",
    "clustermutex_lock_free_with_waiters_seconds",
    *("clustermutex_lock_held_too_long_seconds", "clustermutex_lock_held_too_long_info"),
}
"""Series whose labels come from locks: 100 of each in a scrape."""


def test_a_scrape_has_a_hundred_series_of_a_kind_and_counts_the_rest(site: Site) -> None:
    service = site.unlocker()
    for number in range(150):
        name = f"{number}"
        about = {"max_hold": 1, "locked_at": site.wall - 9, "auto_unlock_after": 9000}
        site.foreign(
            *(name, site.wall + 1, site.wall + 8999),
            hostname=f"host-{name}",
            about=json.dumps(about),
        )
        holder = Holder(f"gone-{name}", "u", f"host-{name}")
        removal = Removal(holder, site.wall, "unlocker@a:1", AUTO_UNLOCK, "no heartbeat")
        site.write({f"queue/free-{name}/x": "{}", f"removed/gone-{name}/u": removal.value()})
    site.run(30)
    found = samples(service)
    assert Counter(name for name, *_ in found if name in OF_LOCKS) == dict.fromkeys(OF_LOCKS, 100)
    assert found["clustermutex_locks_unlisted", ("state", "alert")] == 50
    for kind in ("free_with_waiters", "held_too_long", "auto_unlocked"):
        assert found[f"clustermutex_locks_{kind}_unlisted",] == 50


def test_a_listed_lock_stays_listed_among_more_locks(site: Site) -> None:
    service = site.unlocker()
    info = ("clustermutex_lock_past_alert_seconds", ("name", "mine"))
    site.foreign("mine", site.wall + 1, None)
    for crowd in range(3):
        for number in range(99):
            site.foreign(f"{crowd}-{number}", site.wall + 1, None)
        site.run(3)
        assert info in samples(service)


def test_alerts_and_log_show_the_escaped_form_of_a_name(site: Site) -> None:
    service, shown = site.unlocker(), "pr\u043ed (pr\\u043ed)"
    site.foreign(encode("pr\u043ed"), site.wall + 1, None)
    site.run(3)
    assert ("clustermutex_lock_past_alert_seconds", ("name", shown)) in samples(service)
    assert site.log.count(f"Lock '{shown}' is past its alert") == 1


def test_names_with_equal_escaped_forms_do_not_break_the_scrape(site: Site) -> None:
    service = site.unlocker()
    for name in ("a\u200bb", "a\\u200bb"):
        about = {"max_hold": 1, "locked_at": site.wall - 9, "expected_runtime": 1}
        site.foreign(encode(name), site.wall + 1, None, about=json.dumps(about))
    site.run(3)
    found = samples(service)
    assert found["clustermutex_locks_unlisted", ("state", "alert")] == 1
    assert found["clustermutex_locks_held_too_long_unlisted",] == 1


def test_every_request_and_failure_is_counted_for_its_task(site: Site) -> None:
    service = site.unlocker()
    site.run(20)

    def counts(what: str) -> dict[str, float]:
        name = f"clustermutex_unlocker_store_{what}_total"
        return {key[1][1]: value for key, value in samples(service).items() if key[0] == name}

    requests, failures = counts("requests"), counts("failures")
    assert all(requests[task] for task in ("heartbeat", "clock-check", "resync"))
    assert not any(failures.values())
    site.take("a", alert=1, unlock=4)
    site.run(3)
    site.hub.clock_offsets = list
    site.etcd.full = True
    site.run(20)
    now = counts("failures")
    assert all(now[task] for task in ("sweep", "heartbeat", "clock-check"))
    assert counts("requests")["sweep"] > requests["sweep"]


def test_holders_that_lost_a_lock_in_the_last_ten_minutes_are_named(site: Site) -> None:
    who = Holder("nightly", "u1", "web-1", 4711, reason="totals")
    bare = Holder("bare", "u", reason="x" * 1000)
    for holder, age, how in (
        (who, 60, AUTO_UNLOCK),
        (replace(who, uuid="u2"), 5, AUTO_UNLOCK),
        (replace(who, name="recent"), 590, AUTO_UNLOCK),
        (replace(who, name="old"), 601, AUTO_UNLOCK),
        (replace(who, name="forced"), 5, FORCE_UNLOCK),
        (bare, 5, AUTO_UNLOCK),
    ):
        removal = Removal(holder, site.wall - age, "unlocker@a:1", how, "no heartbeat")
        site.write({f"removed/{holder.name}/{holder.uuid}": removal.value()})
    service = site.unlocker()

    def named() -> dict[str, float]:
        name = "clustermutex_lock_auto_unlocked_age_seconds"
        found = {key: value for key, value in samples(service).items() if key[0] == name}
        return {dict(labels)["name"]: value for (_, *labels), value in found.items()}

    assert named() == {
        "nightly": pytest.approx(5, abs=1),
        "recent": pytest.approx(590, abs=1),
        "bare": pytest.approx(5, abs=1),
    }
    (labels,) = (dict(key[1:]) for key in samples(service) if ("name", "bare") in key)
    assert (labels["hostname"], labels["pid"], len(labels["reason"])) == ("", "", 100)
    site.run(12)
    assert {*named()} == {"nightly", "bare"}


def test_the_clock_skew_of_a_host_silent_for_five_minutes_is_not_shown(site: Site) -> None:
    service = site.unlocker()

    def hosts() -> set[str]:
        name = "clustermutex_client_clock_skew_seconds"
        return {key[1][1] for key in samples(service) if key[0] == name}

    site.foreign("a", site.wall + 9000, None, hostname="gone")
    site.run(5)
    assert hosts() == {"gone"}
    site.run(300)
    site.foreign("b", site.wall + 9000, None, hostname="here")
    site.run(5)
    assert hosts() == {"here"}


def test_a_lock_held_too_long_is_named(site: Site) -> None:
    service = site.unlocker()
    about = {"max_hold": 30, "locked_at": site.wall, "expected_runtime": 600}
    site.foreign("a", site.wall + 600, None, about=json.dumps(about))
    over = ("clustermutex_lock_held_too_long_seconds", ("name", "a"))
    site.run(28)
    assert samples(service)["clustermutex_locks_held_too_long",] == 0
    site.run(5)
    found = samples(service)
    assert found["clustermutex_locks_held_too_long",] == 1
    assert found[over] == pytest.approx(3, abs=0.5)
    site.clear("a")
    site.run(1)
    assert samples(service)["clustermutex_locks_held_too_long",] == 0


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_wrong_clock_exports_no_age_that_depends_on_it(site: Site, ahead: float) -> None:
    site.hub.clock_offsets = lambda: [-Hub.current.process.wall_ahead]
    removal = Removal(Holder("before", "u"), site.wall - 5, "unlocker@a:1", AUTO_UNLOCK, "silent")
    site.write({"removed/before/u": removal.value()})
    site.foreign("kept", site.wall - 4000, site.wall - 3900)
    service = site.unlocker(ready=False)
    service.process.wall_ahead = ahead
    site.until(lambda: hasattr(service, "unlocker") and service.ready(), "readiness")
    about = {"max_hold": 1800, "locked_at": site.wall, "expected_runtime": 600}
    site.foreign("a", site.wall + 600, None, about=json.dumps(about), hostname="right")
    seen = Removal(Holder("seen", "u"), site.wall, "unlocker@a:1", AUTO_UNLOCK, "silent")
    site.write({"removed/seen/u": seen.value()})
    site.run(30)
    found = samples(service)
    removed = [key for key in found if key[0] == "clustermutex_lock_auto_unlocked_age_seconds"]
    assert [dict(labels)["name"] for _, *labels in removed] == ["seen"]
    assert found["clustermutex_locks_held_too_long",] == 0
    assert ("clustermutex_unlocker_locks_kept",) not in found
    assert not [key for key in found if key[0] == "clustermutex_client_clock_skew_seconds"]

    service.process.wall_ahead = 0.0
    site.run(15)
    found = samples(service)
    assert found["clustermutex_unlocker_locks_kept",] == 1
    assert [key for key in found if ("name", "before") in key]
    skew = found["clustermutex_client_clock_skew_seconds", ("hostname", "right")]
    assert skew == pytest.approx(0, abs=1), "by the clock as it is now"


def test_a_removal_recorded_by_a_clock_that_is_ahead_is_not_recent_for_an_hour(site: Site) -> None:
    ahead = Removal(Holder("a", "u"), site.wall + 3600, "unlocker@a:1", AUTO_UNLOCK, "silent")
    site.write({"removed/a/u": ahead.value()})
    assert not [key for key in samples(site.unlocker()) if ("name", "a") in key]


def test_the_time_past_an_alert_goes_on_when_silence_counts_anew(site: Site) -> None:
    service = site.unlocker()
    site.foreign("a", site.wall + 1, None)
    late = ("clustermutex_lock_past_alert_seconds", ("name", "a"))
    site.run(60)
    site.cut_off(service, 30)
    site.run(45)
    assert service.figures()["clustermutex_unlocker_table_loads_total"] > 1
    assert samples(service)[late] == pytest.approx(104, abs=1)
