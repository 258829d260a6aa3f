"""Python is broken around real clients, by a seed: a short `make process-faults`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.breaking.process.__main__ import overlaps
from tests.support.processes import Figure
from tests.support.soak import soaking

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(("cases", "seed"), [(16, 1), *soaking((1000, 1000))])
def test_broken_processes_break_no_promise(cases: int, seed: int, figure: Figure) -> None:
    words = ["--cases", str(cases), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.breaking.process", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=cases * 10 + 300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figure(done.stdout.strip())


def test_a_push_after_the_next_holder_entered_is_found() -> None:
    def notes(*whats: str) -> list[dict[str, object]]:
        steps = (step.split() for step in whats)
        return [{"what": what, "lock": "a", "token": int(token)} for what, token in steps]

    fine = notes("enter 1", "pushes 1", "enter 2", "pushed 1", "pushes 2", "pushed 2")
    assert list(overlaps(fine)) == [], "it may have succeeded before"
    bad = notes("enter 1", "enter 2", "pushes 1", "pushed 1")
    assert list(overlaps(bad)) == ["a: token 1 was pushed when 2 had entered"]
