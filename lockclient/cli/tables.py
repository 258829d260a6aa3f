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

COLOURS = {OK: "green", ALERT: "yellow", OVERDUE: "red", BROKEN: "magenta"}
"""Of the states of a lock."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, whether numbers stand in it, whether it may be shortened."""

    title: str
    number: bool = False
    short: bool = True


Cells = Sequence[Sequence[object]]


def on_terminal() -> bool:
    """Tell whether what is printed goes to a person's terminal."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[Column], rows: Cells, summary: str) -> None:
    """Print a table, with the summary below it where it goes to a terminal."""
    if on_terminal():
        console = console_of()
        if rows:
            console.print(drawn(columns, rows))
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


def drawn(columns: Sequence[Column], rows: Cells) -> Table:
    """Return the table for a terminal; cells that are states have their colours."""
    from rich.table import Table
    from rich.text import Text

    shown = [[plain(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        widest = max(len(cell) for cell in (column.title, *(row[number] for row in shown)))
        table.add_column(
            column.title,
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if column.short else widest,
        )
    for row in shown:
        # As texts: a name that looks like markup must not be taken for it.
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    return table
