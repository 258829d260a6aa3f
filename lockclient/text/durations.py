"""Durations as people read and write them."""

from __future__ import annotations

import re

_SECONDS = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) *(d|h|min|m|s) *")
_EXAMPLES = "like 90, 90s, 5m or 1h30m"


def duration(seconds: float) -> str:
    """Write a duration in its two largest units; a negative one as 0 s."""
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


def period(seconds: float) -> str:
    """Write a fixed duration, as of a setting: `5 min`, `0.5 s`, `1 h 30 min`."""
    exact = round(seconds, 3)  # two stamps have a rest after that
    if exact < 60:
        return f"{exact:g} s"
    return re.sub(r" 0 \w+$", "", duration(exact))


def roughly(seconds: float) -> str:
    number, unit, *_ = duration(seconds).split()
    return f"{number} {unit}"


def parse_duration(text: str) -> float:
    """Read seconds, or numbers with units in the order d, h, m (or min), s; or raise ValueError."""
    stripped = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", stripped):
        return float(stripped)
    parts, end = [], 0
    while (found := _PART.match(stripped, end)) is not None:
        parts.append((float(found[1]), _SECONDS[found[2]]))
        end = found.end()
    units = [unit for _, unit in parts]
    if not parts or end < len(stripped) or units != sorted(set(units), reverse=True):
        raise ValueError(f"{text[:40]!r} is no duration: give seconds or units, {_EXAMPLES}.")
    return sum(number * unit for number, unit in parts)
