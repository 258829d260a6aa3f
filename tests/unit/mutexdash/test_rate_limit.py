"""What happened within the last minute is counted, and forgotten afterwards."""

from __future__ import annotations

import pytest

from mutexdash.security.rate_limit import RateLimits


def test_a_minute_later_it_is_as_if_nothing_had_been(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("mutexdash.security.rate_limit.monotonic", lambda: now[0])
    counts = RateLimits()
    assert [counts.hit(2, "ann", "here") for _ in range(3)] == [True, True, False]
    assert not counts.full(2, "ann", "there")
    now[0] += 61
    assert not counts.full(2, "ann", "here")
    assert counts.hit(2, "ann", "here")
    now[0] += 30
    assert counts.hit(2, "ann", "here")
    now[0] += 31
    assert not counts.full(2, "ann", "here"), "one of the two is over"
    assert counts.hit(2, "ann", "here")
    now[0] += 61
    assert not counts.full(2, "ann", "here")
    assert not counts._times, "whoever makes up names does not fill the memory"
