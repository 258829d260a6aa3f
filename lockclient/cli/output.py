"""Output of commands: JSON, wrapped sentences, texts cut to a width."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

import click

from lockclient.text.escaping import ascii_json

MAX_NAMES_SHOWN = 5
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_UNBROKEN = re.compile(r"`[^`]+`|(p[0-9]{2} )?[0-9.]+ (ms|s|min|h|d|MiB)\b")


def cut_end(text: str, room: int) -> str:
    """Return a text cut to so many cells of a terminal, with an ellipsis at its end."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= room else f"{set_cell_size(text, room - 1)}…"


def cut_middle(text: str, room: int) -> str:
    """Return a text cut in its middle: names often differ in their ends."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= room:
        return text
    tail = (room - 1) // 2
    return f"{set_cell_size(text, room - 1 - tail)}…{set_cell_size(text[::-1], tail)[::-1]}"


def cut_process(text: str, room: int) -> str:
    """Return HOST:PID cut: without the domain, then with less of the host; the pid stays."""
    host, _, pid = text.rpartition(":")
    left = room - len(pid) - 1
    return f"{cut_end(host if len(host) <= left else host.partition('.')[0], left)}:{pid}"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; None is a stream that was closed at the start."""
    return stream is not None and stream.isatty()


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return is_terminal(sys.stdout)


def wrapped(text: str, indent: int, stream: TextIO | None = None) -> str:
    """Return a sentence that begins at the column `indent`, in lines that fit the terminal.

    No line ends inside a word or a command to copy, or between a number and its unit. If `stream`
    (None: stdout) is no terminal, the sentence stays one line.
    """
    if not is_terminal(stream or sys.stdout):
        return text
    import shutil  # not for a command without a terminal: it loads all compressions

    # No-break spaces mark blanks that must not end a line; `plain` has escaped all others.
    whole = _UNBROKEN.sub(lambda found: found[0].replace(" ", _NO_BREAK_SPACE), text)
    width = max(20, shutil.get_terminal_size().columns - indent)
    lines = textwrap.wrap(whole, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines).replace(_NO_BREAK_SPACE, " ")


def counted(number: int, what: str) -> str:
    """Return a number with its noun, like `1 lock` and `2 locks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counted_locks(names: Sequence[str]) -> str:
    """Return the number of locks and the first names, which must be escaped already."""
    listed = ", ".join(f"'{name}'" for name in names[:MAX_NAMES_SHOWN])
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return f"{counted(len(names), 'lock')} ({listed}{more})"


def print_error(text: str, **style: Any) -> None:
    """Print a sentence on stderr, in lines that fit its terminal."""
    click.secho(wrapped(text, 0, sys.stderr), err=True, reset=bool(style), **style)


def can_ask() -> bool:
    """Return whether stdin is a terminal, so that a person can be asked."""
    return is_terminal(sys.stdin)


def require_consent(yes: object) -> None:
    """Raise a usage error if --yes is missing and stdin is no terminal."""
    if not yes and not can_ask():
        raise click.UsageError("There is no terminal to ask on: add --yes if you are sure.")


def confirm(question: str, otherwise: str) -> None:
    """Ask a question; raise an error with the text `otherwise` unless the answer is yes."""
    if not click.confirm(question, default=False):
        raise click.ClickException(f"The answer was no: {otherwise}.")


def print_json(document: Any, *, line: bool = False) -> None:
    """Print JSON: indented, or in one line (`line`).

    All characters outside of ASCII are escaped, so that no text can control a terminal.
    """
    click.echo(ascii_json(document, indent=None if line else 2))
