"""A clock that a test sets."""

from __future__ import annotations


class FakeClock:
    """A monotonic clock that stands still: a test changes `now`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
