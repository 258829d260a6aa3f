"""Histories: processes that write down when they had which lock, and who looks for overlaps.

As a program, `histories.py URL FILE NAMES AUTO_UNLOCK TIMEOUTS THREADS LASTING`, it takes locks and
writes lines: "got NAME UUID TOKEN TIME", "pushed NAME UUID TIME" for each push that was confirmed,
then "gave NAME UUID TIME". The time is CLOCK_MONOTONIC, which is one clock for all processes of a
machine; that of a push is from before it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from lockclient import ClusterMutex, LockLost, Settings, StoreUnavailable, open_store

CHECKOUT = Path(__file__).parents[2]


class Hold(NamedTuple):
    """One time that somebody had a lock: from its return to the last moment that was safe."""

    got: float
    end: float
    uuid: str
    token: int = 0


def overlaps(holds: list[Hold]) -> list[tuple[Hold, Hold]]:
    """Return the neighbours of which the second began before the first was over."""
    return [(one, next_) for one, next_ in pairwise(sorted(holds)) if next_.got < one.end]


@dataclass(frozen=True)
class Plan:
    """What workers do.

    Attributes:
        url: of the store.
        names: of the locks.
        auto_unlock: seconds that a hold is safe without a push.
        timeouts: seconds for which they want a lock, one or the other.
        threads: in each process.
        lasting: seconds for which every fifth hold goes on, at most, by pushes.
    """

    url: str
    names: str
    auto_unlock: float
    timeouts: tuple[float, float]
    threads: int = 1
    lasting: float = 0.0


class Worker:
    """A process, its file, and until when it ran."""

    def __init__(self, plan: Plan, file: Path) -> None:
        self.file = file
        self.killed_at = float("inf")
        self._plan = plan
        timeouts = ",".join(map(str, plan.timeouts))
        words = [plan.url, file, plan.names, plan.auto_unlock, timeouts, plan.threads, plan.lasting]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.histories", *map(str, words)], cwd=CHECKOUT
        )

    def kill(self) -> None:
        """End it where it stands; from now on it does nothing under any lock."""
        self.process.kill()
        self.process.wait()
        self.killed_at = min(self.killed_at, time.monotonic())

    def holds(self) -> dict[str, list[Hold]]:
        """What it wrote down. Without another word a hold ends when its time is up."""
        found: dict[str, dict[str, Hold]] = {name: {} for name in self._plan.names}
        # There is no file if it was killed before it had begun.
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            what, name, uuid, *numbers = line.split()
            at = float(numbers[-1])
            if what == "got":
                end = min(at + self._plan.auto_unlock, self.killed_at)
                found[name][uuid] = Hold(at, end, uuid, int(numbers[0]))
            elif what == "pushed" and uuid in found[name]:
                end = min(at + self._plan.auto_unlock, self.killed_at)
                found[name][uuid] = found[name][uuid]._replace(end=end)
            # It may be one that was not healthy when it was got, or not when it was given.
            elif (hold := found[name].get(uuid)) is not None:
                found[name][uuid] = hold._replace(end=min(hold.end, at))
        return {name: list(holds.values()) for name, holds in found.items()}


def main(
    url: str, path: str, names: str, auto_unlock: str, timeouts: str, threads: str, lasting: str
) -> None:
    """Take, hold for a moment or longer, let go; or be too impatient to get it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = open_store(Settings.load(url))

    def note(*words: object) -> None:
        """Write one line in one step, so that a kill can't cut it in two."""
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    def work() -> None:
        choose = random.Random()
        while True:
            mutex = ClusterMutex(
                choose.choice(names),
                expected_runtime=1,
                auto_unlock_after=float(auto_unlock),
                store=store,
            )
            with suppress(LockLost, StoreUnavailable):
                if mutex.acquire(timeout=float(choose.choice(timeouts.split(",")))):
                    hold(mutex, choose)

    def hold(mutex: ClusterMutex, choose: random.Random) -> None:
        # The time first: whoever is frozen after it and wakes too late is told so by `healthy`.
        got, uuid, token = time.monotonic(), mutex.uuid, mutex.record.fencing_token
        if mutex.healthy:
            note("got", mutex.name, uuid, token, got)
        time.sleep(choose.uniform(0, 0.02))
        with suppress(LockLost, StoreUnavailable):
            if choose.random() < 0.2:
                push(mutex)
                until = got + choose.uniform(0, float(lasting))
                while time.monotonic() < until:
                    time.sleep(float(auto_unlock) / 10)
                    push(mutex)
        # Before the release: whoever is killed in the middle of it may have let go already.
        note("gave", mutex.name, uuid, time.monotonic())
        mutex.release()

    def push(mutex: ClusterMutex) -> None:
        pushed = time.monotonic()
        mutex.alive(force=True)
        note("pushed", mutex.name, mutex.uuid, pushed)

    for _ in range(int(threads)):
        threading.Thread(target=work).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
