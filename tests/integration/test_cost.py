"""The cost of a lock, in counts that noise can't change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support import valkey_servers
from tests.support.processes import run_to_end

MOST_CALLS = 85
VALKEY_MOST_FUNCTIONS, VALKEY_MOST_FILES = 61, 24
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
    functions, files = passed(settings.url(), figure)
    assert functions <= MOST_FUNCTIONS
    assert files <= MOST_FILES


@pytest.mark.parametrize("number", [1, 3])
def test_an_uncontended_acquire_on_valkey_passes_few_functions(
    tmp_path: Path, number: int, figure: Callable[[str], None]
) -> None:
    """Three servers cost no function more than one."""
    with valkey_servers.running(tmp_path, number) as servers, servers.store() as store:
        functions, files = passed(store.location.url(), figure)
    assert functions <= VALKEY_MOST_FUNCTIONS
    assert files <= VALKEY_MOST_FILES


def passed(url: str, figure: Callable[[str], None]) -> tuple[int, int]:
    """Return how many functions, in how many files, an acquire passes; print which."""
    found = run_to_end(sys.executable, PROGRAM, url, "acquire")
    print(found.stdout)
    sentence = found.stdout.splitlines()[-1]
    figure(sentence)
    functions, files = (int(word) for word in sentence.split() if word.isdecimal())
    return functions, files
