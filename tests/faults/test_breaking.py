"""Real servers and programs, broken by a seed, and what the checker finds: `make faults`, a cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import Figure
from tests.support.soak import soaking

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("place", "seconds", "seed"),
    [("etcd", 30, 1), *soaking(("etcd", 300, 2), ("valkey", 120, 1), ("bucket", 120, 1))],
)
def test_no_promise_is_broken(place: str, seconds: int, seed: int, figure: Figure) -> None:
    words = [place, "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.breaking", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=seconds + 600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figure(done.stdout.strip())
