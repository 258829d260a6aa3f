"""New sets of labels an hour are limited, whatever locks say; what is left out rings as well."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.rows import Row, Transition
from lockclient.stores.service_protocol import WaitQueue
from unlocker.deadlines import JudgedLock, PastAlert
from unlocker.metrics import series_limit
from unlocker.metrics.clock_skew import OTHERS
from unlocker.metrics.counters import Metrics
from unlocker.metrics.gauges import past_alert_gauges
from unlocker.metrics.held_too_long import HeldTooLong
from unlocker.metrics.recent_removals import RecentRemovals
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
