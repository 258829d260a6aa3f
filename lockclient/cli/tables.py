"""Tables: drawn by `rich` on a terminal, in tab-separated lines for everything else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from lockclient.record import ALERT, BROKEN, OK, OVERDUE
from lockclient.shown import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_GAP = 2
COLOURS = {OK: "green", ALERT: "yellow", OVERDUE: "red", BROKEN: "magenta"}
"""Of the states of a lock."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether it has numbers, whether it may be shortened, and how far."""

    title: str
    number: bool = False
    short: bool = True
    least: int = 10


Cells = Sequence[Sequence[object]]


def on_terminal() -> bool:
    """Tell whether what is printed goes to a person's terminal."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[Column], rows: Cells, summary: str) -> None:
    """Print a table, with the summary below it where it goes to a terminal."""
    if on_terminal():
        console = console_of()
        if rows:
            console.print(drawn(columns, rows, console.width))
        console.print(plain(summary), style="dim", markup=False, highlight=False)
    else:
        click.echo(in_lines(columns, rows))


def in_lines(columns: Sequence[Column], rows: Cells) -> str:
    """Return a line for the titles and one for each row, with tabs between.

    A tab inside a cell is written as an escape, like all that would not show.
    """
    lines = [[column.title for column in columns], *rows]
    return "\n".join("\t".join(plain(cell) for cell in line) for line in lines)


def console_of() -> Console:
    """Return the terminal. It goes by NO_COLOR and TERM."""
    from rich.console import Console  # an import of 60 ms: only where a terminal is drawn on

    return Console(soft_wrap=False)


def drawn(columns: Sequence[Column], rows: Cells, width: int) -> Table:
    """Return the table for a terminal of this width; cells that are states have their colours."""
    from rich.table import Table
    from rich.text import Text

    shown = [[plain(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    fitting = _fitting(columns, shown, width)
    for number, room in fitting.items():
        table.add_column(
            columns[number].title,
            justify="right" if columns[number].number else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=room,
        )
    for row in shown:
        # As texts: a name that looks like markup must not be taken for it.
        cells = [row[number] for number in fitting]
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    return table


def _fitting(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> dict[int, int]:
    """Return the columns that have room, by their numbers, each with its width.

    What may be shortened is, the widest first. Where that is not enough, whole columns of that kind
    are left out, the last first, but for the first: a time that is cut would be a wrong one.
    """
    from rich.cells import cell_len

    room = {
        number: max(cell_len(cell) for cell in (column.title, *(row[number] for row in rows)))
        for number, column in enumerate(columns)
    }
    short = [number for number, column in enumerate(columns) if column.short]
    least = {number: min(room[number], columns[number].least) for number in short}
    while len(short) > 1 and sum((room | least).values()) + _GAP * len(room) > width:
        number = short.pop()
        del room[number], least[number]
    excess = sum(room.values()) + _GAP * len(room) - width
    while excess > 0 and (longer := [number for number in short if room[number] > least[number]]):
        room[max(longer, key=lambda number: room[number])] -= 1
        excess -= 1
    return room
