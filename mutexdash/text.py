"""How times and hostile texts are written on a page.

Durations are written the same way by `static/live.js`, which goes on counting them.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone

from markupsafe import Markup, escape

_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e"  # controls, marks
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # overrides, isolates
    "\ud800-\udfff"  # lone surrogates, which can't even be written as UTF-8
)
_ONE_LINE = re.compile(f"([{_INVISIBLE}])")
_BLOCK = re.compile(rf"((?![\n\t])[{_INVISIBLE}])")


def visible(text: object, limit: int = 0, *, block: bool = False) -> Markup:
    """Return a hostile text as HTML in which all of it shows, and nothing outside it is moved.

    What would be invisible or change the order of what stands around it is written as an escape,
    `\\u202e`; in a `block`, line ends and tabs stay. From `limit` characters on it is cut off.
    """
    whole = str(text)
    cut = whole[:limit] + "…" if limit and len(whole) > limit else whole
    pieces = (_BLOCK if block else _ONE_LINE).split(cut)
    html = (
        Markup('<span class="odd">{}</span>').format(_escaped(piece)) if odd % 2 else escape(piece)
        for odd, piece in enumerate(pieces)
    )
    return Markup('<bdi class="text">{}</bdi>').format(Markup("").join(html))


def plain(text: object) -> str:
    """Return a hostile text for a title or an attribute: the same escapes without markup."""
    return _ONE_LINE.sub(lambda found: _escaped(found[0]), str(text))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def duration(seconds: float) -> str:
    """Write a duration in its two largest units; less than none is none."""
    whole = max(0, int(seconds))
    days, hours = divmod(whole // 3600, 24)
    minutes = whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole % 60} s"
    return f"{whole} s"


def utc(stamp: float) -> str:
    """Write a wall-clock time for people."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(stamp: float) -> str:
    """Write a wall-clock time for `<time datetime>`."""
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
