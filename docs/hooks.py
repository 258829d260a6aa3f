"""A hook of mkdocs: links to files that are no pages name the file, and lead nowhere."""

from __future__ import annotations

import re
from typing import Any

_PAGES = {"README.md": "index.md"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite the links that lead out of the folder of documents."""

    def named(found: re.Match[str]) -> str:
        text, target = found.groups()
        name, _, _anchor = target.partition("#")
        if name in _PAGES:
            return f"[{text}]({_PAGES[name]})"
        return text if text.strip("`") == name else f"{text} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(\.\./([^)\s]+)\)", named, markdown)
