"""When did which process have which lock? Processes are killed and frozen; no two ever overlap."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockclient import Settings
from lockclient.cli.setup.store_server import fetch
from tests.acceptance.history_worker import AUTO_UNLOCK, NAMES
from tests.support.processes import Figure, start_service, wait_until
from tests.support.soak import soaking

WORKER = Path(__file__).with_name("history_worker.py")
PROCESSES = 4


@dataclass
class Hold:
    """One time that somebody had a lock: from its return to the last moment that was safe."""

    token: int
    got: float
    end: float


class Worker:
    """A process, its file, and until when it ran."""

    def __init__(self, settings: Settings, file: Path) -> None:
        self.file = file
        self.killed_at = float("inf")
        self.process = subprocess.Popen([sys.executable, str(WORKER), settings.url(), str(file)])

    def kill(self) -> None:
        """End it where it stands; from now on it does nothing under any lock."""
        self.process.kill()
        self.process.wait()
        self.killed_at = min(self.killed_at, time.monotonic())

    def holds(self) -> dict[str, list[Hold]]:
        """What it wrote down. Without another word a hold ends when its time is up."""
        found: dict[str, list[Hold]] = {name: [] for name in NAMES}
        by_token: dict[str, Hold] = {}
        if not self.file.exists():  # killed before it had begun
            return found
        for line in self.file.read_text().splitlines():
            what, *words = line.split()
            if what == "got":
                name, token, got = words
                end = min(float(got) + AUTO_UNLOCK, self.killed_at)
                by_token[token] = Hold(int(token), float(got), end)
                found[name].append(by_token[token])
            elif what == "gave":
                token, gave = words
                # It may be one that was not healthy when it was got, or not when it was given.
                if hold := by_token.get(token):
                    hold.end = min(hold.end, float(gave))
        return found


def overlaps(holds: list[Hold]) -> list[tuple[Hold, Hold]]:
    """Return the neighbours of which the second began before the first was over."""
    line = sorted(holds, key=lambda hold: hold.got)
    return [(one, next_) for one, next_ in itertools.pairwise(line) if next_.got < one.end]


@pytest.mark.promise(number=1)
@pytest.mark.promise(number=4)
@pytest.mark.parametrize("rounds", [1, *soaking(3)])
def test_no_two_hold_one_lock_at_once(
    rounds: int, settings: Settings, tmp_path: Path, figure: Figure
) -> None:
    """And the tokens rise in the order in which the lock was had."""
    choose = random.Random(11)
    began = time.monotonic()
    files = (tmp_path / f"history-{number}" for number in itertools.count())
    with start_service(
        ["unlocker", "--listen", "127.0.0.1:0", "--url", settings.url()]
    ) as unlocker:
        wait_until(lambda: fetch(unlocker.url, "/readyz")[0] == 200, what="the unlocker")
        workers = [Worker(settings, next(files)) for _ in range(PROCESSES)]
        everyone = list(workers)
        try:
            wait_until(lambda: all(worker.file.exists() for worker in workers), what="all workers")
            for _ in range(rounds):
                time.sleep(choose.uniform(0.3, 0.8))
                victim = workers.pop(0)
                victim.kill()
                workers.append(Worker(settings, next(files)))
                everyone.append(workers[-1])
                # Frozen for longer than its locks are safe, one goes on as if nothing had been.
                frozen = workers[0].process
                frozen.send_signal(signal.SIGSTOP)
                time.sleep(AUTO_UNLOCK + choose.uniform(0.2, 0.5))
                frozen.send_signal(signal.SIGCONT)
            time.sleep(1)
        finally:
            for worker in workers:
                worker.kill()
    total = 0
    for name in NAMES:
        holds = [hold for worker in everyone for hold in worker.holds()[name]]
        assert overlaps(holds) == []
        tokens = [hold.token for hold in sorted(holds, key=lambda had: had.got)]
        assert tokens == sorted(set(tokens))
        total += len(holds)
    assert total > 50
    figure(
        f"{total} holds in {time.monotonic() - began:.0f} s, with {rounds} processes killed and "
        f"{rounds} frozen: no overlap"
    )
