"""Notifications in virtual time: seeds of faults break no rule, and give the same history again.

In processes of their own, since a run gives the library's modules other clocks and threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Figure

CHECKOUT = Path(__file__).parents[3]


def simulate(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.notifying", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=7200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("first", [1, 21, 41])
def test_nobody_is_notified_too_little_too_often_or_wrongly(first: int) -> None:
    assert simulate("--seeds", "20", "--seed", str(first)).startswith("20 seeds, 0 broke")


@pytest.mark.soak
def test_nothing_breaks_in_two_thousand_seeds(figure: Figure) -> None:
    workers = str(os.cpu_count() or 1)
    figure(simulate("--seeds", "2000", "--seed", "61", "--workers", workers).strip())


def test_a_seed_gives_the_same_history() -> None:
    one, other = simulate("--replay", "7"), simulate("--replay", "7")
    assert one == other
    assert one.count("ClusterMutex") > 5
