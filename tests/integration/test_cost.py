"""What a lock costs, in counts that no noise can move."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support.processes import run_to_end

MOST_CALLS = 85
MOST_FUNCTIONS, MOST_FILES = 46, 23
PROGRAM = Path(__file__).with_name("calls_program.py")


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_lock_and_unlock_makes_few_calls(
    settings: Settings, where: str, figure: Callable[[str], None]
) -> None:
    found = run_to_end(sys.executable, PROGRAM, settings.url(), where)
    calls = float(found.stdout.split()[-1])
    figure(f"{calls:.1f} calls of Python functions outside gRPC, from the {where} thread")
    assert calls <= MOST_CALLS, found.stdout


def test_an_uncontended_acquire_passes_few_functions(
    settings: Settings, figure: Callable[[str], None]
) -> None:
    found = run_to_end(sys.executable, PROGRAM, settings.url(), "acquire")
    sentence = found.stdout.splitlines()[-1]
    figure(sentence)
    functions, files = (int(word) for word in sentence.split() if word.isdecimal())
    assert functions <= MOST_FUNCTIONS, found.stdout
    assert files <= MOST_FILES, found.stdout
