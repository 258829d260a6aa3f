"""Ctrl-C by real signals, at random moments of taking, waiting, giving up and letting go."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support.etcd_binary import Etcdctl
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking

WORKER = Path(__file__).with_name("interrupt_worker.py")
NAMES = ("shared", "shared", "shared", "mine", "yours")
"""The locks of the workers: some contend for one, some have theirs to themselves."""
KINDS = ("KeyboardInterrupt", "ValueError", "TimeoutError", "KeyboardInterrupt", "ValueError")
"""What the handler of the signal raises in each of them."""


class Worker:
    """A process that takes and lets go, and its interrupts."""

    def __init__(self, settings: Settings, name: str, kind: str, said: Path) -> None:
        words = [sys.executable, str(WORKER), settings.url(), name, kind]
        self._said = said
        self.sent = 0
        with said.open("w") as output:
            self.process = subprocess.Popen(words, stdout=output, text=True)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.sent += 1

    def said(self) -> list[str]:
        """Return its lines: one as it has begun, one for each interrupt that it has dealt with."""
        assert self.process.poll() is None, "an interrupt came out where none was expected"
        return self._said.read_text().splitlines()

    def dealt(self) -> bool:
        """Tell whether it has begun and has dealt with all interrupts."""
        return len(self.said()) == 1 + self.sent


@pytest.fixture
def workers(settings: Settings, tmp_path: Path) -> Iterator[list[Worker]]:
    team = []
    for number, (name, kind) in enumerate(zip(NAMES, KINDS, strict=True)):
        team.append(Worker(settings, name, kind, tmp_path / f"said-{number}"))
    yield team
    for worker in team:
        worker.process.kill()
        worker.process.wait()


@pytest.mark.promise(number=6)
@pytest.mark.parametrize("rounds", [25, *soaking(80)])
def test_nothing_is_left_behind(
    rounds: int,
    workers: list[Worker],
    settings: Settings,
    etcdctl: Etcdctl,
    figure: Figure,
) -> None:
    """Though the processes live on, so that no ticket of theirs would ever expire."""
    choose = random.Random(7)
    for worker in workers:
        wait_until(worker.dealt, what="all to begin")
    for _ in range(rounds):
        for worker in workers:
            # Not before it has dealt with the last one: what it does then is not under test.
            wait_until(worker.dealt, what="the interrupt to be dealt with")
            time.sleep(choose.uniform(0.0005, 0.01))
            worker.interrupt()
    for worker in workers:
        wait_until(worker.dealt, what="the last interrupt to be dealt with")
        worker.process.send_signal(signal.SIGUSR1)
    stopped = time.monotonic()
    for kind in ("locks", "queue"):
        prefix = f"{settings.root}/{kind}/"
        wait_until(lambda: not etcdctl("get", "--prefix", prefix), 60, f"the last of the {kind}")  # noqa: B023
    hit = Counter(line for worker in workers for line in worker.said()[1:])
    where = ", ".join(f"{count} {word}" for word, count in hit.most_common())
    figure(
        f"{hit.total()} signals to {len(workers)} processes: {where}; orphans 0, "
        f"{time.monotonic() - stopped:.1f} s after the last"
    )
    assert hit.total() == rounds * len(workers)
    assert hit["interrupted in outside"] < hit.total() / 2
