"""The options for the pace of notifications."""

from __future__ import annotations

from math import inf

import pytest
from click.testing import CliRunner

from unlocker.cli import main, read_pace, read_reminders


def test_the_options_have_defaults() -> None:
    defaults = {option.name: str(option.default) for option in main.params}
    assert read_pace(defaults["notify_pace"]) == (10, 30)
    assert read_reminders(defaults["notify_reminders"]) == (4 * 3600, 24 * 3600)


@pytest.mark.parametrize(
    ("text", "value"),
    [("off", (inf, inf)), (" OFF ", (inf, inf)), ("1m,1d", (60, 86400)), ("2h,30m", (7200, 1800))],
)
def test_reminders_are_two_durations_or_off(text: str, value: tuple[float, float]) -> None:
    assert read_reminders(text) == value


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--notify-pace", "10s"),
        ("--notify-pace", "off"),
        ("--notify-pace", "10s,0s"),
        ("--notify-pace", "1s,2s,3s"),
        ("--notify-pace", "-1s,30s"),
        ("--notify-reminders", "4h"),
        ("--notify-reminders", "30s,24h"),
        ("--notify-reminders", "4h,9999d"),
        ("--dashboard-url", "javascript:alert(1)"),
        ("--dashboard-url", "https://a b"),
    ],
)
def test_another_pace_is_an_error(option: str, text: str) -> None:
    found = CliRunner().invoke(main, ["--listen", "127.0.0.1:0", option, text])
    assert found.exit_code == 2, found.output
    assert option in found.output
