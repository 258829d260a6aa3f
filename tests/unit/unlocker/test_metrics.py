"""What a scrape shows: well-formed, complete from the start, bounded whatever locks say."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from prometheus_client import Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from lockclient.errors import StoreError, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.holder import STATES, Holder
from lockclient.model.restore_marker import Restored
from lockclient.model.silence import ClockCheck
from lockclient.overview.rows import Row
from lockclient.stores.common.lock_model import Entry
from lockclient.stores.outcomes import Outcome
from lockclient.stores.requests import Read, Request
from lockclient.stores.service_protocol import Batch, Kind
from lockclient.text.escaping import plain
from tests.support.memory_store import MemoryStore
from tests.support.processes import needed
from unlocker import health
from unlocker.deadlines import JudgedLock, PastAlert
from unlocker.metrics import clock_skew
from unlocker.metrics.clock_skew import ClockSkews
from unlocker.metrics.counters import TASKS, Metrics
from unlocker.metrics.counting_store import CountingStore
from unlocker.metrics.series_limit import MAX_LISTED, SeriesLimit
from unlocker.policy import judge
from unlocker.rate_limit import RateLimitState
from unlocker.unlocker import Unlocker

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


class FlakyStore(MemoryStore):
    """A store that answers, or does not."""

    trouble: Exception | None = None

    def fail(self) -> None:
        if self.trouble:
            raise self.trouble

    def write(self, *entries: Entry) -> int:
        self.fail()
        return super().write(*entries)

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        self.fail()
        return super().ask(request, deadline)

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        yield Batch((), 1)
        self.fail()
        yield from super().load(kinds, deadline)

    def clock_offsets(self, timeout: float) -> list[float]:
        return [] if self.trouble else [0.1]

    def endpoints(self) -> tuple[str, ...]:
        return ("a:1", "b:2")


def quiet_unlocker(
    listed: Sequence[JudgedLock] = (),
    unlisted: Mapping[str, int] = MappingProxyType({"alert": 0, "overdue": 0}),
    failing: Collection[str] = (),
) -> Unlocker:
    """Return an unlocker that has read everything, and says this of locks past their alert."""
    unlocker = Unlocker(FlakyStore(), version="1.2.3")
    knows(unlocker._table, ready=lambda: True)
    knows(unlocker._deadlines, past_alert=lambda *_: PastAlert([*listed], unlisted))
    knows(unlocker._remover, failing=lambda: failing)
    return unlocker


def knows(part: object, **facts: object) -> None:
    """Have a part of an unlocker say this."""
    vars(part).update(facts)


def samples(unlocker: Unlocker | None = None) -> dict[Any, float]:
    """Return what a scrape shows: (name, labels…) to value. No sample may come twice."""
    found: dict[Any, float] = {}
    unlocker = unlocker or quiet_unlocker()
    for family in parse(generate_latest(unlocker.metrics.registry).decode()):
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


LAST_SUCCESS = "last_success_timestamp_seconds"


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("clustermutex_auto_unlocks_total", "result", ["removed", "changed", "gone", "failed"]),
        ("clustermutex_removals_seen_total", "how", ["auto-unlock", "force-unlock", "other"]),
        ("clustermutex_locks", "state", [*STATES]),
        *(
            (
                f"clustermutex_unlocker_{name}",
                "task",
                ["sweep", "heartbeat", "clock-check", "resync"],
            )
            for name in ("store_failures_total", "store_requests_total", LAST_SUCCESS)
        ),
    ],
)
def test_every_combination_of_labels_is_there_at_0_from_the_start(
    name: str, label: str, values: list[str]
) -> None:
    """A counter that first appears at 1 never fires `increase()`."""
    found = samples()
    told = {key: value for key, value in found.items() if key[0] == name}
    assert told == {(name, (label, value)): 0 for value in values}


def test_nothing_is_computed_before_a_scrape() -> None:
    def compute() -> list[Metric]:
        raise AssertionError("asked for gauges")

    Metrics("1").add(compute)


def test_what_the_service_knows_is_shown() -> None:
    unlocker = quiet_unlocker()
    before = time.time()
    unlocker.metrics.last_success.labels("sweep").set_to_current_time()
    counts = {"ok": 7, "alert": 2, "overdue": 1, "undecided": 5, "broken": 3}
    knows(unlocker._deadlines, counts=lambda: counts, carried_over=lambda _wall: 4)
    knows(
        unlocker._table,
        waiters=lambda: {"a": 3, "b": 1},
        unlockers=lambda: {"one": "", "other": ""},
        restored=lambda: Restored("", 9.5),
        loads=5,
    )
    knows(unlocker._health, is_reachable=lambda: True, out_of_space=True)
    votes = {"a:1": "", "b:2": "connection refused"}
    knows(unlocker._store, votes=lambda: votes, watch_restarts=lambda: 6)
    knows(unlocker, _clock_check=ClockCheck(Now(1, 1), -0.25))
    state = RateLimitState(engaged=True, withheld=8, limit=math.inf)
    knows(unlocker._rate_limit, state=lambda _held: state)
    found = samples(unlocker)
    last = found["clustermutex_unlocker_last_success_timestamp_seconds", ("task", "sweep")]
    assert before <= last <= time.time()
    expected = {
        ("clustermutex_locks", ("state", "broken")): 3,
        ("clustermutex_locks", ("state", "undecided")): 5,
        ("clustermutex_unlocker_locks_kept",): 4,
        ("clustermutex_waiters",): 4,
        ("clustermutex_longest_line_waiters",): 3,
        ("clustermutex_unlockers",): 2,
        ("clustermutex_unlocker_store_up",): 1,
        ("clustermutex_store_restored_timestamp_seconds",): 9.5,
        ("clustermutex_unlocker_store_out_of_space",): 1,
        ("clustermutex_unlocker_store_server_votes", ("server", "a:1")): 1,
        ("clustermutex_unlocker_store_server_votes", ("server", "b:2")): 0,
        ("clustermutex_unlocker_table_loads_total",): 5,
        ("clustermutex_unlocker_watch_restarts_total",): 6,
        ("clustermutex_unlocker_clock_trusted",): 1,
        ("clustermutex_unlocker_clock_offset_seconds",): -0.25,
        ("clustermutex_unlocker_brake_engaged",): 1,
        ("clustermutex_unlocker_removals_withheld",): 8,
        ("clustermutex_unlocker_removals_limit",): math.inf,
        ("clustermutex_unlocker_info", ("version", "1.2.3")): 1,
    }
    assert {key: found[key] for key in expected} == expected


def test_an_unknown_clock_is_not_shown_as_right() -> None:
    found = samples()
    assert found["clustermutex_unlocker_clock_trusted",] == 0
    assert ("clustermutex_unlocker_clock_offset_seconds",) not in found


def test_a_lock_past_its_alert_has_series_of_its_own() -> None:
    found = samples(quiet_unlocker([past_alert()]))
    who = {"hostname": "web-1", "name": "nightly", "pid": "4711", "reason": "totals"}
    who |= {"owner": "team-billing", "container": "prod/web-1", "labels": "env=prod, zone=a"}
    info = ("clustermutex_lock_info", *sorted(who.items()))
    assert found[info] == 1
    assert found["clustermutex_lock_alert_timestamp_seconds", ("name", "nightly")] == 1.8e9 + 0.5
    assert found["clustermutex_lock_auto_unlock_timestamp_seconds", ("name", "nightly")] == 1.9e9


def test_what_has_no_series_is_counted_and_a_failing_removal_is_named() -> None:
    listed = [past_alert(), past_alert(replace(SILENT, name="stuck"))]
    unlocker = quiet_unlocker(listed, {"alert": 7, "overdue": 2}, {"stuck", "elsewhere"})
    found = samples(unlocker)
    assert found["clustermutex_locks_unlisted", ("state", "alert")] == 7
    assert found["clustermutex_locks_unlisted", ("state", "overdue")] == 2
    failing = [key for key in found if key[0] == "clustermutex_unlocker_removal_failing"]
    assert failing == [("clustermutex_unlocker_removal_failing", ("name", "stuck"))]


@pytest.mark.parametrize(
    "facts",
    [
        {"auto_unlock_at": None, "auto_unlock_after": None},
        {"auto_unlock_after": None},
        {"expected_runtime": 300},
        {"needs": ("warp",)},
    ],
    ids=lambda facts: ", ".join(facts),
)
def test_a_lock_that_is_not_removed_has_no_time_for_it(facts: dict[str, Any]) -> None:
    """Never, or undecided: LockOverdue is made of this series, and would ring for ever."""
    found = samples(quiet_unlocker([past_alert(replace(SILENT, **facts))]))
    assert ("clustermutex_lock_alert_timestamp_seconds", ("name", "nightly")) in found
    assert not any(key[0] == "clustermutex_lock_auto_unlock_timestamp_seconds" for key in found)


def test_a_lock_that_was_found_is_removed_when_its_whole_time_has_passed_since() -> None:
    """Its stamp may be long over, and LockOverdue is made of this: no start must ring."""
    before = time.time()
    found = samples(quiet_unlocker([past_alert(found=True)]))
    unlock = found["clustermutex_lock_auto_unlock_timestamp_seconds", ("name", "nightly")]
    assert before + 899 * 1.001 - 1 <= unlock <= time.time() + 899 * 1.001 + 1


def family(key: Any) -> str:
    return str(key[0])


ABOUT_LOCKS = {
    *("clustermutex_locks", "clustermutex_locks_unlisted", "clustermutex_locks_held_too_long"),
    *("clustermutex_lock_info", "clustermutex_lock_alert_timestamp_seconds"),
    *("clustermutex_lock_auto_unlock_timestamp_seconds", "clustermutex_waiters"),
    *("clustermutex_locks_held_too_long_unlisted", "clustermutex_locks_auto_unlocked_unlisted"),
    *("clustermutex_locks_free_with_waiters", "clustermutex_locks_free_with_waiters_unlisted"),
    *("clustermutex_longest_line_waiters", "clustermutex_unlockers"),
    *("clustermutex_unlocker_locks_kept", "clustermutex_unlocker_locks_on_few_servers"),
    *("clustermutex_unlocker_brake_engaged", "clustermutex_unlocker_removals_withheld"),
    *("clustermutex_unlocker_removals_limit", "clustermutex_client_clock_skew_seconds"),
    "clustermutex_unlocker_store_out_of_space",
}


@pytest.mark.parametrize(("poll", "seconds"), [(0.0, 30), (10.0, 50)])
def test_an_unlocker_that_is_blind_exports_no_gauge_about_locks(
    monkeypatch: pytest.MonkeyPatch, poll: float, seconds: float
) -> None:
    """30 s and two polls after its last proof, by the monotonic clock; its counters stay."""
    unlocker = quiet_unlocker([past_alert()])
    unlocker._store.poll = poll
    unlocker.metrics.skews.note("web-1", 0.1)
    monkeypatch.setattr(time, "time", lambda: 9e9)
    known_at = unlocker._health.freshness.verified_at()
    monkeypatch.setattr(health, "monotonic", lambda: known_at + seconds - 1)
    before = {*map(family, samples(unlocker))}
    monkeypatch.setattr(health, "monotonic", lambda: known_at + seconds + 1)
    assert before - {*map(family, samples(unlocker))} == ABOUT_LOCKS


def test_an_unlocker_that_has_not_read_the_locks_exports_no_gauge_about_them() -> None:
    unlocker = quiet_unlocker([past_alert()])
    knows(unlocker._table, ready=lambda: False)
    assert not ABOUT_LOCKS & {*map(family, samples(unlocker))}


@pytest.mark.parametrize(
    ("late", "shown"), [(False, True), (True, False)], ids=["watch works", "watch is late"]
)
def test_a_heartbeat_that_is_refused_for_want_of_space_makes_no_unlocker_blind(
    monkeypatch: pytest.MonkeyPatch, late: bool, shown: bool
) -> None:
    """While the store goes on refusing; once it is silent, nothing is known any more."""
    unlocker, began = quiet_unlocker(), monotonic()
    state, moment = unlocker._health, began + 100
    monkeypatch.setattr(health, "monotonic", lambda: moment)
    knows(state.freshness, stale=lambda: late)
    with state.task("heartbeat"):
        raise StoreFull("no space")
    moment += 29
    with state.task("heartbeat"):
        raise StoreUnavailable("stopped")
    full = ("clustermutex_unlocker_store_out_of_space",)
    assert samples(unlocker).get(full) == (1 if shown else None)
    moment += 2
    assert full not in samples(unlocker)


HOSTILE = 'a"b\\c\nd\r\x00\u2028{}=,#🙂' + "x" * 10_000


def test_hostile_texts_stay_inside_their_labels() -> None:
    holder = replace(SILENT, name='<b>"\\\n🙂', hostname=HOSTILE, reason=HOSTILE)
    metrics = quiet_unlocker([past_alert(holder)]).metrics
    metrics.skews.note(HOSTILE, 1.5)
    for generate, read, info in (
        (generate_latest, parse, "clustermutex_lock_info"),
        (generate_openmetrics, parse_openmetrics, "clustermutex_lock"),
    ):
        families = {family.name: family for family in read(generate(metrics.registry).decode())}
        [sample] = families[info].samples
        assert sample.labels["name"] == '<b>"\\\\n🙂', "a backslash, and a line end that shows"
        assert sample.labels["reason"] == plain(HOSTILE)[:99] + "…"
        [skew] = families["clustermutex_client_clock_skew_seconds"].samples
        assert len(skew.labels["hostname"]) == 100


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


def test_promtool_has_nothing_to_say() -> None:
    """Neither at the start nor with all there is: names, types, help texts, units."""
    full = quiet_unlocker([past_alert()])
    knows(full, _clock_check=ClockCheck(Now(1, 1), 0.1))
    knows(full._table, waiters=lambda: {"a": 2})
    for unlocker in (quiet_unlocker(), full):
        metrics = unlocker.metrics
        metrics.skews.note("web-1", 0.1)
        page = generate_latest(metrics.registry)
        words = [needed("promtool"), "check", "metrics"]
        done = subprocess.run(words, input=page, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_whatever_locks_say_the_number_of_series_is_bounded() -> None:
    few = len(samples())
    names = [f"lock {number}" for number in range(MAX_LISTED)]
    many = [past_alert(replace(SILENT, name=name)) for name in names]
    for failing, families in ((), 4), (names, 5):
        unlocker = quiet_unlocker(many, failing=failing)
        for number in range(10 * MAX_LISTED):
            unlocker.metrics.skews.note(f"host-{number}", 0.0)
        knows(unlocker._table, waiters=lambda: {f"{number}": number for number in range(1000)})
        assert len(samples(unlocker)) <= few + families * MAX_LISTED


def test_every_request_and_failure_is_counted_for_its_task() -> None:
    """And what is no request is handed on as it is."""
    unlocker, flaky = quiet_unlocker(), FlakyStore()
    metrics = unlocker.metrics
    store: Any = CountingStore(flaky, metrics)
    soon = Deadline.after(1)

    def all_of_them() -> None:
        for request in (
            lambda: store.ask(Read("a"), soon),
            lambda: list(store.load(("locks",), soon)),
            lambda: store.announce("me", "value", 10, soon),
        ):
            with suppress(StoreUnavailable, StoreError):
                request()
        store.clock_offsets(1)
        assert store.connected()

    def count(counter: Counter) -> dict[str, float]:
        [family] = counter.collect()
        totals = [sample for sample in family.samples if sample.name.endswith("_total")]
        return {sample.labels["task"]: sample.value for sample in totals}

    all_of_them()
    assert count(metrics.failures) == dict.fromkeys(TASKS, 0)
    assert count(metrics.requests) == dict.fromkeys(TASKS, 1) | {"resync": 2}
    read = "clustermutex_unlocker_last_success_timestamp_seconds", ("task", "resync")
    last = samples(unlocker)[read]
    assert last > 0
    for flaky.trouble in (StoreUnavailable("away"), StoreError("refused")):
        all_of_them()
    assert count(metrics.failures) == dict.fromkeys(TASKS, 2)
    assert count(metrics.requests) == dict.fromkeys(TASKS, 3) | {"resync": 6}
    found = samples(unlocker)
    assert found[read] == last
    assert found["clustermutex_unlocker_resync_duration_seconds_count",] == 1
