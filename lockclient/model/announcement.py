"""Unlockers' announcements. Any client may have written one, so reading never raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lockclient.model.fields import json_object


def announced(announcement: str) -> dict[str, Any]:
    return json_object(announcement.encode(errors="replace")) or {}


def announced_at(announcement: str) -> float | None:
    """Return when it was written, by the unlocker's wall clock; None: missing or no time."""
    return _time(announcement, "now")


def started_at(announcement: str) -> float | None:
    """Return when the unlocker started, by its wall clock; None: missing or no time."""
    return _time(announcement, "started_at")


def _time(announcement: str, key: str) -> float | None:
    value = announced(announcement).get(key)
    # A few thousand years at most, and no NaN.
    return value if isinstance(value, (int, float)) and abs(value) < 1e11 else None


CLOCKS_UNKNOWN, CLOCKS_DIFFER = "unknown", "differ"
"""Values of `clocks` in the announcement of an unlocker that can't trust its wall clock: no member
of the store returns its time, or the two clocks differ."""
_CLOCK_TROUBLES = {
    CLOCKS_UNKNOWN: "no server of the store tells its time",
    CLOCKS_DIFFER: "its clock differs from the store's",
}


def clock_troubles(announcements: Iterable[str]) -> str:
    """Return why none of these unlockers can trust its wall clock; empty if one can."""
    clocks = [str(announced(announcement).get("clocks")) for announcement in announcements]
    troubles = [_CLOCK_TROUBLES.get(value, "") for value in clocks]
    return troubles[0] if troubles and all(troubles) else ""


def failing_recipients(announcements: Iterable[str]) -> list[str]:
    """Return the names of recipients of notifications that have failed for ten minutes."""
    fields = (announced(announcement).get("failing") for announcement in announcements)
    names = {name for failing in fields if isinstance(failing, list) for name in failing}
    return sorted(name for name in names if isinstance(name, str))
