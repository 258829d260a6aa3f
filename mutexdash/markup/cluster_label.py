"""The cluster's name and colour on every page, from --title and --colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

COLOURS: Final = ("grey", "blue", "green", "yellow", "red", "purple")
_MAX_TITLE_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class ClusterLabel:
    """A cluster's name, like `prod`, and its colour, one of `COLOURS`; empty: none."""

    title: str = ""
    colour: str = ""


def read_title(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """click's callback: return the title, or refuse one that is too long or has invisible text."""
    if len(value) > _MAX_TITLE_CHARS or not value.isprintable():
        raise click.UsageError(
            f"--title must have at most {_MAX_TITLE_CHARS} characters, all of which can be seen, "
            f"not {value[:60]!r}."
        )
    return value
