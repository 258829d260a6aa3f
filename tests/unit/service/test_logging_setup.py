"""The log of the services: what strangers have others say in it is bounded, and counted."""

from __future__ import annotations

import logging

import pytest

from lockclient.service import logging_setup
from lockclient.service.logging_setup import MAX_OTHERS_CHARS, RateFilter


def test_beyond_a_few_a_minute_records_are_counted_and_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(logging_setup, "monotonic", lambda: now[0])
    rate = RateFilter(3)

    def passed(text: str) -> str | None:
        record = logging.LogRecord("waitress", logging.ERROR, "", 0, "%s", (text,), None)
        return record.getMessage() if rate.filter(record) else None

    assert [passed("x") for _ in range(10)] == ["x"] * 3 + [None] * 7
    now[0] += 61
    assert passed("y") == "y (7 more of this logger were left out before.)"
    assert passed("y" * 9999) == "y" * MAX_OTHERS_CHARS
