"""A hook of mkdocs: what the site takes from the README, and links that lead out of `docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_README = Path(__file__).parents[1] / "README.md"
_PROMISES = "What is promised"


def _promises() -> str:
    """Return the README's promises, their links as from a page of the site."""
    text = _README.read_text(encoding="utf-8")
    section = text.partition(f"## {_PROMISES}\n")[2].partition("\n## ")[0]
    return f"\n\n## {_PROMISES}\n{section}".replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Append the promises to the first page; name files that are no pages instead of linking."""

    def named(found: re.Match[str]) -> str:
        text, target = found.groups()
        name, _, anchor = target.partition("#")
        if name == _README.name:
            return f"[{text}](index.md{'#' * bool(anchor)}{anchor})"
        return text if text.strip("`") == name else f"{text} (`{name}`)"

    if page.file.src_uri == "index.md":
        markdown += _promises()
    return re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./([^)\s]+)\)", named, markdown)
