"""Tables: drawn by `rich` on a terminal, else as tab-separated lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from lockclient.cli.output import cut_end, on_terminal
from lockclient.model.holder import ALERT, BROKEN, OK, OVERDUE, UNDECIDED
from lockclient.overview.lock_status import DEADLOCK, HELD_TOO_LONG
from lockclient.text.escaping import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

COLOURS = {
    OK: "green",
    ALERT: "yellow",
    OVERDUE: "red",
    UNDECIDED: "cyan",
    BROKEN: "magenta",
    DEADLOCK: "red",
    HELD_TOO_LONG: "yellow",
}
"""The colours of the verdicts on a lock."""
_COLUMN_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        number: its cells begin with a number, and are aligned on the right.
        shrinkable: its cells may be shortened.
        min_width: the least width of a shortened cell, in cells of a terminal.
        cut: shortens a text to a width.
        tells_apart: different values must not look the same, or a person would take one lock for
            another; such cells fold into as many lines as they need.
        spare: left out early if the columns have no room.
        kept: never left out.
    """

    title: str
    number: bool = False
    shrinkable: bool = True
    min_width: int = 10
    cut: Callable[[str, int], str] = cut_end
    tells_apart: bool = False
    spare: bool = False
    kept: bool = False


Cells = Sequence[Sequence[object]]


def print_table(columns: Sequence[Column], rows: Cells, summary: str) -> None:
    """Print a table, with the summary below it where it goes to a terminal."""
    if on_terminal():
        console = terminal_console()
        if rows:
            console.print(rich_table(columns, rows, console.width))
        console.print(plain(summary), style="dim", markup=False, highlight=False)
    else:
        click.echo(tab_separated(columns, rows))


def tab_separated(columns: Sequence[Column], rows: Cells) -> str:
    """Return a line for the titles and one for each row, with tabs between.

    A tab inside a cell is escaped, like each character that can't be seen.
    """
    lines = [[column.title for column in columns], *rows]
    return "\n".join("\t".join(plain(cell) for cell in line) for line in lines)


def terminal_console() -> Console:
    """Return the terminal, by NO_COLOR and TERM."""
    from rich.console import Console  # an import of 60 ms, which other output does not need

    return Console(soft_wrap=False)


def rich_table(columns: Sequence[Column], rows: Cells, width: int) -> Table:
    """Return the table for a terminal of this width. States are coloured."""
    from rich.table import Table
    from rich.text import Text

    shown = [[plain(cell) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _COLUMN_GAP, 0, 0))
    fitting = _fitting_widths(columns, shown, width)
    for number, room in fitting.items():
        table.add_column(
            columns[number].title,
            justify="right" if columns[number].number else "left",
            overflow="fold",
            width=room,
        )
        _shorten(shown, number, columns[number], room)
    for row in shown:
        # As `Text`: `rich` would read markup in a string, and a lock's name may look like it.
        cells = [row[number] for number in fitting]
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in cells))
    return table


def _shorten(rows: Sequence[list[str]], number: int, column: Column, room: int) -> None:
    """Shorten a column's cells to their room, except those that would look like another value."""
    whole = {row[number] for row in rows}
    looks = Counter(column.cut(text, room) for text in whole)
    for row in rows:
        cut = column.cut(row[number], room)
        if not column.tells_apart or looks[cut] == 1:
            row[number] = cut


def _min_width(column: Column, rows: Sequence[Sequence[str]], number: int) -> int:
    """Return the least width of a column: `cut` can't shorten some cells to `min_width`."""
    from rich.cells import cell_len

    return max(
        [column.min_width, *(cell_len(column.cut(row[number], column.min_width)) for row in rows)]
    )


def _fitting_widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> dict[int, int]:
    """Return the columns that have room, by their numbers, each with its width.

    Shrinkable columns are shortened, the widest first. If that is not enough, columns are left out:
    shrinkable or spare ones that are empty in each row, then the spare ones; then numbers lose the
    text beside them; then the shrinkable columns go, from the right. Times are never shortened: a
    part of a time would be a wrong time.
    """
    from rich.cells import cell_len

    room = {
        number: max(cell_len(cell) for cell in (column.title, *(row[number] for row in rows)))
        for number, column in enumerate(columns)
    }
    short = [number for number, column in enumerate(columns) if column.shrinkable]
    least = {
        number: min(room[number], _min_width(columns[number], rows, number)) for number in short
    }
    numbers = {number: room[number] for number in short if columns[number].number}
    leaving = [number for number in short if not columns[number].kept]
    leaving += [*numbers, *(number for number in room if columns[number].spare)]
    leaving += [
        number
        for number in leaving
        if not columns[number].kept and not any(row[number] for row in rows)
    ]
    while (
        leaving and sum((room | least | numbers).values()) + _COLUMN_GAP * (len(room) - 1) > width
    ):
        number = leaving.pop()
        if numbers.pop(number, None) is not None:
            room[number] = least[number]
        else:
            room.pop(number, None)  # it may be in the list twice
            least.pop(number, None)
    short = [number for number in least if not columns[number].number]
    excess = sum(room.values()) + _COLUMN_GAP * (len(room) - 1) - width
    while excess > 0 and (longer := [number for number in short if room[number] > least[number]]):
        room[max(longer, key=lambda number: room[number])] -= 1
        excess -= 1
    return room
