"""Real servers and programs broken by a seed, and checked: a short `make faults`."""

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
    [
        ("etcd", 30, 1),
        ("valkey", 20, 1),
        ("bucket", 20, 1),
        *soaking(("etcd", 300, 2), ("valkey", 120, 1), ("bucket", 120, 1)),
    ],
)
def test_no_promise_is_broken(place: str, seconds: int, seed: int, figure: Figure) -> None:
    """A machine so busy that nobody gets a lock in that time has four times as long."""
    for longer in (1, 4):
        words = [place, "--seconds", str(seconds * longer), "--seed", str(seed)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.breaking", *words],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=seconds * longer + 600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if ": 0 acquisitions" not in done.stdout:
            figure(done.stdout.strip())
            return
    raise AssertionError(f"Nobody got a lock: {done.stdout}")
