"""Hostile texts and times as HTML."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache

from markupsafe import Markup, escape

from lockclient.text.escaping import BLOCK, ONE_LINE, escaped, is_plain


def visible(text: object, limit: int = 0, *, block: bool = False) -> Markup:
    """Return a hostile text as HTML, cut at `limit` characters.

    Invisible characters and those that change the direction of text become escapes, `\\u202e`; in a
    `block`, line ends and tabs stay.
    """
    whole = str(text)
    cut = whole[:limit] + "…" if limit and len(whole) > limit else whole
    pieces = [cut] if is_plain(cut) else (BLOCK if block else ONE_LINE).split(cut)
    html = "".join(
        f'<span class="odd">{escape(escaped(piece))}</span>' if odd % 2 else escape(piece)
        for odd, piece in enumerate(pieces)
    )
    return Markup(f'<bdi class="text">{html}</bdi>')  # noqa: S704 - made of escaped pieces


@lru_cache(4096)
def iso(stamp: float) -> str:
    """Write a wall-clock time for `<time datetime>`."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
