"""The simulation: the same again by the same seed, and a failure with few steps.

In a process of its own, since it gives the library's modules other clocks and threads.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.__main__ import shrunk
from tests.simulation.plan import parse, token
from tests.support.processes import Figure

CHECKOUT = Path(__file__).parents[3]


def simulate(*words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.promise(number=3)
def test_nothing_breaks(figure: Figure) -> None:
    """Other seeds each time would be a test that fails now and then: `make soak` has those."""
    said = simulate("--seconds", "10", "--seed", "1")
    assert re.match(r"\d+ runs, \d+ distinct orders", said)
    figure(said.strip())


@pytest.mark.soak
def test_nothing_breaks_for_long(figure: Figure) -> None:
    figure(simulate("--seconds", "300", "--seed", "1000000").strip())


def test_a_seed_gives_the_same_history(tmp_path: Path) -> None:
    histories = [tmp_path / "one", tmp_path / "other"]
    for file in histories:
        simulate("--replay", "2", "--history", str(file))
    one, other = (file.read_text() for file in histories)
    assert one == other
    assert one.count('"acquired"') > 5


def test_a_part_of_a_plan_is_a_plan() -> None:
    assert parse(token(7, None)) == (7, None)
    assert parse(token(7, [0, 3])) == (7, [0, 3])
    assert simulate("--replay", "7:0,1") == ""


def test_a_failure_is_shrunk_to_the_needed_steps() -> None:
    def fails(kept: Sequence[int]) -> bool:
        return {3, 11} <= set(kept)

    assert shrunk(range(16), fails, float("inf")) == [3, 11]
