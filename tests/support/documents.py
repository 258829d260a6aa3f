"""The documents' code blocks, by the info strings of their fences."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_PARTS = re.compile(r"^#+ ([^\n]+)$|^( *)```(\w+)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A code block: the heading that it stands under, its fence's info string, its text."""

    section: str
    kind: str
    code: str


def text(page: str) -> str:
    """Return a page by its name below `docs`, or the chapter that `page.md#anchor` names."""
    name, _, anchor = page.partition("#")
    whole = (DOCS / name).read_text(encoding="utf-8")
    if not anchor:
        return whole
    chapters = re.split(r"^(?=## )", whole, flags=re.MULTILINE)
    title = anchor.replace("-", " ")
    (chapter,) = (part for part in chapters if part.lower().startswith(f"## {title}\n"))
    return chapter


def blocks(page: str, *kinds: str) -> list[Block]:
    """Return a page's blocks of these kinds."""
    found, section = [], ""
    for heading, _, kind, code in _PARTS.findall(text(page)):
        section = heading or section
        if kind in kinds:
            found.append(Block(section, kind, textwrap.dedent(code)))
    return found


def codes(page: str, *kinds: str) -> list[str]:
    """Return the texts of a page's blocks of these kinds."""
    return [block.code for block in blocks(page, *kinds)]
