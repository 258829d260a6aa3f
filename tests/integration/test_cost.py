"""What a lock costs, in counts that no noise can move."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support.processes import run_to_end

MOST_CALLS = 85


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_lock_and_unlock_makes_few_calls(
    settings: Settings, where: str, figure: Callable[[str], None]
) -> None:
    program = Path(__file__).with_name("calls_program.py")
    found = run_to_end(sys.executable, program, settings.url(), where)
    calls = float(found.stdout.split()[-1])
    figure(f"{calls:.1f} calls of Python functions outside gRPC, from the {where} thread")
    assert calls <= MOST_CALLS, found.stdout
