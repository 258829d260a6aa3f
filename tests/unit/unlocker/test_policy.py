"""When a lock is due: on every clock that can be wrong, never early, and not never."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.model.silence import NEVER, ClockCheck
from lockclient.overview.rows import Row
from tests.support.records import found as as_found
from tests.support.records import written
from unlocker.policy import judge

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


def due(row: Row, clock: ClockCheck | None) -> Any:
    """Return when the lock may be removed, but for what is added for drift."""
    return pytest.approx(judge(row, clock).due, abs=0.2)


class TestAWriteThatWasSeen:
    def test_counts_its_own_duration_from_when_it_was_seen(self) -> None:
        assert due(lock(seen_at=1234), None) == 1294

    @pytest.mark.promise(number=2)
    @given(
        wrong=st.floats(-1e9, 1e9),
        offset=st.none() | st.floats(-1e9, 1e9),
        skew=st.floats(-1e9, 1e9),
        length=st.floats(0.01, 1e6),
        seen_at=st.floats(0, 1e6),
        checked=st.floats(0, 1e6),
    )
    def test_is_never_due_before_its_push_allows_whatever_any_wall_clock_says(
        self,
        wrong: float,
        offset: float | None,
        skew: float,
        length: float,
        seen_at: float,
        checked: float,
    ) -> None:
        row = lock(seen_at=seen_at, pushed_at=WALL + skew, runtime=length / 2, after=length)
        moment = judge(row, check(checked, wrong=wrong, offset=offset)).due
        assert moment == seen_at + length * 1.001

    def test_the_alert_needs_no_clock_either(self) -> None:
        assert judge(lock(), None).alert == pytest.approx(1030, abs=0.1)

    def test_an_alert_in_the_past_is_one_now(self) -> None:
        """Of a lock that says nothing but `alert_at`: the write itself was a heartbeat."""
        row = lock(runtime=None, after=None, alert_at=WALL - 1000)
        assert judge(row, check(1001)).alert == 1000

    def test_a_check_from_before_it_was_seen_does_not_count(self) -> None:
        """The wall clock may have jumped in between."""
        row = lock(runtime=None, seen_at=1000)
        assert judge(row, check(999)).alert is None
        assert judge(row, check(1001)).alert == 1030


class TestALockThatWasFound:
    @given(
        wrong=st.floats(-1e9, 1e9),
        offset=st.none() | st.floats(-1e9, 1e9),
        skew=st.floats(-1e9, 1e9),
        length=st.floats(0.01, 1e6),
        checked=st.none() | st.floats(0, 1e6),
    )
    def test_gets_its_whole_duration_from_when_it_was_seen_whatever_any_wall_clock_says(
        self,
        wrong: float,
        offset: float | None,
        skew: float,
        length: float,
        checked: float | None,
    ) -> None:
        """Also where ours and the members' are wrong together: they may be one and the same."""
        clock = None if checked is None else check(checked, wrong=wrong, offset=offset)
        row = lock(
            found=True, seen_at=5000, pushed_at=WALL + skew, runtime=length / 2, after=length
        )
        assert judge(row, clock).due == 5000 + length * 1.001

    def test_with_a_clock_to_trust_people_are_rung_at_its_stamp(self) -> None:
        assert judge(lock(found=True, seen_at=1010), check(1010)).alert == 1030
        assert judge(lock(found=True, seen_at=1010), check(1020)).alert == 1030
        assert judge(lock(found=True, seen_at=5000), check(5000)).alert == 1030

    @pytest.mark.parametrize("offset", [None, 2.1, -2.1, 3600.0, -3600.0])
    def test_with_none_it_gets_its_whole_runtime(self, offset: float | None) -> None:
        row, clock = lock(found=True, seen_at=5000), check(5000, offset=offset)
        assert judge(row, clock).alert == pytest.approx(5030, abs=0.1)

    @pytest.mark.parametrize("ahead", [1, 11, 3600, 1e9, 2.5e11])
    def test_a_host_ahead_is_rung_for_no_later_than_that(self, ahead: float) -> None:
        row = lock(found=True, pushed_at=WALL + ahead, runtime=1, after=5)
        assert judge(row, check()).alert == pytest.approx(1001, abs=0.1)


class TestNever:
    @pytest.mark.parametrize("found", [True, False])
    def test_broken_locks_are_left_alone(self, found: bool) -> None:
        verdict = judge(lock(found=found, hostname=None), check(5000))
        assert (verdict.alert, verdict.due) == (NEVER, NEVER)

    @pytest.mark.parametrize("key", ["auto_unlock_at", "alert_at", "hostname", "about"])
    def test_a_value_that_cannot_be_read_leaves_the_lock_alone(self, key: str) -> None:
        sound = written(lock().holder)
        assert judge(Row(sound, 1000, found=True), check(5000)).due < NEVER
        damaged = sound.updated(as_found({key: b"\xff\xfe"}))
        assert judge(Row(damaged, 1000, found=True), check(5000)).due == NEVER

    @pytest.mark.parametrize("found", [True, False])
    @pytest.mark.parametrize("clock", [None, check(5000), check(5000, offset=3600.0)])
    @pytest.mark.parametrize(
        "facts",
        [
            {"auto_unlock_at": WALL - 1e6},
            {"auto_unlock_at": WALL + 1e6},
            {"alert_at": WALL - 1e6},
            {"alert_at": WALL + 1e6},
            {"auto_unlock_at": None},
            {"auto_unlock_after": None},
            {"needs": ("warp",)},
        ],
        ids=lambda facts: ", ".join(facts),
    )
    def test_what_contradicts_itself_or_needs_more_is_left_alone(
        self, facts: dict[str, Any], clock: ClockCheck | None, found: bool
    ) -> None:
        """And a further clock check changes nothing; the holder's next push does."""
        row = lock(found=found, **facts)
        verdict = judge(row, clock)
        assert verdict.due == NEVER
        assert (verdict.alert is None) == (clock is None)

    @pytest.mark.parametrize("found", [True, False])
    def test_a_stamp_of_the_future_does_not_keep_people_from_being_rung(self, found: bool) -> None:
        """Whoever gave the holder another day before it is unlocked did not silence the alert."""
        row = lock(found=found, seen_at=1020, auto_unlock_at=WALL + 86400)
        assert judge(row, check(1021)).alert == 1030

    @pytest.mark.parametrize("found", [True, False])
    def test_a_moved_alert_rings_when_it_was_moved_to(self, found: bool) -> None:
        for alert_at in (WALL - 500, WALL + 500):
            verdict = judge(lock(found=found, alert_at=alert_at), check())
            assert verdict.alert == 1000 + alert_at - WALL


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
UNDECIDED = [(None, NEVER), (1050, NEVER), (1100, NEVER)]
NOT_SAID = [(None, NEVER), (None, NEVER), (1030, NEVER)]
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
    "sound": ({}, [(1050, 1080)] * 3, [(None, 1080), (1050, 1080), (1030, 1080)]),
    "no expected runtime": ({"runtime": None}, NO_RUNTIME, NO_RUNTIME),
    "no end": ({"after": None}, [(1050, NEVER)] * 3, [(None, NEVER), (1050, NEVER), (1030, NEVER)]),
    "four keys": ({"runtime": None, "after": None}, NOT_SAID, NOT_SAID),
    "four keys that end": (FOUR_KEYS, BY_DISTANCE, BY_DISTANCE),
    "undecided": ({"alert_at": WALL + 100}, UNDECIDED, UNDECIDED),
    "undecided, no runtime": ({"runtime": None, "auto_unlock_after": None}, NOT_SAID, NOT_SAID),
    "broken": ({"hostname": None}, [(NEVER, NEVER)] * 3, [(NEVER, NEVER)] * 3),
}


@pytest.mark.parametrize("kind", PUSHED_AT_1000_SEEN_AT_1020)
@pytest.mark.parametrize("found", [False, True], ids=["seen", "found"])
@pytest.mark.parametrize("clocks", range(3), ids=["no clock", "untrusted", "trusted"])
def test_every_kind_of_lock_with_every_kind_of_clock(kind: str, found: bool, clocks: int) -> None:
    facts, seen, there = PUSHED_AT_1000_SEEN_AT_1020[kind]
    alert, due = (there if found else seen)[clocks]
    for clock in (NO_CLOCK, UNTRUSTED, TRUSTED)[clocks].values():
        verdict = judge(lock(found=found, seen_at=1020, **facts), clock)
        assert verdict.alert == (None if alert is None else pytest.approx(alert, abs=0.2))
        assert verdict.due == pytest.approx(due, abs=0.2)


@pytest.mark.parametrize("found", [False, True], ids=["seen", "found"])
def test_where_clocks_disagree_our_own_must_have_passed_the_alert_as_well(found: bool) -> None:
    """Of a lock of four keys that may be silent for 30 s: one that is behind delays the alert."""
    row = lock(found=found, seen_at=1020, **FOUR_KEYS)
    behind, ahead = check(1021, wrong=-100, offset=100), check(1021, wrong=100, offset=-100)
    assert judge(row, behind).alert == pytest.approx(1130, abs=0.1)
    assert judge(row, ahead).alert == pytest.approx(1050, abs=0.1)


class TestClockChecks:
    BEFORE = Now(1000, WALL)

    def test_the_median_counts_so_that_one_member_cannot_mislead(self) -> None:
        assert ClockCheck.of(self.BEFORE, [0.1, 0.2, 5000.0], Now(1001, WALL + 1)).offset == 0.2

    @pytest.mark.parametrize(("offset", "trusted"), [(2, True), (-2, True), (2.1, False)])
    def test_our_clock_is_trusted_within_two_seconds(self, offset: float, trusted: bool) -> None:
        found = ClockCheck.of(self.BEFORE, [offset], Now(1001, WALL + 1))
        assert found.trusted is trusted

    def test_it_is_not_trusted_if_nobody_can_tell(self) -> None:
        assert not ClockCheck.of(self.BEFORE, [], Now(1001, WALL + 1)).trusted

    @pytest.mark.parametrize("jump", [0.6, -0.6, 3600, -3600])
    def test_it_is_not_trusted_if_it_jumps_during_the_check(self, jump: float) -> None:
        """Before the jump it agreed, and after it nobody has been asked."""
        assert not ClockCheck.of(self.BEFORE, [0.0], Now(1001, WALL + 1 + jump)).trusted

    def test_of_the_two_clocks_the_slower_one_is_taken(self) -> None:
        assert check(1000, offset=-1.5).moment(WALL) == 1001.5
        assert check(1000, offset=1.5).moment(WALL) == 1000
