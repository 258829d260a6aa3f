"""Whoever may write an unlocker's announcement may write anything."""

from __future__ import annotations

import pytest

from lockclient.model.announcement import announced_at


@pytest.mark.parametrize("said", [f"1{'0' * 400}", "NaN", "Infinity", '"1"', "null", "1e400"])
def test_what_is_no_time_is_not_compared(said: str) -> None:
    assert announced_at(f'{{"now": {said}}}') is None
    assert announced_at('{"now": 1.8e9}') == 1.8e9
