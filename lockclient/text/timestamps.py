"""Wall-clock times as people read them: in UTC, and how far away they are."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache

from lockclient.text.durations import duration


@lru_cache(4096)  # a page with a hundred locks has seven times each, mostly those of before
def utc(stamp: float | None) -> str:
    if stamp is None:
        return "an unknown time"
    return datetime.fromtimestamp(stamp, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def distance(stamp: float, wall: float) -> str:
    """Write how far a wall-clock time is from `wall`: `in 3 s`, `3 s ago`."""
    return f"in {duration(stamp - wall)}" if stamp > wall else f"{duration(wall - stamp)} ago"
