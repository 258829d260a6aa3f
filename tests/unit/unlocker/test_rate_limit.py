"""The number of removals in a minute, and when the limit disengages."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.support.fake_clock import FakeClock
from unlocker.cli import main, read_limit
from unlocker.rate_limit import WINDOW_S, RateLimit


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def keys(number: int, start: int = 0) -> list[tuple[str, str | None]]:
    return [(f"lock {place}", "uuid") for place in range(start, start + number)]


def test_no_minute_has_more_removals_than_the_limit(clock: FakeClock) -> None:
    limit = RateLimit(5, clock)
    limit.count(keys(3))
    assert not limit.is_full(0)
    clock.now += 30
    limit.count(keys(2, start=3))
    assert limit.is_full(0)
    clock.now += 30.001
    assert not limit.is_full(0)  # the first three are a minute ago
    limit.count(keys(2, start=5))
    assert not limit.is_full(0)
    limit.count(keys(1, start=7))
    assert limit.is_full(0)


def test_the_limit_is_a_fifth_of_all_locks_if_that_is_more(clock: FakeClock) -> None:
    limit = RateLimit(5, clock)
    assert limit.state(24).limit == 5
    assert limit.state(1000).limit == 200
    limit.count(keys(199))
    assert not limit.is_full(801)  # the fifth is of all that there were
    limit.count(keys(1, start=199))
    assert limit.is_full(800)


def test_a_removal_counts_once_from_its_last_report(clock: FakeClock) -> None:
    limit = RateLimit(2, clock)
    limit.count(keys(1))
    clock.now += 1
    limit.count(keys(1))
    assert not limit.is_full(0)
    clock.now += WINDOW_S - 0.5
    limit.count(keys(1, start=1))
    assert limit.is_full(0)
    clock.now += 0.6
    assert not limit.is_full(0)


def test_the_limit_disengages_after_a_minute_without_a_withheld_removal(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    limit = RateLimit(1, clock)
    limit.withhold(0, 10)
    assert not limit.state(10).engaged
    for left in (9, 8, 0, 3, 0):
        limit.withhold(left, 10)
        clock.now += 20
        assert limit.state(10).engaged
        assert limit.state(10).withheld == left
    clock.now += WINDOW_S
    assert not limit.state(10).engaged
    limit.withhold(0, 10)
    limit.withhold(0, 10)
    told = [record.getMessage() for record in caplog.records]
    assert ["off again" in text for text in told] == [False, True]
    limit.withhold(1, 10)
    assert caplog.text.count("The rate limit holds locks back") == 2


class TestTheFlag:
    @pytest.mark.parametrize(
        ("text", "value"), [("off", None), ("OFF", None), ("1", 1), (" 200 ", 200)]
    )
    def test_max_removals_is_a_number_or_off(self, text: str, value: int | None) -> None:
        assert read_limit(text) == value

    @pytest.mark.parametrize("text", ["0", "-1", "1.5", "none", "", "nan", "٣", "1" * 30])
    def test_a_bad_max_removals_is_an_error(self, text: str) -> None:
        found = CliRunner().invoke(main, ["--listen", "127.0.0.1:0", "--max-removals", text])
        assert found.exit_code == 2
        assert "neither a number from 1 on nor `off`" in found.output
