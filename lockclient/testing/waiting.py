"""Waiting for what happens in other threads and programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], timeout: float = 90, what: str = "") -> T:
    """Return the condition's value as soon as it is true; fail after `timeout` seconds."""
    until = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout} s in vain for {what or condition}")
        time.sleep(0.02)
