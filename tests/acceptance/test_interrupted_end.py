"""Ctrl-C at each step between the request and the release, in a program that then ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support.etcd_binary import Etcdctl
from tests.support.processes import Figure
from tests.support.soak import soaking

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.promise(number=6)
@pytest.mark.skipif(
    sys.version_info[:2] not in ((3, 11), (3, 12)),
    reason="3.10 has other instructions; 3.13 traces none of a code's first run",
)
@pytest.mark.parametrize("every", [7, *soaking(1)])
@pytest.mark.parametrize("kind", ["python", "multiprocessing", "run", "lock"])
def test_the_end_waits_for_the_withdrawal(
    kind: str, every: int, settings: Settings, etcdctl: Etcdctl, figure: Figure
) -> None:
    """No interrupted process leaves its lock; only `lock` that ends well leaves its own."""
    words = [sys.executable, "-m", "tests.acceptance.interrupted_end", kind, str(every)]
    environment = {**os.environ, "CLUSTERMUTEX_URL": settings.url()}
    done = subprocess.run(
        words, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    places = {name: f"status {status}, {where}" for name, status, where in rows}
    kept = {name for name, status, _ in rows if kind == "lock" and status == "0"}
    keys = etcdctl("get", "--prefix", "--keys-only", f"{settings.root}/locks/").splitlines()
    left = {key.split("/")[-2] for key in keys if key.endswith("/uuid")} - kept
    assert [places[name] for name in sorted(left)] == []
    assert len(rows) > 40 / every
    figure(f"{len(rows)} programs ({kind}) interrupted, 0 locks left")
