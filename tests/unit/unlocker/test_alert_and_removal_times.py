"""When a lock is due: on each wrong clock, never early, and not never."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.auto_unlock import NEVER, ClockCheck
from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.overview.rows import Row
from tests.support.records import found as as_found
from tests.support.records import written
from unlocker.alert_and_removal_times import due_times

WALL = 1_800_000_000.0
"""The right time when the monotonic clock is at 1000."""


def lock(
    *,
    found: bool = False,
    seen_at: float = 1000.0,
    pushed_at: float = WALL,
    runtime: float | None = 30.0,
    after: float | None = 60.0,
    **facts: Any,
) -> Row:
    """Return a lock as this process has it, pushed at the right time 1000 unless it says else."""
    holder = Holder(
        *("a", "uuid", "host"),
        alert_at=pushed_at + (runtime or 30.0),
        auto_unlock_at=None if after is None else pushed_at + after,
        expected_runtime=runtime,
        auto_unlock_after=after,
    )
    return Row(replace(holder, **facts), seen_at=seen_at, found=found)


def check(at: float = 1000.0, *, wrong: float = 0.0, offset: float | None = 0.0) -> ClockCheck:
    """Return a check at monotonic `at`, our wall clock being `wrong` seconds ahead of the right."""
    return ClockCheck(Now(at, WALL + at - 1000 + wrong), offset)


@pytest.mark.promise(number=2)
@given(
    found=st.booleans(),
    wrong=st.floats(-1e9, 1e9),
    offset=st.none() | st.floats(-1e9, 1e9),
    skew=st.floats(-1e9, 1e9),
    length=st.floats(0.01, 1e6),
    seen_at=st.floats(0, 1e6),
    checked=st.none() | st.floats(0, 1e6),
)
def test_no_wall_clock_makes_a_lock_due_early(
    found: bool,
    wrong: float,
    offset: float | None,
    skew: float,
    length: float,
    seen_at: float,
    checked: float | None,
) -> None:
    clock = None if checked is None else check(checked, wrong=wrong, offset=offset)
    row = lock(
        found=found, seen_at=seen_at, pushed_at=WALL + skew, runtime=length / 2, after=length
    )
    assert due_times(row, clock).due == seen_at + length * 1.001


@pytest.mark.parametrize(
    ("row", "clock", "alert"),
    [
        (lock(runtime=None, after=None, alert_at=WALL - 1000), check(1001), 1000),
        (lock(found=True, seen_at=5000), check(5000), 1030),
        *[(lock(found=True, seen_at=5000), check(5000, offset=o), 5030) for o in (2.1, -2.1)],
        *[
            (lock(found=True, pushed_at=WALL + ahead, runtime=1, after=5), check(), 1001)
            for ahead in (1, 11, 2.5e11)
        ],
    ],
)
def test_when_an_alert_is(row: Row, clock: ClockCheck, alert: float) -> None:
    """A write that was seen is a heartbeat, whatever it says; a lock that was found is past its
    alert by its stamp, or sooner by its runtime where the holder's clock is ahead."""
    assert due_times(row, clock).alert == pytest.approx(alert, abs=0.1)


@pytest.mark.parametrize("key", ["auto_unlock_at", "alert_at", "hostname", "about"])
def test_a_lock_with_an_unreadable_value_is_never_due(key: str) -> None:
    damaged = written(lock().holder).updated(as_found({key: b"\xff\xfe"}))
    assert due_times(Row(damaged, 1000, found=True), check(5000)).due == NEVER


NO_CLOCK = {
    "none yet": None,
    "from before": check(1019),
}
UNTRUSTED = {
    "nobody told": check(1021, offset=None),
    "an hour off": check(1021, wrong=3600, offset=-3600),
}
TRUSTED = {"to trust": check(1021), "a second off": check(1021, wrong=1.0, offset=-1.0)}
NO_RUNTIME = [(None, 1080), (None, 1080), (1030, 1080)]
COUNTED = [(1050, 1080)] * 3
FOUND = [(None, 1080), (1050, 1080), (1030, 1080)]
NOT_SAID = [(None, NEVER), (None, NEVER), (1030, NEVER)]
BY_STAMP = [(None, NEVER), (1050, NEVER), (1030, NEVER)]
BY_DISTANCE = [(None, NEVER), (1050, NEVER), (1030, 1060)]
FOUR_KEYS: dict[str, Any] = {
    "runtime": None,
    "auto_unlock_after": None,
    "first_distance": 30.0,
    "auto_unlock_at": WALL + 60,
}
PUSHED_AT_1000_SEEN_AT_1020: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    # the lock: alert and due without a clock, with an untrusted one, and with one to trust:
    # if its write was seen, and if it was found
    "sound": ({}, COUNTED, FOUND),
    "no expected runtime": ({"runtime": None}, NO_RUNTIME, NO_RUNTIME),
    "no end": ({"after": None}, [(1050, NEVER)] * 3, [(None, NEVER), (1050, NEVER), (1030, NEVER)]),
    "four keys": ({"runtime": None, "after": None}, NOT_SAID, NOT_SAID),
    "four keys that end": (FOUR_KEYS, BY_DISTANCE, BY_DISTANCE),
    "alert moved": ({"alert_at": WALL + 100}, COUNTED, [(None, 1080), (1050, 1080), (1050, 1080)]),
    "undecided, no runtime": ({"runtime": None, "auto_unlock_after": None}, NOT_SAID, NOT_SAID),
    "alert moved back": (
        {"alert_at": WALL - 500},
        COUNTED,
        [(None, 1080), (1050, 1080), (500, 1080)],
    ),
    "end moved": ({"auto_unlock_at": WALL + 86400}, COUNTED, FOUND),
    "end long ago": ({"auto_unlock_at": WALL - 1e6}, COUNTED, FOUND),
    "end without stamp": ({"auto_unlock_at": None}, BY_STAMP, BY_STAMP),
    "end without duration": ({"auto_unlock_after": None}, BY_STAMP, BY_STAMP),
    "of a newer format": ({"format": 2}, BY_STAMP, BY_STAMP),
    "broken": ({"hostname": None}, [(NEVER, NEVER)] * 3, [(NEVER, NEVER)] * 3),
}


@pytest.mark.parametrize("kind", PUSHED_AT_1000_SEEN_AT_1020)
@pytest.mark.parametrize("found", [False, True], ids=["seen", "found"])
@pytest.mark.parametrize("clocks", range(3), ids=["no clock", "untrusted", "trusted"])
def test_every_kind_of_lock_with_every_kind_of_clock(kind: str, found: bool, clocks: int) -> None:
    facts, seen, there = PUSHED_AT_1000_SEEN_AT_1020[kind]
    alert, due = (there if found else seen)[clocks]
    for clock in (NO_CLOCK, UNTRUSTED, TRUSTED)[clocks].values():
        times = due_times(lock(found=found, seen_at=1020, **facts), clock)
        assert times.alert == (None if alert is None else pytest.approx(alert, abs=0.2))
        assert times.due == pytest.approx(due, abs=0.2)


@pytest.mark.parametrize("found", [False, True], ids=["seen", "found"])
def test_with_disagreeing_clocks_our_own_must_have_passed_the_alert(found: bool) -> None:
    row = lock(found=found, seen_at=1020, **FOUR_KEYS)
    behind, ahead = check(1021, wrong=-100, offset=100), check(1021, wrong=100, offset=-100)
    assert due_times(row, behind).alert == pytest.approx(1130, abs=0.1)
    assert due_times(row, ahead).alert == pytest.approx(1050, abs=0.1)


@pytest.mark.parametrize(
    ("offsets", "jump", "trusted"),
    [
        *[([offset], 0.0, abs(offset) == 2) for offset in (2, -2, 2.1, -2.1)],
        ([0.1, 0.2, 5000.0], 0.0, True),  # the median: one member can't mislead
        ([], 0.0, False),
        *[([0.0], jump, False) for jump in (0.6, -0.6, 3600, -3600)],
    ],
)
def test_the_wall_clock_is_trusted_within_two_seconds_and_without_a_jump(
    offsets: list[float], jump: float, trusted: bool
) -> None:
    found = ClockCheck.of(Now(1000, WALL), offsets, Now(1001, WALL + 1 + jump))
    assert found.trusted is trusted


def test_the_slower_of_the_two_clocks_counts() -> None:
    assert check(1000, offset=-1.5).by_slower_clock(WALL) == 1001.5
    assert check(1000, offset=1.5).by_slower_clock(WALL) == 1000
