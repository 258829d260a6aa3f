"""The axis of the lanes, and what a lane says to those who can't see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.overview.columns import utc
from lockclient.text.durations import duration
from lockclient.text.escaping import plain
from mutexdash.data.rows import RELEASED
from mutexdash.data.timeline import HELD, Lane, Lanes, Span

SPANS: Final = ((900, "15 min"), (3600, "1 h"), (6 * 3600, "6 h"), (24 * 3600, "24 h"))
"""How far back one may look, in seconds; each is divided by three without a rest."""
_PARTS: Final = 3
_MOST_SPOKEN: Final = 3

_WORDS: Final = {
    HELD: "still held",
    RELEASED: "released",
    AUTO_UNLOCK: "auto-unlocked",
    FORCE_UNLOCK: "force-unlocked",
}


def ticks(lanes: Lanes) -> Sequence[float]:
    """Return the moments that are named on the axis, from its begin to its end."""
    step = (lanes.end - lanes.begin) / _PARTS
    return [lanes.begin + step * number for number in range(_PARTS + 1)]


def tick(ago: float) -> str:
    """Write how long ago a moment of the axis is."""
    minutes = round(ago / 60)
    if not minutes:
        return "now"
    return f"{minutes // 60} h ago" if minutes % 60 == 0 else f"{minutes} min ago"


def span_text(span: Span, wall: float) -> str:
    """Say who held it, when and for how long, if that is known, how it ended and why."""
    holder = span.holder
    who = f"{holder.hostname or 'unknown host'} : {'?' if holder.pid is None else holder.pid}"
    held = duration((wall if span.end is None else span.end) - span.start)
    when = f"from {utc(span.start)} for {held}" if span.begun else "since when is unknown"
    by = f" by {span.by}" if span.by else ""
    why = f": {span.why}" if span.why else ""
    end = _WORDS.get(span.how, span.how)
    return plain(f"{who}, {when}, {end}{by}{why}")


def lane_text(lane: Lane, wall: float) -> str:
    """Say what a lane shows, its newest holders first."""
    count = len(lane.spans)
    newest = [span_text(span, wall) for span in reversed(lane.spans[-_MOST_SPOKEN:])]
    many = f"Held {count} times. The newest: " if count > 1 else ""
    return many + "; ".join(newest)
