"""Who lost a lock lately, as a scrape shows it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.service.metrics import ComputedCollector
from unlocker.metrics.recent_removals import SHOWN_S, recent_removal_gauges
from unlocker.metrics.series_limit import SeriesLimit

HOLDER = Holder("nightly", "u1", "web-1", 4711, reason="totals")


def removal(age: float, holder: Holder = HOLDER, how: str = "auto-unlock") -> Removal:
    return Removal(holder, time.time() - age, "unlocker@a:1", how, "no sign of life")


def shown(*removals: Removal) -> dict[tuple[str, ...], float]:
    """Return labels to age, as Prometheus would read it."""
    registry = CollectorRegistry()
    gauges = partial(recent_removal_gauges, removals, SeriesLimit())
    registry.register(ComputedCollector(gauges))
    family, unlisted = parse(generate_latest(registry).decode())
    assert unlisted.samples[0].value == 0
    assert family.name == "clustermutex_lock_auto_unlocked_timestamp_seconds"
    found = [
        (
            tuple(sample.labels[key] for key in ("name", "hostname", "pid", "reason")),
            time.time() - sample.value,
        )
        for sample in family.samples
    ]
    assert len(dict(found)) == len(found), "Prometheus refuses a scrape with a sample twice."
    return dict(found)


def test_an_auto_unlock_names_lock_holder_and_reason() -> None:
    assert shown(removal(5)).keys() == {("nightly", "web-1", "4711", "totals")}


def test_it_goes_after_ten_minutes() -> None:
    assert not shown(removal(SHOWN_S + 1))
    assert shown(removal(SHOWN_S - 5))


def test_a_person_s_force_unlock_is_no_alert() -> None:
    assert not shown(removal(5, how="force-unlock"))


def test_a_process_that_lost_a_lock_twice_is_shown_once_with_the_later_time() -> None:
    again = replace(HOLDER, uuid="u2")
    (age,) = shown(removal(5, again), removal(60)).values()
    assert age < 30


def test_what_a_broken_record_lacks_is_empty_and_a_long_text_is_cut() -> None:
    bare = Holder("bare", reason="x" * 1000)
    ((name, hostname, pid, reason),) = shown(removal(5, bare))
    assert (name, hostname, pid) == ("bare", "", "")
    assert len(reason) == 100
    assert not shown(replace(removal(5), removed_at=None))
