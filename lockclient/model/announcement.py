"""An unlocker's announcement of itself (its heartbeat), which anybody may have written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lockclient.model.fields import json_object


def announced(announcement: str) -> dict[str, Any]:
    """Return what an unlocker says of itself; empty if it can't be read."""
    return json_object(announcement.encode(errors="replace")) or {}


def announced_at(announcement: str) -> float | None:
    """Return when it was written, by the unlocker's wall clock; None if that can't be a moment."""
    said = announced(announcement).get("now")
    # Some thousand years, no NaN.
    return said if isinstance(said, (int, float)) and abs(said) < 1e11 else None


CLOCKS_UNKNOWN, CLOCKS_DIFFER = "unknown", "differ"
"""What an unlocker announces as `clocks` while it can't rely on its wall clock: no member of the
store tells its time, or its time is another one."""


def clock_trouble(announcement: str) -> str:
    """Say in a sentence why an unlocker can't rely on its wall clock; empty if it can."""
    return {
        CLOCKS_UNKNOWN: "no server of the store tells its time",
        CLOCKS_DIFFER: "its clock differs from the store's",
    }.get(str(announced(announcement).get("clocks")), "")


def clock_troubles(announcements: Iterable[str]) -> str:
    """Say why none of these unlockers can rely on its wall clock; empty if one can."""
    why = [clock_trouble(announcement) for announcement in announcements]
    return why[0] if why and all(why) else ""


def failing_recipients(announcements: Iterable[str]) -> list[str]:
    """Return the names of recipients of notifications that have failed for ten minutes."""
    said = (announced(announcement).get("failing") for announcement in announcements)
    names = {name for failing in said if isinstance(failing, list) for name in failing}
    return sorted(name for name in names if isinstance(name, str))
