"""Web addresses in hostile texts as links."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from mutexdash.markup.html_text import visible

# ASCII only, so that no two addresses look alike, and no quotes; what ends a sentence ends it.
_ADDRESS = re.compile(r"https?://[A-Za-z0-9[][!#-;=?-~]*[A-Za-z0-9/_=&%#~+-]")


def linked(text: str, limit: int = 0) -> Markup:
    """Return a text as `visible` does, with web addresses as links, unless they are cut off."""
    if "://" not in text:
        return visible(text, limit)
    shown = text[:limit] if limit else text
    pieces, end = [], 0
    for found in _ADDRESS.finditer(shown):
        if limit and len(text) > limit and found.end() == len(shown):
            break
        address = found[0]
        pieces.append(_between(shown[end : found.start()], after=bool(end), before=True))
        # `noreferrer`: the linked page learns no lock's name.
        pieces.append(
            Markup('<a href="{}" rel="noreferrer noopener nofollow">{}</a>').format(
                escape(address), visible(address)
            )
        )
        end = found.end()
    pieces.append(_between(text[end:], limit - end if limit else 0, after=bool(end), before=False))
    return Markup("").join(pieces)


def _between(text: str, limit: int = 0, *, after: bool, before: bool) -> Markup:
    """Return a text next to a link: a blank at that edge is not at the end of the whole text."""
    first = " " if after and text.startswith(" ") and (before or text != " ") else ""
    rest = text[len(first) :]
    last = " " if before and rest.endswith(" ") and (after or rest != " ") else ""
    inner = rest[: len(rest) - len(last)]
    return escape(first) + (visible(inner, limit) if inner else escape("")) + escape(last)
