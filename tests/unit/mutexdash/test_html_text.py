"""Hostile texts, times and bars as HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from markupsafe import escape

from lockclient.model.holder import Holder
from lockclient.overview.lock_presentation import NOTCH, Bar
from lockclient.text.durations import duration
from lockclient.text.escaping import ascii_name, shown_name
from lockclient.text.timestamps import utc
from mutexdash.markup.html_text import visible
from mutexdash.markup.links import linked
from tests.support.board import Board
from tests.support.polls import OTHER_LETTERS


def test_markup_is_text() -> None:
    assert visible("<b>&\"'") == '<bdi class="text">&lt;b&gt;&amp;&#34;&#39;</bdi>'


@pytest.mark.parametrize("char", "\x00\x1b\n\x85\u200b\u202e\u2066\ufeff\ud800")
def test_invisible_characters_are_written_as_escapes(char: str) -> None:
    html, shown = visible(f"a{char}b"), char.encode("unicode_escape").decode()
    assert html == f'<bdi class="text">a<span class="odd">{shown}</span>b</bdi>'
    html.encode()  # a lone surrogate can't be


def test_visible_characters_stay() -> None:
    for text in ("\\u202e", "👩 naïve Ω עברית"):
        assert visible(text) == f'<bdi class="text">{text}</bdi>'
    block = '<bdi class="text">a\n\tb<span class="odd">\\r</span></bdi>'
    assert visible("a\n\tb\r", block=True) == block


def test_a_name_beyond_ascii_is_shown_with_its_escaped_form() -> None:
    name = OTHER_LETTERS["Cyrillic letters"]
    path = quote(name, safe="")
    escaped = escape(ascii_name(name))
    with Board("--allow-force-unlock") as board:
        board.store.take(name, uuid="u")
        board.store.removed(name, "r", how="auto-unlock", removed_at=5.0)
        board.settle()
        for address in (
            *("/", "/removed", "/timeline", f"/lock/{path}", f"/removal?name={path}&uuid=r"),
            *(f"/locks/{path}/force-unlock?uuid=u", f"/?q={quote(shown_name(name))}"),
            f"/lock?name={quote(shown_name(name))}",
        ):
            text = re.sub("<[^>]*>", "", board.html(address))
            assert name in text, address
            assert escaped in text, address


def test_a_long_text_is_cut_visibly() -> None:
    assert visible("x" * 50, 10) == f'<bdi class="text">{"x" * 10}…</bdi>'
    assert "…" not in visible("x" * 10, 10)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-5, "0 s"), (0.9, "0 s"), (59.9, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s")),
        *((3600, "1 h 0 min"), (86399, "23 h 59 min"), (90000, "1 d 1 h")),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_largest_stamp_can_be_shown() -> None:
    assert utc(253_402_300_799) == "9999-12-31 23:59:59 UTC"


def holder(**stamps: float) -> Holder:
    if "auto_unlock_at" in stamps:  # as much later as the stamps say
        after = 30 + stamps["auto_unlock_at"] - stamps["alert_at"]
        stamps |= {"expected_runtime": 30, "auto_unlock_after": after}
    return Holder("a", "u", "h", **stamps)  # type: ignore[arg-type]


def test_a_bar_spans_from_the_last_heartbeat_to_the_auto_unlock() -> None:
    bar = Bar.of(holder(locked_at=100, alert_at=130, auto_unlock_at=200))
    assert bar is not None
    assert (bar.start, bar.alert, bar.end, bar.open) == (100, 130, 200, False)
    filled = [bar.filled(wall) for wall in (50, 100, 115, 130, 165, 500)]
    assert filled == [0, 0, 0.25, 0.5, 0.75, 1]
    assert bar.text == (
        "Last heartbeat 1970-01-01 00:01:40 UTC, alert 1970-01-01 00:02:10 UTC, "
        "auto-unlock 1970-01-01 00:03:20 UTC"
    )


@pytest.mark.parametrize("after", [None, 100.0])
def test_a_bar_measures_silence_and_not_age(after: float | None) -> None:
    """A lock that is held for days and pushed a second ago is as well as a new one."""
    pushed = 5 * 86_400.0
    times: dict[str, Any] = {"alert_at": pushed + 30, "expected_runtime": 30}
    if after is not None:
        times |= {"auto_unlock_at": pushed + after, "auto_unlock_after": after}
    bar = Bar.of(Holder("a", "u", "h", locked_at=0.0, **times))
    assert bar is not None
    assert bar.filled(pushed + 1) < 0.05
    assert bar.filled(pushed + 30) == pytest.approx(NOTCH)


def test_a_bar_without_an_end_leaves_room_after_the_alert() -> None:
    bar = Bar.of(Holder("a", "u", "h", alert_at=200, expected_runtime=100, locked_at=7))
    assert bar is not None
    assert (bar.start, bar.open) == (100, True)
    assert bar.end > bar.alert == 200
    assert bar.text.endswith("auto-unlock never")


def test_the_bar_of_an_undecided_lock_has_no_auto_unlock() -> None:
    lock = replace(holder(locked_at=100, alert_at=130, auto_unlock_at=200), format=2)
    bar = Bar.of(lock)
    assert bar is not None
    assert bar.open
    assert bar.text.endswith("auto-unlock undecided")


@pytest.mark.parametrize(
    "stamps",
    [
        {},
        {"alert_at": 5.0},
        {"locked_at": 5.0},
        {"locked_at": 5.0, "alert_at": 5.0},
        {"locked_at": 9.0, "alert_at": 5.0},
    ],
)
def test_invalid_stamps_give_no_bar(stamps: dict[str, float]) -> None:
    assert Bar.of(holder(**stamps)) is None


# ---------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("see https://jira.example.com/browse/X-1.", ["https://jira.example.com/browse/X-1"]),
        (
            "http://a.example/?q=1&r=2#s (twice) https://b.example",
            ["http://a.example/?q=1&amp;r=2#s", "https://b.example"],
        ),
        ("javascript:alert(1) ftp://x.example data:text/html,x", []),
        ("https://a.example/\u202egpj.exe", ["https://a.example/"]),
        ('https://a.example/"onclick="x', ["https://a.example/"]),
        ("https://а.example", []),  # Cyrillic
        ("https://", []),
        ("no link", []),
    ],
)  # fmt: skip
def test_addresses_of_web_pages_are_links_and_nothing_else_is(
    text: str, addresses: list[str]
) -> None:
    html = str(linked(text))
    assert re.findall('href="([^"]*)"', html) == addresses
    assert html.count("<a ") == html.count('rel="noreferrer noopener nofollow"') == len(addresses)
    assert "onclick=" not in re.sub(r">[^<]*<", "><", html)


def test_a_truncated_link_is_not_a_link() -> None:
    assert "<a" not in linked("https://a.example/long", 18)
    assert "<a" in linked("https://a.example/long", 22)
    assert linked("https://a.example/ " + "x" * 90, 30).count("…") == 1


def test_a_blank_beside_a_link_is_not_escaped() -> None:
    html = str(linked("batch 0, see https://a.example/1 and https://a.example/2 now"))
    assert "odd" not in html
    assert ">batch 0, see</bdi> <a " in html
    assert '</a> <bdi class="text">and</bdi> <a ' in html
    for hidden in ("see  https://a.example/1", " https://a.example/1", "https://a.example/1 "):
        assert str(linked(hidden)).count("odd") == 1
