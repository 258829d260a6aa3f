"""An unlocker's announcement of itself (its heartbeat), which anybody may have written."""

from __future__ import annotations

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
