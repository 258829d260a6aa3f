"""When a lock is due: on every clock that can be wrong, never early, and not never."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.record import Holder
from lockclient.table import Row
from lockclient.timing import Now
from unlocker.policy import NEVER, ClockCheck, judge

GRACE = 10.0
WALL = 1_800_000_000.0
"""The right time when the monotonic clock is at 1000."""


def lock(
    *,
    found: bool = False,
    seen_at: float = 1000.0,
    locked_at: float | None = WALL,
    alive_at: float | None = WALL,
    alert_at: float | None = WALL + 30,
    auto_unlock_at: float | None = WALL + 60,
    hostname: str | None = "host",
) -> Row:
    """Return a lock that was pushed at the right time 1000, as this process has it."""
    holder = Holder(
        "a",
        "uuid",
        hostname,
        locked_at=locked_at,
        alive_at=alive_at,
        alert_at=alert_at,
        auto_unlock_at=auto_unlock_at,
    )
    return Row(holder, stamp_revision=5, seen_at=seen_at, found=found)


def check(at: float = 1000.0, *, wrong: float = 0.0, offset: float | None = 0.0) -> ClockCheck:
    """Return a check at monotonic `at`, our wall clock being `wrong` seconds ahead of the right."""
    return ClockCheck(Now(at, WALL + at - 1000 + wrong), offset)


def due(row: Row, clock: ClockCheck | None) -> Any:
    """Return when the lock may be removed, but for what is added for rounding and drift."""
    moment = judge(row, clock, GRACE).due
    return None if moment is None else pytest.approx(moment, abs=0.2)


class TestAWriteThatWasSeen:
    def test_counts_its_own_duration_from_when_it_was_seen(self) -> None:
        assert due(lock(seen_at=1234), None) == 1294

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
        alive_at = round(WALL + skew, 3)
        unlock_at = round(WALL + skew + length, 3)
        row = lock(
            seen_at=seen_at, alive_at=alive_at, alert_at=alive_at + 0.001, auto_unlock_at=unlock_at
        )
        moment = judge(row, check(checked, wrong=wrong, offset=offset), GRACE).due
        assert moment is not None
        assert seen_at + length * 1.001 <= moment <= seen_at + length * 1.001 + 0.01

    def test_counts_from_locked_at_where_there_is_no_alive_at(self) -> None:
        assert due(lock(alive_at=None, locked_at=WALL - 100), None) == 1160

    def test_with_neither_it_waits_for_a_clock_and_gets_the_grace(self) -> None:
        row = lock(alive_at=None, locked_at=None)
        assert due(row, None) is None
        assert due(row, check()) == 1070

    def test_with_neither_and_no_clock_to_trust_it_is_never_removed(self) -> None:
        row = lock(alive_at=None, locked_at=None)
        verdict = judge(row, check(offset=None), GRACE)
        assert verdict.due is None
        assert not verdict.decided

    def test_a_check_from_before_it_was_seen_does_not_count(self) -> None:
        """The wall clock may have jumped in between."""
        row = lock(alive_at=None, locked_at=None, seen_at=1000)
        assert due(row, check(999)) is None
        assert due(row, check(1001)) == 1070

    @pytest.mark.parametrize("unlock_at", [WALL - 1e6, WALL - 1, WALL])
    def test_stamps_that_contradict_each_other_give_it_the_grace_at_least(
        self, unlock_at: float
    ) -> None:
        row = lock(auto_unlock_at=unlock_at)
        assert due(row, None) is None
        assert due(row, check()) == 1010
        assert due(row, check(offset=None)) is None

    def test_the_alert_needs_no_clock_either(self) -> None:
        assert judge(lock(), None, GRACE).alert == pytest.approx(1030, abs=0.1)


class TestALockThatWasFound:
    def test_waits_for_a_clock_check(self) -> None:
        assert due(lock(found=True), None) is None
        assert due(lock(found=True), check(999.9)) is None

    def test_with_a_clock_to_trust_it_is_due_a_grace_after_its_stamp(self) -> None:
        row = lock(found=True, seen_at=1050)
        assert due(row, check(1050)) == 1070
        assert due(row, check(1059)) == 1070  # it does not matter when the check was

    def test_it_may_be_long_overdue(self) -> None:
        verdict = judge(lock(found=True, seen_at=5000), check(5000), GRACE)
        assert verdict.due == pytest.approx(1070, abs=0.01)
        assert verdict.silent_since == pytest.approx(1000, abs=0.01)

    def test_the_alert_gets_no_grace(self) -> None:
        verdict = judge(lock(found=True, seen_at=1010), check(1010), GRACE)
        assert verdict.alert == pytest.approx(1030, abs=0.1)

    @pytest.mark.parametrize("offset", [None, 2.1, -2.1, 3600.0, -3600.0])
    def test_with_no_clock_to_trust_it_gets_its_whole_duration_from_when_it_was_seen(
        self, offset: float | None
    ) -> None:
        wrong = -(offset or 0.0)
        row = lock(found=True, seen_at=5000)
        verdict = judge(row, check(5000, wrong=wrong, offset=offset), GRACE)
        assert verdict.due == pytest.approx(5060, abs=0.1)
        assert verdict.alert == pytest.approx(5030, abs=0.1)
        assert verdict.silent_since == 5000

    @given(offset=st.floats(-2, 2), skew=st.floats(-GRACE, GRACE), seen_after=st.floats(0, 1e6))
    def test_it_keeps_its_time_if_its_host_is_within_the_grace_of_the_right_time(
        self, offset: float, skew: float, seen_after: float
    ) -> None:
        """Also where our own clock is as wrong as it may be and still be believed."""
        row = lock(
            found=True,
            seen_at=1000 + seen_after,
            locked_at=WALL + skew,
            alive_at=WALL + skew,
            alert_at=WALL + skew + 30,
            auto_unlock_at=WALL + skew + 60,
        )
        moment = judge(row, check(1000 + seen_after, wrong=-offset, offset=offset), GRACE).due
        assert moment is not None
        assert moment >= 1060 - 0.001

    def test_with_stamps_from_the_future_it_gets_its_whole_duration(self) -> None:
        """Its host's clock is ahead, so the moment of its stamp comes too late, not too early."""
        row = lock(found=True, alive_at=WALL + 11, auto_unlock_at=WALL + 71)
        assert due(row, check()) == 1060

    @pytest.mark.parametrize("ahead", [0, 9, 11, 3600, 1e9])
    def test_it_never_gets_more_than_its_whole_duration(self, ahead: float) -> None:
        """That is safe without any clock, so a grace longer than that changes nothing."""
        row = lock(found=True, alive_at=WALL + ahead, auto_unlock_at=WALL + ahead + 5)
        assert due(row, check()) == 1005

    def test_a_host_further_behind_than_the_grace_cannot_be_told_from_a_dead_one(self) -> None:
        """That is the limit of what is promised; a grace of a day gives it its whole duration."""
        row = lock(found=True, alive_at=WALL - 3600, auto_unlock_at=WALL - 3540)
        assert judge(row, check(), GRACE).due == pytest.approx(1000 - 3540 + GRACE)
        assert judge(row, check(), 86400.0).due == pytest.approx(1060, abs=0.2)

    def test_with_contradicting_stamps_and_no_clock_it_is_never_removed(self) -> None:
        row = lock(found=True, alive_at=WALL + 100, auto_unlock_at=WALL + 60)
        assert due(row, check(offset=None)) is None
        assert due(row, check()) is None  # from the future, so no clock will do


class TestNever:
    def test_without_auto_unlock_at_there_is_an_alert_and_no_removal(self) -> None:
        verdict = judge(lock(auto_unlock_at=None), None, GRACE)
        assert verdict.alert == pytest.approx(1030, abs=0.1)
        assert verdict.due == NEVER
        assert verdict.decided

    @pytest.mark.parametrize("found", [True, False])
    def test_broken_locks_are_left_alone(self, found: bool) -> None:
        verdict = judge(lock(found=found, hostname=None), check(5000), GRACE)
        assert (verdict.alert, verdict.due) == (NEVER, NEVER)

    @pytest.mark.parametrize("key", ["auto_unlock_at", "alive_at", "alert_at", "reason"])
    def test_a_value_that_cannot_be_read_leaves_the_lock_alone(self, key: str) -> None:
        row = lock(found=True)
        damaged = row.holder.updated({key: b"\xff\xfe"})
        verdict = judge(Row(damaged, 5, 1000, found=True), check(5000), GRACE)
        assert verdict.due == NEVER

    @pytest.mark.parametrize("unlock_at", [253_402_300_799.0, WALL + 1e9])
    def test_absurdly_late_stamps_are_taken_at_their_word(self, unlock_at: float) -> None:
        for found in (True, False):
            moment = judge(lock(found=found, auto_unlock_at=unlock_at), check(), GRACE).due
            assert moment is not None
            assert moment > 1e9


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
