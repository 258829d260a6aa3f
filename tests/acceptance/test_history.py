"""When did which process have which lock? Processes are killed and frozen; no two ever overlap."""

from __future__ import annotations

import itertools
import random
import signal
import time
from pathlib import Path

import pytest

from lockclient import Settings
from tests.support.histories import Plan, Worker, overlaps
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking
from tests.support.unlocker_process import unlocker, when_ready

PROCESSES = 4
AUTO_UNLOCK = 2.0


@pytest.mark.promise(number=1)
@pytest.mark.promise(number=4)
@pytest.mark.parametrize("rounds", [1, *soaking(3)])
def test_no_two_hold_one_lock_at_once(
    rounds: int, settings: Settings, tmp_path: Path, figure: Figure
) -> None:
    """And the tokens rise in the order in which the lock was had."""
    choose = random.Random(11)
    began = time.monotonic()
    plan = Plan(settings.url(), "abcdefgh", AUTO_UNLOCK, (0.5, 60), threads=2)
    files = (tmp_path / f"history-{number}" for number in itertools.count())
    with when_ready(unlocker(settings)):
        workers = [Worker(plan, next(files)) for _ in range(PROCESSES)]
        everyone = list(workers)
        try:
            wait_until(lambda: all(worker.file.exists() for worker in workers), what="all workers")
            for _ in range(rounds):
                time.sleep(choose.uniform(0.3, 0.8))
                victim = workers.pop(0)
                victim.kill()
                workers.append(Worker(plan, next(files)))
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
    for name in plan.names:
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
