"""The pauses between retries, by decorrelated jitter."""

from __future__ import annotations

import os


class Backoff:
    """Growing random pauses, so that clients which began together do not retry together.

    Args:
        first: the most seconds of the first pause.
        least, most: seconds of the others.
    """

    __slots__ = ("_first", "_last", "_least", "_most")

    def __init__(self, first: float, least: float, most: float) -> None:
        self._first, self._least, self._most = first, least, most
        self._last = 0.0

    def next(self) -> float:
        """Return the seconds of the next pause."""
        if not self._last:
            self._last = self._least
            return _between(0.0, self._first)
        self._last = min(_between(self._least, 3 * self._last), self._most)
        return self._last


def _between(low: float, high: float) -> float:
    # Without `random`, an import that each program would pay for.
    return low + (high - low) * int.from_bytes(os.urandom(4), "big") / 2**32
