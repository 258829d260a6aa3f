"""Valid durations, deadlines, and stamps as text."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient import ClusterMutex
from lockclient.model.clocks import (
    MAX_DURATION_S,
    MAX_STAMP,
    Deadline,
    Runtime,
    Stamps,
    format_stamp,
    parse_stamp,
    require_timeout,
)

MILLISECONDS = 600_000_000.0
"""A week in milliseconds: as seconds it is 19 years."""

NONSENSE = [
    *(math.nan, math.inf, -math.inf, -1, -0.001, MILLISECONDS, MAX_DURATION_S * 1.001),
    *(True, False, b"5", [5], 5j, object()),
]


class TestDurations:
    @pytest.mark.parametrize("value", [*NONSENSE, 0, 0.0, None])
    def test_durations_are_numbers_of_seconds(self, value: Any) -> None:
        for make in (partial(Runtime, value, None), partial(Runtime.of, value)):
            with pytest.raises(ValueError, match=r"^expected_runtime must be .*not "):
                make()
        if value is not None:
            with pytest.raises(ValueError, match=r"^auto_unlock_after must be .*not "):
                Runtime.of(1.0, value)
        if value is not None and (value or value is False):
            with pytest.raises(ValueError, match=r"^timeout must be .*not "):
                require_timeout("timeout", value)

    def test_durations_as_text_have_units(self) -> None:
        assert Runtime.of("5m", "1h30m") == Runtime(300, 5400)
        assert require_timeout("timeout", "0.5") == 0.5
        assert require_timeout("timeout", timedelta(minutes=2)) == 120
        with pytest.raises(ValueError, match=r"^timeout: 'soon' is no duration: .* like 90, 90s"):
            require_timeout("timeout", "soon")
        with pytest.raises(ValueError, match="at most ten years"):
            Runtime.of("9999d")

    def test_valid_durations_are_accepted(self) -> None:
        assert require_timeout("timeout", None) is None
        assert require_timeout("timeout", 0) == 0
        assert require_timeout("timeout", MAX_DURATION_S) == MAX_DURATION_S
        assert Runtime(1, 2).stamps(10) == Stamps(11, 12)
        assert Runtime(0.001, None).stamps(10) == Stamps(10.001, None)

    def test_auto_unlock_defaults_to_three_times_the_expected_runtime(self) -> None:
        assert Runtime.of(300) == Runtime.of(300, "auto") == Runtime(300, 900)
        assert Runtime.of(5000.5) == Runtime(5000.5, 15001.5)
        assert Runtime.of(300, 400) == Runtime(300, 400)
        assert Runtime.of(300, None) == Runtime(300, None)

    def test_the_longest_expected_runtime_needs_an_explicit_auto_unlock(self) -> None:
        with pytest.raises(ValueError, match=r"^expected_runtime must be less than 3650 d, unless"):
            ClusterMutex("x", expected_runtime="3650d")
        assert Runtime.of("3650d", None).auto_unlock is None

    @pytest.mark.parametrize("unlock", [300, 299.9, 1])
    def test_auto_unlock_must_exceed_the_expected_runtime(self, unlock: float) -> None:
        with pytest.raises(ValueError, match=r"auto_unlock_after \(.*\) must exceed .*\(5 min\)"):
            Runtime(300, unlock)

    @pytest.mark.parametrize(("expected", "interval"), [(300, 1.0), (50, 1.0), (5, 0.1), (1, 0.02)])
    def test_a_hot_loop_pushes_once_in_a_while(self, expected: float, interval: float) -> None:
        """At most once a second, at least fifty times in the expected runtime."""
        assert Runtime(expected, None).push_interval == pytest.approx(interval)


class TestDeadlines:
    def test_none_is_never(self) -> None:
        """It does not expire and has all time left."""
        never = Deadline.after(None)
        assert never.remaining() == math.inf
        assert not never.expired()
        assert 0 < never.within(1, 5).remaining() <= 5

    def test_a_passed_deadline_has_nothing_left(self) -> None:
        past = Deadline(time.monotonic() - 1)
        assert past.expired()
        assert past.remaining() == 0
        assert 0 < past.within(1, 5).remaining() <= 1
        assert 2 < Deadline.after(3).within(1, 5).remaining() <= 3


class TestStamps:
    @pytest.mark.parametrize(
        ("wall", "text"),
        [(1767225600, "1767225600.000"), (1767225600.1236, "1767225600.124"), (0, "0.000")],
    )
    def test_stamps_are_written_with_milliseconds(self, wall: float, text: str) -> None:
        assert format_stamp(wall) == text

    @pytest.mark.parametrize("text", ["1767225600", "1767225600.5", "1767225600.123456789", "0"])
    def test_any_plain_decimal_is_read(self, text: str) -> None:
        """Integers and any number of decimals."""
        assert parse_stamp(text) == pytest.approx(float(text))

    @pytest.mark.parametrize(
        "text",
        [
            *("", ".", "-1", "+1", "1e9", "nan", "inf", "0x10", "1_000", " 1", "1 ", "1\n"),
            *("1.2.3", "1,5", "١٢٣", "²", "\u00a01", "253402300800", "9" * 400, "now"),
        ],
    )
    def test_other_texts_are_no_stamps(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"no decimal number|after the year 9999"):
            parse_stamp(text)

    @given(st.floats(0, MAX_STAMP - 1))
    def test_a_written_stamp_is_read_back(self, wall: float) -> None:
        assert parse_stamp(format_stamp(wall)) == pytest.approx(wall, abs=0.0006)

    @given(st.text())
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        """Never another error than `ValueError`."""
        with suppress(ValueError):
            assert 0 <= parse_stamp(text) <= MAX_STAMP
