"""How many removals pass in a minute, and when the brake lets go."""

from __future__ import annotations

import math

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


def test_so_many_pass_in_any_minute(clock: FakeClock) -> None:
    brake = RateLimit(5, clock)
    brake.count(keys(3))
    assert not brake.is_full(0)
    clock.now += 30
    brake.count(keys(2, start=3))
    assert brake.is_full(0)
    clock.now += 30.001
    assert not brake.is_full(0)  # the first three are a minute ago
    brake.count(keys(2, start=5))
    assert not brake.is_full(0)
    brake.count(keys(1, start=7))
    assert brake.is_full(0)


def test_a_fifth_of_all_locks_passes_if_that_is_more(clock: FakeClock) -> None:
    brake = RateLimit(5, clock)
    assert brake.state(24).limit == 5
    assert brake.state(1000).limit == 200
    brake.count(keys(199))
    assert not brake.is_full(801)  # the fifth is of all that there were
    brake.count(keys(1, start=199))
    assert brake.is_full(800)


def test_a_removal_counts_once_from_when_it_was_last_told(clock: FakeClock) -> None:
    """By the answer to its own request, then by the watch: it was made no later than that."""
    brake = RateLimit(2, clock)
    brake.count(keys(1))
    clock.now += 1
    brake.count(keys(1))
    assert not brake.is_full(0)
    clock.now += WINDOW_S - 0.5
    brake.count(keys(1, start=1))
    assert brake.is_full(0)
    clock.now += 0.6
    assert not brake.is_full(0)


def test_it_lets_go_a_minute_after_it_kept_something_back(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    brake = RateLimit(1, clock)
    brake.withhold(0, 10)
    assert not brake.state(10).engaged
    for left in (9, 8, 0, 3, 0):
        brake.withhold(left, 10)
        clock.now += 20
        assert brake.state(10).engaged
        assert brake.state(10).withheld == left
    clock.now += WINDOW_S
    assert not brake.state(10).engaged
    brake.withhold(0, 10)
    brake.withhold(0, 10)
    told = [record.getMessage() for record in caplog.records]
    assert [text[:16] for text in told] == ["The brake is on:", "The brake is off"]
    brake.withhold(1, 10)
    assert caplog.text.count("The brake is on") == 2


def test_without_a_limit_everything_passes() -> None:
    brake = RateLimit(None)
    brake.count(keys(10_000))
    assert brake.unlimited
    assert not brake.is_full(0)
    assert brake.state(0).limit == math.inf


class TestTheFlag:
    @pytest.mark.parametrize(
        ("text", "value"), [("off", None), ("OFF", None), ("1", 1), (" 200 ", 200)]
    )
    def test_it_takes_a_number_or_off(self, text: str, value: int | None) -> None:
        assert read_limit(text) == value

    @pytest.mark.parametrize("text", ["0", "-1", "1.5", "none", "", "nan", "٣", "1" * 30])
    def test_a_bad_one_is_told(self, text: str) -> None:
        """Also 0, which one may take for no removals and another for no limit."""
        found = CliRunner().invoke(main, ["--listen", "127.0.0.1:0", "--max-removals", text])
        assert found.exit_code == 2
        assert "neither a number from 1 on nor `off`" in found.output

    def test_it_is_a_variable_too(self) -> None:
        found = CliRunner().invoke(main, [], env={"UNLOCKER_MAX_REMOVALS": "many"})
        assert found.exit_code == 2
        assert "'many' is neither" in found.output
