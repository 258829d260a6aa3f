"""How times and hostile texts are written in HTML; `lockclient.shown` has the words.

Durations are written the same way by `static/live.js`, which goes on counting them.
"""

from __future__ import annotations

from datetime import datetime, timezone

from markupsafe import Markup, escape

from lockclient.shown import BLOCK, ONE_LINE, escaped


def visible(text: object, limit: int = 0, *, block: bool = False) -> Markup:
    """Return a hostile text as HTML in which all of it shows, and nothing outside it is moved.

    What would be invisible or change the order of what stands around it is written as an escape,
    `\\u202e`; in a `block`, line ends and tabs stay. From `limit` characters on it is cut off.
    """
    whole = str(text)
    cut = whole[:limit] + "…" if limit and len(whole) > limit else whole
    pieces = (BLOCK if block else ONE_LINE).split(cut)
    html = (
        Markup('<span class="odd">{}</span>').format(escaped(piece)) if odd % 2 else escape(piece)
        for odd, piece in enumerate(pieces)
    )
    return Markup('<bdi class="text">{}</bdi>').format(Markup("").join(html))


def iso(stamp: float) -> str:
    """Write a wall-clock time for `<time datetime>`."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
