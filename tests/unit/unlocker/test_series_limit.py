"""New sets of labels an hour are limited, whatever locks say; what is left out rings as well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.rows import Row, Transition
from lockclient.service.metrics import ComputedCollector
from lockclient.stores.service_protocol import WaitQueue
from unlocker.deadlines import JudgedLock, PastAlert
from unlocker.metrics import clock_skew, series_limit
from unlocker.metrics.clock_skew import OTHERS, ClockSkews
from unlocker.metrics.counters import Metrics
from unlocker.metrics.gauges import past_alert_gauges
from unlocker.metrics.held_too_long import HeldTooLong
from unlocker.metrics.recent_removals import COUNTED_S, MAX_COUNTED, SHOWN_S, RecentRemovals
from unlocker.metrics.series_limit import (
    FREE,
    HOUR_S,
    KINDS,
    MAX_LISTED,
    NEW_AN_HOUR,
    PAST_ALERT,
    TOO_LONG,
    UNLOCKED,
    SeriesLimit,
)
from unlocker.policy import judge
from unlocker.unclaimed import NORMAL_HANDOVER_S, UnclaimedLocks

FROM_LOCKS = ("name", "hostname")
SILENT = Holder(
    *("nightly", "u", "web-1", 4711),
    reason="totals",
    owner="team-billing",
    container="prod/web-1",
    labels={"env": "prod", "zone": "a"},
    context={"trace_id": "4bf9"},
    alert_at=1_800_000_000.5,
    auto_unlock_at=1.9e9,
    auto_unlock_after=900,
)


def past_alert(holder: Holder = SILENT, *, found: bool = False) -> JudgedLock:
    """Return a lock past its alert that was seen a second ago, by the monotonic clock."""
    row = Row(holder, monotonic() - 1, found)
    return JudgedLock(row, judge(row, None), "alert", alerted=True)


class Store:
    """Everything that a writer of locks can do to the metrics, with fresh texts each time."""

    def __init__(self) -> None:
        self.loads = 0
        self.metrics = Metrics("1")
        self._fresh = count()
        limits = self.metrics.series_limits
        self.recent = RecentRemovals(limits[UNLOCKED])
        self.change()
        self.free = UnclaimedLocks(self, self, limits[FREE])  # type: ignore[arg-type]
        self.metrics.add(
            lambda: (
                *past_alert_gauges(PastAlert(self.past_alert, {}), (), limits[PAST_ALERT]),
                *self.recent.gauges(self.removals),
                *self.free.gauges(),
                *self.held_too_long.gauges(),
                *self.metrics.skews.gauges(),
            )
        )

    def change(self) -> None:
        """Have other locks past their alert, removed, free with a line, and other hosts push."""
        names = [f"lock {next(self._fresh)}" for _ in range(MAX_LISTED)]
        holders = [replace(SILENT, name=name, hostname=name, reason=name) for name in names]
        self.past_alert = [past_alert(holder) for holder in holders]
        self.removals = [
            Removal(holder, time.time(), "me", "auto-unlock", "") for holder in holders
        ]
        self.recent.add(self.removals, found=False)
        rows = [
            Row(replace(holder, locked_at=1.0, max_hold=2.0, fencing_token=5), 0.0, found=False)
            for holder in holders
        ]
        self.held_too_long = HeldTooLong(self.metrics.series_limits[TOO_LONG])
        self.held_too_long.update(Transition(row.holder.name, None, row, live=True) for row in rows)
        self.heads = {name: Ticket(name, "u", name, revision=self.loads) for name in names}
        for name in names:
            self.metrics.skews.note(name, 9.0)

    def unclaimed(self) -> list[str]:
        return list(self.heads)

    def wait_queue(self, name: str, _first: int, _deadline: Deadline) -> WaitQueue:
        return WaitQueue(1, (self.heads[name],))

    def scrape(self) -> list[Any]:
        text = generate_latest(self.metrics.registry).decode()
        return [sample for family in parse(text) for sample in family.samples]


def series(samples: list[Any]) -> set[tuple[Any, ...]]:
    """Return the series whose labels come from locks."""
    return {
        (sample.name, *sorted(sample.labels.items()))
        for sample in samples
        if {*FROM_LOCKS} & sample.labels.keys() and sample.labels.get("hostname") != OTHERS
    }


def value(samples: list[Any], name: str, **wanted: str) -> float:
    (found,) = [
        sample.value for sample in samples if sample.name == name and sample.labels == wanted
    ]
    return float(found)


def test_fresh_labels_make_no_more_series_than_a_hundred_sets_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty scrapes, and other locks each time; an hour later there is room for as many again."""
    store, now = Store(), monotonic()
    monkeypatch.setattr(series_limit, "monotonic", lambda: now)
    found: set[tuple[Any, ...]] = set()
    for number in range(20):
        store.change()
        for seconds in (0, 2 * NORMAL_HANDOVER_S):  # free for long, by what is looked at
            store.free.scan(100 * number + seconds)
        store.free.refresh_heads()
        samples = store.scrape()
        found |= series(samples)
    counts = Counter(name for name, *_ in found)
    assert {*counts.values()} == {NEW_AN_HOUR}
    named = "of past alert, its end and who; removed; free and who; skew; too long and who"
    assert len(counts) == 9, named
    # They ring by their number.
    assert value(samples, "clustermutex_locks_unlisted", state="alert") == MAX_LISTED
    assert value(samples, "clustermutex_locks_auto_unlocked_unlisted") == 21 * MAX_LISTED
    assert value(samples, "clustermutex_locks_free_with_waiters_unlisted") == MAX_LISTED
    assert value(samples, "clustermutex_client_clock_skew_seconds", hostname=OTHERS) == 9.0
    for kind in KINDS:
        left_out = "clustermutex_unlocker_label_sets_left_out_total"
        assert value(samples, left_out, of=kind) >= 18 * MAX_LISTED, "as of the scrape before"
    now += HOUR_S
    store.change()
    assert series(store.scrape()) - found


def test_what_is_shown_stays_shown() -> None:
    """A lock that rings by its name goes on doing so, whatever comes beside it."""
    store = Store()
    first = series(store.scrape())
    mine = store.past_alert[0]
    for _ in range(5):
        store.change()
        store.past_alert = [*store.past_alert[1:], mine]
        later = series(store.scrape())
        own = {key for key in first if ("name", mine.row.holder.name) in key}
        assert {
            key for key in own if "unlocked" not in key[0] and "too_long" not in key[0]
        } <= later


def test_two_names_that_are_shown_alike_do_not_end_the_scrape() -> None:
    """Prometheus refuses all of it if one sample comes twice."""
    store = Store()
    pair = [past_alert(replace(SILENT, name=name)) for name in ("a\u200bb", "a\\u200bb")]
    store.past_alert = pair
    store.removals = [
        Removal(item.row.holder, time.time(), "me", "auto-unlock", "") for item in pair
    ]
    samples = store.scrape()
    keys = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
    assert len(keys) == len({*keys})
    assert value(samples, "clustermutex_locks_unlisted", state="alert") == 1


def test_the_memory_of_what_was_shown_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = monotonic()
    monkeypatch.setattr(series_limit, "monotonic", lambda: now)
    shown = SeriesLimit()
    for number in range(5000):
        now += 60
        shown.admit((str(number),))
    assert len(vars(shown)["_shown"]) <= 2 * NEW_AN_HOUR


def test_what_is_urgent_has_room_of_its_own() -> None:
    """A hundred that were silent first do not hide the name of one that is overdue."""
    left_out: list[bool] = []
    shown = SeriesLimit(lambda: left_out.append(True))
    assert all(shown.admit((f"silent {number}",)) for number in range(NEW_AN_HOUR))
    assert not shown.admit(("one more",))
    assert all(shown.admit((f"overdue {number}",), urgent=True) for number in range(NEW_AN_HOUR))
    assert not shown.admit(("another",), urgent=True)
    assert shown.admit(("silent 0",))
    assert len(left_out) == 2


def test_looks_at_very_many_queues_are_made_less_often() -> None:
    """They must not keep the unlocker from its work: 0.1 s of the processor's time in 5 s."""
    store, looked = Store(), []

    def slow() -> list[str]:
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        looked.append(now)
        return []

    table = SimpleNamespace(loads=1, unclaimed=slow)
    free = UnclaimedLocks(cast("Any", table), cast("Any", store), SeriesLimit())
    for now in (0.0, 1.0, 2.0, 4.9, 20.0, 21.0):
        free.scan(1000 + now)
    assert looked == [0.0, 20.0]
    free.clear()
    free.scan(1022)
    assert len(looked) == 3


# ---------------------------------------------------------------- who lost a lock lately

HOLDER = Holder("nightly", "u1", "web-1", 4711, reason="totals")


def removal(age: float, holder: Holder = HOLDER, how: str = "auto-unlock") -> Removal:
    return Removal(holder, time.time() - age, "unlocker@a:1", how, "no heartbeat")


def shown(*removals: Removal) -> dict[tuple[str, ...], float]:
    """Return labels to age, as Prometheus would read it."""
    registry = CollectorRegistry()
    gauges = partial(RecentRemovals(SeriesLimit()).gauges, removals)
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


def unlisted(recent: RecentRemovals, newest: Iterable[Removal]) -> float:
    *_, family = recent.gauges(newest)
    return float(family.samples[0].value)


def test_all_that_are_not_named_are_counted() -> None:
    """Whatever the remover's clock says, and also those that were on record before."""
    recent = RecentRemovals(SeriesLimit())
    ages = (0.0, -3600.0, 3600.0, 5.0)
    for number in range(160):
        lost = removal(ages[number % 4], replace(HOLDER, name=f"{number}", uuid=f"u{number}"))
        recent.add([lost], found=False)
    assert unlisted(recent, ()) == 160
    assert unlisted(recent, [removal(0, replace(HOLDER, name="0", uuid="u0"))]) == 159
    recent.add([removal(0, how="force-unlock")], found=False)
    recent.add([removal(COUNTED_S - 9, replace(HOLDER, uuid="before"))], found=True)
    recent.add([removal(COUNTED_S + 9, replace(HOLDER, uuid="long before"))], found=True)
    assert unlisted(recent, ()) == 161
    many = [removal(0, replace(HOLDER, uuid=f"{number}")) for number in range(MAX_COUNTED)]
    recent.add(many, found=False)
    assert unlisted(recent, ()) == MAX_COUNTED


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


# ---------------------------------------------------------------- clocks of hosts


def test_skews_are_kept_of_the_hosts_heard_of_last() -> None:
    skews = ClockSkews(SeriesLimit())
    for number in range(MAX_LISTED):
        skews.note(f"host-{number}", number)
    skews.note("host-0", 0.5)
    skews.note("new", 1.0)
    kept = skews.all()
    assert len(kept) == MAX_LISTED
    assert kept["host-0"] == 0.5
    assert kept["new"] == 1.0
    assert "host-1" not in kept


def test_the_skew_of_a_host_that_is_silent_for_an_hour_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an alert on it would never end."""
    skews = ClockSkews(SeriesLimit())
    skews.note("gone", 50.0)
    later = monotonic() + 3601
    monkeypatch.setattr(clock_skew, "monotonic", lambda: later)
    skews.note("here", 1.0)
    assert skews.all() == {"here": 1.0}
