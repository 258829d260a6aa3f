"""How hostile texts, times and bars are written."""

from __future__ import annotations

import pytest

from lockclient.record import Holder
from lockclient.shown import Bar, duration, plain, utc
from mutexdash.text import visible


def test_markup_is_text() -> None:
    assert visible("<b>&\"'") == '<bdi class="text">&lt;b&gt;&amp;&#34;&#39;</bdi>'


@pytest.mark.parametrize(
    ("char", "shown"),
    [
        ("\x00", "\\x00"),
        ("\x1b", "\\x1b"),
        ("\n", "\\n"),
        ("\x85", "\\x85"),
        ("\u200b", "\\u200b"),
        ("\u202e", "\\u202e"),
        ("\u2066", "\\u2066"),
        ("\ufeff", "\\ufeff"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_would_be_invisible_or_move_its_neighbours_is_written_out(
    char: str, shown: str
) -> None:
    html = visible(f"a{char}b")
    assert html == f'<bdi class="text">a<span class="odd">{shown}</span>b</bdi>'
    assert plain(f"a{char}b") == f"a{shown}b"
    html.encode()  # a lone surrogate can't be


def test_an_escape_that_was_typed_looks_different_from_one_that_was_made() -> None:
    assert visible("\\u202e") == '<bdi class="text">\\u202e</bdi>'


def test_a_block_keeps_its_lines() -> None:
    assert visible("a\n\tb\r", block=True) == (
        '<bdi class="text">a\n\tb<span class="odd">\\r</span></bdi>'
    )


def test_emoji_and_other_scripts_stay() -> None:
    text = "👩‍👩‍👧 naïve Ω עברית"
    assert text in visible(text)


def test_a_long_text_is_cut_visibly() -> None:
    assert visible("x" * 50, 10) == f'<bdi class="text">{"x" * 10}…</bdi>'
    assert "…" not in visible("x" * 10, 10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_last_stamp_that_can_be_stored_can_be_shown() -> None:
    assert utc(253_402_300_799) == "9999-12-31 23:59:59 UTC"


def holder(**stamps: float | None) -> Holder:
    return Holder("a", "u", "h", **stamps)  # type: ignore[arg-type]


def test_a_bar_goes_from_taken_to_auto_unlock_with_a_notch_at_the_alert() -> None:
    bar = Bar.of(holder(locked_at=100, alert_at=130, auto_unlock_at=200))
    assert bar is not None
    assert (bar.start, bar.end, bar.notch, bar.open) == (100, 200, 0.3, False)
    assert [bar.filled(wall) for wall in (50, 100, 150, 500)] == [0, 0, 0.5, 1]
    assert "alert 1970-01-01 00:02:10 UTC, auto-unlock 1970-01-01 00:03:20 UTC" in bar.text


def test_a_bar_without_an_end_leaves_room_after_the_alert() -> None:
    bar = Bar.of(holder(locked_at=100, alert_at=200))
    assert bar is not None
    assert bar.open
    assert bar.end > 200
    assert 0 < bar.notch < 1


@pytest.mark.parametrize(
    "stamps",
    [
        {},
        {"alert_at": 5.0},
        {"locked_at": 5.0},
        {"locked_at": 5.0, "alert_at": 5.0},
        {"locked_at": 9.0, "alert_at": 5.0, "auto_unlock_at": 7.0},
    ],
)
def test_stamps_that_make_no_sense_make_no_bar(stamps: dict[str, float]) -> None:
    assert Bar.of(holder(**stamps)) is None
