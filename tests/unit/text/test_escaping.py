"""Escaped output: nothing invisible, and nothing active."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.text.escaping import (
    as_trace,
    ascii_json,
    ascii_name,
    cell,
    chat,
    hidden,
    label,
    plain,
    shown_name,
    unescaped,
    without_secrets,
)
from tests.support.polls import ALL, REAL

IGNORABLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164)),
    *((0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8)),
    *((0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
"""Unicode's Default_Ignorable_Code_Point, as DerivedCoreProperties.txt lists it."""
SEEN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Prepended_Concatenation_Mark: the formats that are drawn."""
TEXTS = st.text(st.characters(codec=None)) | st.text("ab \t\n\r\x1b\u200b\u202e\u3164\xa0\\")


def unseen() -> Iterator[str]:
    """Yield each character that must not go out as it is, the plain space aside."""
    for first, last in IGNORABLE:
        yield from map(chr, range(first, last + 1))
    for number in range(sys.maxunicode + 1):
        char = chr(number)
        kind = unicodedata.category(char)
        blank = kind in ("Zs", "Zl", "Zp") and char != " "
        if blank or kind in ("Cc", "Co", "Cs") or (kind == "Cf" and number not in SEEN):
            yield char
    yield "\u2800"


UNSEEN = frozenset(unseen())


def test_each_invisible_character_is_escaped() -> None:
    assert len(UNSEEN) > 140_000
    for char in UNSEEN:
        assert plain(f"a{char}b") == f"a{char.encode('unicode_escape').decode()}b"


def test_visible_characters_stay() -> None:
    kinds = ("L", "N", "P", "S", "M")
    text = "".join(
        char
        for char in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(char)[0] in kinds and char not in UNSEEN
    )
    left = {*text} - {*plain(text)}
    assert {f"{ord(char):x}" for char in left} == {"13440", "13441", "13442", "16fe4", "1d159"} & {
        f"{ord(char):x}" for char in text
    }


@given(TEXTS)
def test_no_output_has_invisible_characters(text: str) -> None:
    for written in (plain(text), ascii_name(text), label(text), cell(text), as_trace(text)):
        assert {*written} & UNSEEN <= {"\n", "\t"}
    for written in (plain(text), ascii_name(text), label(text)):
        assert not {*written} & UNSEEN
        assert written.strip(" ") == written
        assert "  " not in written
    written.encode()  # a lone surrogate can't be


@given(TEXTS)
def test_escaping_is_idempotent(text: str) -> None:
    assert plain(plain(text)) == plain(text)
    assert plain(plain(text, block=True), block=True) == plain(text, block=True)


@given(TEXTS)
def test_a_block_keeps_its_lines_tabs_and_blanks(text: str) -> None:
    kept = plain(text, block=True)
    for char in "\n\t ":
        assert kept.count(char) == text.count(char)


@given(TEXTS.filter(lambda text: not {*text} & {*"\\\n\r\t"}))
def test_a_shown_name_is_parsed_back(text: str) -> None:
    assert unescaped(plain(text)) == text
    assert unescaped(ascii_name(text)) == text


@given(TEXTS)
def test_json_for_terminals_loses_nothing(text: str) -> None:
    written = ascii_json({"text": text})
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written) == {"text": text}


def test_a_traceback_has_no_line_that_looks_like_a_log_line() -> None:
    written = as_trace("Traceback:\nValueError: a\n2026-01-01 WARNING forged\x1b[2J\n")
    assert written == "Traceback:\n  ValueError: a\n  2026-01-01 WARNING forged\\x1b[2J"


@pytest.mark.parametrize("name", ALL.values(), ids=ALL)
def test_a_look_alike_name_is_shown_with_its_escaped_form(name: str) -> None:
    """`unescaped` finds the name by either form, or by both as they are shown."""
    assert ascii_name(name) != REAL
    assert ascii_name(name).isascii()
    assert ascii_name(name) in shown_name(name)
    assert unescaped(shown_name(name)) == name


def test_an_ascii_name_is_shown_once() -> None:
    assert shown_name("Deploy/prod (eu)") == "Deploy/prod (eu)"
    assert shown_name("Gr\xfc\xdfe") == "Gr\xfc\xdfe" + r" (Gr\xfc\xdfe)"


# ---------------------------------------------------------------- secrets

PARTS = st.text(st.characters(exclude_characters="@\uff20\ufe6b%", codec="utf-8"), max_size=9)
AT = st.sampled_from(["@", "%40", "%2540", "\uff20", "\ufe6b"])


@given(st.sampled_from(["etcd://", "etcds://", "//", "", "etcd:", "http:"]), PARTS, PARTS, AT)
def test_credentials_of_a_url_are_removed(scheme: str, some: str, more: str, at: str) -> None:
    url = f"{scheme}<{some}:{more}>{at}host:1/x"
    assert hidden(url) in (f"{scheme}…@host:1/x", "…@host:1/x")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at etcd://ann:hunter2@h:1, no", "at etcd://…@h:1, no"),
        ("json://a:b@c and slack://d/e@f", "json://…@c and slack://…@f"),
        ("by unlocker@host:7 of deploy/ann@x", "by unlocker@host:7 of deploy/ann@x"),
        ("no url", "no url"),
    ],
)
def test_credentials_of_urls_are_left_out_of_logs(text: str, left: str) -> None:
    assert without_secrets(text) == left


@pytest.mark.parametrize("typed", ["ann:hunter2@h:1", "etcd:ann:hunter2@h", "x://a:hun ter2@h"])
def test_typed_text_before_an_at_sign_is_not_quoted(typed: str) -> None:
    text = without_secrets(f"Got unexpected extra argument ({typed})", given=True)
    assert text.startswith("Got unexpected extra argument …@h")


# ---------------------------------------------------------------- CSV

FORMULAS = "=+-@\uff1d\uff0b\uff0d\uff20\u2212\ufe62\u207c"


def cells_of(line: str, separator: str) -> Iterator[str]:
    """Yield the cells that a spreadsheet sees that splits there, by quotes and without."""
    with suppress(csv.Error):
        for row in csv.reader(io.StringIO(line), delimiter=separator):
            yield from row
    for entry in line.splitlines():
        yield from entry.split(separator)


@given(st.lists(st.text(f"ab;|,\t\r\n \"'\xa0\u200b{FORMULAS}", max_size=12), min_size=1))
def test_no_spreadsheet_takes_a_part_of_a_cell_for_a_formula(texts: list[str]) -> None:
    file = io.StringIO()
    csv.writer(file).writerow(map(cell, texts))
    for separator in ";\t|":
        for found in cells_of(file.getvalue(), separator):
            # Of what it splits anew, the commas that we wrote ourselves are no beginning.
            assert found.lstrip(' "\n\r\t')[:1] not in tuple(FORMULAS), (found, separator)
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    for found in row:
        assert found[:1] not in ("\n", "\t", "\r")
        assert found.strip(' "\n\t')[:1] not in tuple(FORMULAS)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *(("=1+1", "'=1+1"), ("\n=1", "'\n'=1"), ("\r=1", "\\r=1"), ("\uff1d1", "'\uff1d1")),
        *(("  =1", "  '=1"), ("\xa0=1", "\\xa0=1"), ("x;=1", "x;'=1"), ('x;"=1', "x;\"'=1")),
        *(("a - b", "a - b"), ("a, -b", "a, -b"), ("release 7", "release 7")),
    ],
)
def test_a_possible_formula_is_quoted(text: str, written: str) -> None:
    assert cell(text) == written


def test_texts_of_any_kind_take_no_time_to_speak_of() -> None:
    """A rule that looks from every place to the end takes minutes for each of these."""
    for text in ("a\n", "\n=", " ", "://", "a:", ";'", "@"):
        long = text * 200_000
        for way in (plain, cell, ascii_name, hidden, without_secrets, as_trace):
            assert way(long)


# ---------------------------------------------------------------- chats


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nightly_report-7/a.b", "nightly_report-7/a.b"),
        ("https://ops.example/T-1?a=1", "https://ops.example/T-1?a=1"),
        ("https://ops.example@evil/x", r"https\x3a//ops.example@evil/x"),
        ("@all ann@host a@everyone a@", r"\x40all ann@host a\x40everyone a\x40"),
        ("<!channel> <http://e|x>", r"\x3c!channel\x3e \x3chttp://e\x7cx\x3e"),
        ("![x](http://e) **b** `c`", r"!\x5bx\x5d(http://e) \x2a\x2ab\x2a\x2a \x60c\x60"),
        ("_a_ __init__", r"\x5fa\x5f \x5f\x5finit\x5f\x5f"),
        (r"\* a\b &lt; &#64; a & b", r"\x5c\x2a a\b \x26lt; \x26#64; a & b"),
        ("a\u202eb\nc", "a\\u202eb\nc"),
    ],
)
def test_chat_texts_are_inactive(text: str, shown: str) -> None:
    assert chat(text) == shown
    if "\n" not in text:
        assert unescaped(shown) in (text, shown)


@given(TEXTS)
def test_a_chat_gets_no_markup_of_any_kind(text: str) -> None:
    sent = chat(text)
    assert not {*sent} & {*"@<>[]*`|~"} | ({*sent} & UNSEEN - {"\n", "\t"})
    assert not re.search(r"\\[!-/:-@\[-`{-~]|&[#\w]|\b_(?!\w)", sent)
