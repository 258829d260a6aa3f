"""Ctrl-C by real signals, at random moments of taking, waiting, giving up and letting go."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import Settings
from tests.etcds import Etcdctl
from tests.processes import Figure, wait_until

WORKER = Path(__file__).with_name("interrupt_worker.py")
PROCESSES, INTERRUPTS = 4, 25


@pytest.fixture
def workers(settings: Settings, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that contend for one lock, ended with the test."""
    words = [sys.executable, str(WORKER), settings.url(), "x", str(tmp_path / "stop")]
    team = []
    for number in range(PROCESSES):
        with (tmp_path / f"said-{number}").open("w") as output:
            team.append(subprocess.Popen(words, stdout=output, text=True))
    yield team
    for each in team:
        each.kill()
        each.wait()


def test_nothing_is_left_behind(
    workers: list[subprocess.Popen[str]],
    settings: Settings,
    etcdctl: Etcdctl,
    tmp_path: Path,
    figure: Figure,
) -> None:
    """Though the processes live on, so that no ticket of theirs would ever expire."""
    choose = random.Random(7)

    def said(number: int, word: str) -> int:
        return (tmp_path / f"said-{number}").read_text().count(word)

    prefix = f"{settings.root}/"
    wait_until(lambda: all(said(n, "begun") for n in range(PROCESSES)), what="all to begin")
    interrupts = 0
    for round_ in range(INTERRUPTS):
        for number, worker in enumerate(workers):
            time.sleep(choose.uniform(0.001, 0.03))
            worker.send_signal(signal.SIGINT)
            interrupts += 1
            wait_until(
                lambda: (
                    said(number, "interrupted") > round_  # noqa: B023
                    or worker.poll() is not None  # noqa: B023
                ),
                what="the interrupt to be dealt with",
            )
            assert worker.poll() is None, "an interrupt came out where none was expected"
    (tmp_path / "stop").touch()
    stopped = time.monotonic()
    wait_until(lambda: not etcdctl("get", "--prefix", prefix), 60, "the last lock and ticket to go")
    figure(
        f"{interrupts} interrupts of {PROCESSES} processes left nothing, "
        f"{time.monotonic() - stopped:.1f} s after the last"
    )
    assert all(each.poll() is None for each in workers)
