"""The timeline: who held which lock when, since this process started, as lanes on one axis."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK
from lockclient.model.ticket import Ticket
from lockclient.overview.listed_locks import RELEASED, Ended
from lockclient.overview.lock_status import status_of
from lockclient.text.durations import duration
from lockclient.text.escaping import plain
from lockclient.text.timestamps import utc
from mutexdash.data.list_parameters import Query
from mutexdash.data.snapshot import DatedSnapshot
from mutexdash.data.snapshot_refresh import Live
from mutexdash.data.waits import Waits

HELD: Final = "held"
DEFAULT_SPAN_S: Final = 3600.0
MAX_LANES: Final = 50
MAX_WAITS: Final = 5
"""Waiters that a lane shows, the first of the queue."""
SPANS_S: Final = ((900, "15 min"), (3600, "1 h"), (6 * 3600, "6 h"), (24 * 3600, "24 h"))
"""The lengths of the axis, in seconds; each can be divided by three."""
_PARTS: Final = 3
_MAX_SPOKEN: Final = 3
_ENDS: Final = {
    HELD: "still held",
    RELEASED: "released",
    AUTO_UNLOCK: "auto-unlocked",
    FORCE_UNLOCK: "force-unlocked",
}


@dataclass(frozen=True, slots=True)
class Span:
    """One holder's time with a lock, Unix seconds; `end` None: it still holds it.

    `how` is `held`, `released`, `auto-unlock` or `force-unlock`; `left` and `width` are parts of
    the axis, 0 to 1; `verdict` is that of a held lock.
    """

    holder: Holder
    start: float
    end: float | None
    how: str
    left: float
    width: float
    by: str = ""
    why: str = ""
    verdict: str = ""

    @property
    def begun(self) -> bool:
        """True if the start is known; else `start` is the begin of the axis."""
        return self.holder.locked_at is not None


class Wait(NamedTuple):
    """A waiter, with the start of its wait as a fraction of the axis, 0 to 1."""

    ticket: Ticket
    left: float


@dataclass(slots=True)
class Lane:
    """One lock, its holders from the oldest to the newest, and the first of its waiters now;
    `more_waits` others have no room."""

    name: str
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    more_waits: int = 0


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes between `begin` and `end` (Unix seconds): held locks in the list's order, then
    the others; `more` had no room."""

    begin: float
    end: float
    lanes: Sequence[Lane]
    more: int

    @property
    def vague(self) -> bool:
        return not all(span.begun for lane in self.lanes for span in lane.spans)


def lanes(
    live: Live,
    dated: DatedSnapshot,
    query: Query | None = None,
    *,
    span: float = DEFAULT_SPAN_S,
    most: int = MAX_LANES,
) -> Lanes:
    """Return `most` locks that were held in the last `span` seconds.

    Half of the room is for those that ended last, half for the most urgent ones of now, and each
    gets what the other leaves.
    """
    query = query or Query()
    search = query.search
    end, begin = dated.wall, dated.wall - span
    ended: dict[str, list[Ended]] = {}
    for holding in live.history.ended(begin):
        if search.finds(holding.holder, holding.how):
            ended.setdefault(holding.holder.name, []).append(holding)
    page = dated.snapshot.select(Query(query.text, per_page=most))
    urgent = [row.holder.name for row in page.items]
    held = {row.holder.name: row.holder for row in page.items}
    for name in ended:  # its holder of now may be far from urgent, or newer than the snapshot
        row = live.table.row(name)
        held.pop(name, None)
        if row is not None:
            status = status_of(row.holder, dated.judged_at)
            if search.finds(row.holder, *status.words):
                held[name] = row.holder
    chosen = _chosen(list(ended), urgent, most)
    waits = _first_waits(dated.snapshot.waits, chosen, begin, span)
    found = []
    # In the list's order; then free locks, the last one that ended first.
    for name in dict.fromkeys(name for name in (*urgent, *held, *ended) if name in chosen):
        lane = Lane(name)
        for holding in reversed(ended.get(name, ())):
            start = _start(holding.holder, begin, holding.at)
            place = _place(start, holding.at, begin, span)
            how, by, why = holding.how, holding.by, holding.why
            lane.spans.append(Span(holding.holder, start, holding.at, how, *place, by=by, why=why))
        if name in held:
            holder = held[name]
            start = _start(holder, begin, end)
            place = _place(start, end, begin, span)
            circle = name in dated.snapshot.waits.by_lock
            verdict = status_of(holder, dated.judged_at, deadlock=circle).verdict
            lane.spans.append(Span(holder, start, None, HELD, *place, verdict=verdict))
        lane.waits = waits.get(name, [])
        lane.more_waits = max(0, dated.snapshot.waiters.get(name, 0) - len(lane.waits))
        found.append(lane)
    more = page.total + len(ended.keys() - held.keys()) - len(chosen)
    return Lanes(begin, end, found, max(0, more))


def _first_waits(
    waits: Waits, names: Collection[str], begin: float, span: float
) -> dict[str, list[Wait]]:
    """Return the waiters of each of these locks, the longest waits first."""
    found: dict[str, list[Wait]] = {}
    for row in waits.waits:
        ticket = row.ticket
        if ticket.name in names and ticket.since is not None:
            lane = found.setdefault(ticket.name, [])
            if len(lane) < MAX_WAITS:
                lane.append(Wait(ticket, min(1.0, max(0.0, (ticket.since - begin) / span))))
    return found


def _chosen(ended: Sequence[str], held: Sequence[str], most: int) -> set[str]:
    chosen = dict.fromkeys(ended[: most // 2])
    for name in (*held, *ended):
        if len(chosen) >= most:
            break
        chosen[name] = None
    return set(chosen)


def _start(holder: Holder, begin: float, end: float) -> float:
    """Return when it was taken; the begin of the axis if that is unknown or wrong."""
    start = begin if holder.locked_at is None else holder.locked_at
    return min(start, end)


def _place(start: float, end: float, begin: float, span: float) -> tuple[float, float]:
    left = max(0.0, (start - begin) / span)
    return left, max(0.0, (end - begin) / span - left)


def ticks(lanes: Lanes) -> Sequence[float]:
    step = (lanes.end - lanes.begin) / _PARTS
    return [lanes.begin + step * number for number in range(_PARTS + 1)]


def tick(ago: float) -> str:
    minutes = round(ago / 60)
    if not minutes:
        return "now"
    return f"{minutes // 60} h ago" if minutes % 60 == 0 else f"{minutes} min ago"


def span_text(span: Span, wall: float) -> str:
    holder = span.holder
    who = f"{holder.hostname or 'unknown host'} : {'?' if holder.pid is None else holder.pid}"
    held = duration((wall if span.end is None else span.end) - span.start)
    when = f"from {utc(span.start)} for {held}" if span.begun else "start unknown"
    by = f" by {span.by}" if span.by else ""
    why = f": {span.why}" if span.why else ""
    end = _ENDS.get(span.how, span.how)
    return plain(f"{who}, {when}, {end}{by}{why}")


def wait_text(wait: Wait, wall: float) -> str:
    ticket = wait.ticket
    who = f"{ticket.hostname or 'unknown host'} : {'?' if ticket.pid is None else ticket.pid}"
    return plain(f"{who} has waited for {duration(wall - (ticket.since or wall))}")


def lane_text(lane: Lane, wall: float) -> str:
    """Describe a lane, its newest holders first."""
    count = len(lane.spans)
    newest = [span_text(span, wall) for span in reversed(lane.spans[-_MAX_SPOKEN:])]
    many = f"Held {count} times. The newest: " if count > 1 else ""
    return many + "; ".join(newest)
