"""The runbook as the dashboard serves it, made from docs/runbook.md.

    python -m reference.runbook

writes mutexdash/runbook.html anew. So the dashboard needs no Markdown library, and what is not
Markdown in the text stays text.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

CHECKOUT: Final = Path(__file__).parents[1]
SOURCE: Final = CHECKOUT / "docs/runbook.md"
RENDERED: Final = CHECKOUT / "mutexdash/runbook.html"


def text() -> str:
    """Return the runbook as HTML, each section with its heading in small letters as its id."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(SOURCE.read_text(encoding="utf-8"))
    for token, inner in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", inner.content.lower())
        if token.type == "fence":
            token.attrSet("tabindex", "0")  # who has only keys scrolls it, too
    for token in tokens:
        token.children = token.children and _without_links_to_files(token.children)
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _without_links_to_files(children: list[Token]) -> list[Token]:
    """Name the file where there is no page to link to: the dashboard serves the runbook alone."""
    kept: list[Token] = []
    target = ""
    for child in children:
        href = str(child.attrGet("href") or "")
        if child.type == "link_open" and not href.startswith(("#", "https:")):
            target = href.removeprefix("../")
        elif child.type == "link_close" and target:
            name = target if "/" in target else f"docs/{target}"
            kept += [Token("text", "", 0, content=" ("), Token("code_inline", "code", 0)]
            kept[-1].content = name
            kept.append(Token("text", "", 0, content=")"))
            target = ""
        else:
            kept.append(child)
    return kept


if __name__ == "__main__":
    RENDERED.write_text(text(), encoding="utf-8")
