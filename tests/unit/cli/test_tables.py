"""Tables on a terminal: what is shortened, what is left out, and what never is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lockclient.cli import output
from lockclient.cli.operate import ls, removed
from lockclient.cli.operate.tables import Column, rich_table
from lockclient.cli.output import cut_process

LONG = [
    *("alert", "terraform/shop-production-eu-west-1", "12 · 15 min", "ci-runner-3:30415"),
    *("https://ci.example.org/shop/builds/1234567890", "12 min 3 s", "7 min 10 s"),
    *("2 min 10 s ago", "in 14 min 59 s"),
]
SHORT = [
    *("ok", "backup", "0", "db:1", "nightly base backup of shop-db", "2 min 3 s", "9 s"),
    *("in 3 min 10 s", "never"),
]


def told(columns: tuple[Column, ...], rows: list[list[str]], width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(rich_table(columns, rows, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_states_and_times_are_never_cut(width: int) -> None:
    """A time without its last character is another time; how long people wait goes as a whole."""
    titles, *lines = told(ls.COLUMNS, [LONG, SHORT], width)
    for row, line in zip([LONG, SHORT], lines, strict=True):
        assert len(line) <= width
        assert line.startswith(row[0])
        assert f" {row[2] if width > 100 else row[2].partition(' ')[0]} " in line
        spare = row[6:8] if width > 150 else row[6:7] if width > 100 else []  # the first to go
        times = [row[5], *spare, row[8]]
        assert line.split()[-len(" ".join(times).split()) :] == " ".join(times).split()
        left = ["SILENT", "ALERT"][: len(spare)]
        assert titles.split()[-2 - len(left) :] == ["HELD", *left, "UNLOCK"]
        assert titles.split()[:3] == ["STATE", "NAME", "WAIT"]


def test_what_may_be_shortened_is_and_then_left_out() -> None:
    assert "REASON" not in told(ls.COLUMNS, [LONG], 80)[0]
    line = told(ls.COLUMNS, [LONG], 80)[1]
    assert "terraform/…eu-west-1    12  ci-runner-3:30415" in line, (
        "names in their middle, pids never"
    )
    assert "nightly base bac" in told(ls.COLUMNS, [SHORT], 80)[1]
    assert "HOLDER" not in told(ls.COLUMNS, [LONG], 60)[0]
    assert "https://ci.example.org/shop/builds/1234567890" in told(ls.COLUMNS, [LONG], 200)[1]


def test_no_two_names_look_alike() -> None:
    """Which differ in their middle only: they take more lines."""
    rows = [[*LONG], [*LONG], [*SHORT]]
    assert len(rows[0]) == len(ls.COLUMNS)
    rows[0][1], rows[1][1] = "deploy/service-1/eu-west/prod", "deploy/service-2/eu-west/prod"
    lines = told(ls.COLUMNS, rows, 80)
    assert "".join(line[7:].split("  ")[0] for line in lines[1:3]) in rows[0][1]
    assert len(lines) == 1 + 2 + 2 + 1


def test_a_domain_goes_before_the_host_does() -> None:
    assert cut_process("bill-3.prod.example.com:30415", 29) == "bill-3.prod.example.com:30415"
    assert cut_process("bill-3.prod.example.com:30415", 20) == "bill-3:30415"
    assert cut_process("a-long-name-of-a-host:30415", 14) == "a-long-…:30415"


def test_an_ordinary_removal_fits_a_terminal() -> None:
    why = "no heartbeat for 12.3 s, and overdue by 0.5 s since 2026-11-21"
    row = ["14 min ago", "nightly-report", "vm:12345", "auto-unlock", "unlocker vm:777", why]
    titles, line = told(removed.COLUMNS, [row], 80)
    assert titles.split() == ["REMOVED", "NAME", "HOLDER", "HOW", "BY", "WHY"]
    assert line.startswith("14 min ago  nightly-report  vm:12345  auto-unlock  unlocker")


def test_wide_characters_count_twice() -> None:
    (line,) = told((Column("A"), Column("B", shrinkable=False)), [["鍵" * 30, "whole"]], 40)[1:]
    assert line.split()[-1] == "whole"


def test_a_sentence_is_broken_neither_in_a_command_nor_before_a_unit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "It takes p99 61.0 ms: see `clustermutex show NAME`, or wait for 2 min 41 s more."
    assert output.wrapped(said, 4) == said, "what goes to no terminal is one line"
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    for columns in range(24, 90):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = output.wrapped(said, 4).split("\n    ")
        assert " ".join(lines) == said
        for whole in ("p99 61.0 ms", "`clustermutex show NAME`", "2 min", "41 s"):
            assert any(whole in line for line in lines)
