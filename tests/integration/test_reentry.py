"""Reentrancy: a finalizer that releases a lock may run at any instruction of the library."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from lockclient import Settings
from tests.support.processes import run_to_end
from tests.support.soak import soaking

THREADS = {"MainThread", *(f"clustermutex-{kind}" for kind in ("timers", "urgent", "watch", "log"))}


@pytest.mark.parametrize("every", [40, *soaking(1)])
def test_finalizers_that_release_hang_no_thread(
    settings: Settings, every: int, figure: Callable[[str], None]
) -> None:
    program = "tests.integration.garbage_program"
    found = run_to_end(sys.executable, "-m", program, settings.url(), str(every), timeout=1800)
    lines = [line.split(maxsplit=1) for line in found.stdout.splitlines()]
    collected = {thread: int(number) for number, thread in lines}
    figure(f"garbage was collected at every {every}th of {collected['places']} instructions")
    assert collected.keys() >= THREADS
