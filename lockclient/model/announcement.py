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


def announced_conditions(announcement: str) -> dict[str, str]:
    """Return what the unlocker says is wrong with it: sentences by the codes of kinds."""
    found = announced(announcement).get("conditions")
    pairs = found.items() if isinstance(found, dict) else ()
    return {code: text for code, text in pairs if isinstance(text, str)}


def failing_recipients(announcements: Iterable[str]) -> list[str]:
    """Return the names of recipients of notifications that have failed for ten minutes."""
    return _recipients(announcements, "failing")


def damaged_recipients(announcements: Iterable[str]) -> list[str]:
    """Return the names of recipients of which no unlocker can read what they were sent."""
    return _recipients(announcements, "damaged")


def _recipients(announcements: Iterable[str], field: str) -> list[str]:
    fields = (announced(announcement).get(field) for announcement in announcements)
    names = {name for found in fields if isinstance(found, list) for name in found}
    return sorted(name for name in names if isinstance(name, str))
