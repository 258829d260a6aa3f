"""Durations as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.clocks import MAX_DURATION_S
from lockclient.text.durations import duration, parse_duration, period, roughly


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("90", 90), ("0", 0), ("2.5", 2.5), (".5", 0.5), ("90s", 90), ("5m", 300)),
        *(("5min", 300), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800)),
        *(("1 h 30 min", 5400), (" 7 s ", 7)),
    ],
)
def test_parse_duration_accepts(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "m", "5x", "-1", "-5m", "nan", "inf", "1e3", "5m1h", "5m5m", "5m 3", "1h30", "٣", "1_000"],
)
def test_parse_duration_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: give seconds or units, like 90, 90s"):
        parse_duration(text)


@given(st.integers(0, int(MAX_DURATION_S)))
def test_a_shown_duration_can_be_parsed(seconds: int) -> None:
    assert duration(parse_duration(duration(seconds))) == duration(seconds)
    assert duration(seconds).startswith(roughly(seconds))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.5, "0.5 s"), (42, "42 s"), (59.9996, "1 min"), (902.3, "15 min 2 s")),
        *((900, "15 min"), (600, "10 min"), (3599.99999, "1 h"), (5400, "1 h 30 min")),
        *((86_400, "1 d"), (MAX_DURATION_S, "3650 d")),
    ],
)
def test_a_period_is_written_without_zero_parts(seconds: float, text: str) -> None:
    assert period(seconds) == text
    assert abs(parse_duration(text) - seconds) < 1
