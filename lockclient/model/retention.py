"""For how long the record of a removal is kept, in seconds and in words; a test compares docs/."""

from __future__ import annotations

from typing import Final

from lockclient.text.durations import period

RECORD_RETENTION_S: Final = 7 * 86400

_NUMBERS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _in_words(seconds: float) -> str:
    days, rest = divmod(seconds, 86400)
    if rest or not days:
        return period(seconds)
    number = _NUMBERS[int(days) - 1] if days <= len(_NUMBERS) else f"{days:g}"
    return f"{number} day{'s' * (days != 1)}"


RECORD_RETENTION: Final = _in_words(RECORD_RETENTION_S)
"""In words: `seven days`."""
