"""Tables on a terminal: what is shortened, what is left out, and what never is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lockclient.cli import listing, removed
from lockclient.cli.tables import Column, drawn

LONG = [
    *("alert", "terraform/shop-production-eu-west-1", "ci-runner-3:30415"),
    *("https://ci.example.org/shop/builds/1234567890", "12m3s", "2m10s ago", "in 14m59s", "12"),
]
SHORT = ["ok", "backup", "db:1", "nightly base backup of shop-db", "2m3s", "in 3m10s", "never", "0"]


def told(columns: tuple[Column, ...], rows: list[list[str]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(drawn(columns, rows, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_states_times_and_waiters_are_never_cut(width: int) -> None:
    """A time without its last character is another time."""
    titles, *lines = told(listing.COLUMNS, [LONG, SHORT], width)
    for row, line in zip([LONG, SHORT], lines, strict=True):
        assert len(line) <= width
        assert line.startswith(row[0])
        assert line.split()[-len(" ".join(row[4:]).split()) :] == " ".join(row[4:]).split()
    assert titles.split()[-4:] == ["HELD", "ALERT", "UNLOCK", "WAIT"]


def test_what_may_be_shortened_is_and_then_left_out() -> None:
    assert "REASON" not in told(listing.COLUMNS, [LONG], 80)[0]
    assert "terraform/shop-p…" in told(listing.COLUMNS, [LONG], 80)[1]
    assert "nightly base back" in told(listing.COLUMNS, [SHORT], 80)[1]
    assert "HOLDER" not in told(listing.COLUMNS, [LONG], 60)[0]
    assert "https://ci.example.org/shop/builds/1234567890" in told(listing.COLUMNS, [LONG], 200)[1]


def test_an_ordinary_removal_fits_a_terminal() -> None:
    why = "no sign of life for 12.3 s, and overdue by 0.5 s since 2026-11-21"
    row = ["14m ago", "nightly-report", "vm:12345", "auto-unlock", "unlocker vm:777", why]
    titles, line = told(removed.COLUMNS, [row], 80)
    assert titles.split() == ["REMOVED", "NAME", "HOLDER", "HOW", "BY", "WHY"]
    assert line.startswith("14m ago  nightly-report  vm:12345  auto-unlock  unlocker")


def test_wide_characters_count_twice() -> None:
    (line,) = told((Column("A"), Column("B", short=False)), [["鍵" * 30, "whole"]], 40)[1:]
    assert line.split()[-1] == "whole"
