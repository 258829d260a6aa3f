"""A process that takes locks and writes down when it had them: `history_worker.py URL FILE`.

A line for each: "got NAME TOKEN TIME", then "gave TOKEN TIME". The time is
CLOCK_MONOTONIC, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time

from lockclient import ClusterMutex, LockLost, Settings, open_store

NAMES = tuple("abcdefgh")
AUTO_UNLOCK = 2.0


def note(*words: object) -> None:
    """Write one line in one step, so that a kill can't cut it in two."""
    os.write(FILE, (" ".join(map(str, words)) + "\n").encode())


def work() -> None:
    """Take, hold for a moment, let go; or be too impatient to get it."""
    choose = random.Random()
    while True:
        mutex = ClusterMutex(
            choose.choice(NAMES), expected_runtime=1, auto_unlock_after=AUTO_UNLOCK, store=STORE
        )
        if not mutex.acquire(timeout=choose.choice([0.5, 60])):
            continue
        # The time first: whoever is frozen after it and wakes too late is told so by `healthy`.
        got, token = time.monotonic(), mutex.fencing_token
        if mutex.healthy:
            note("got", mutex.name, token, got)
        time.sleep(choose.uniform(0, 0.02))
        # Before the release: whoever is killed in the middle of it may have let go already.
        note("gave", token, time.monotonic())
        with contextlib.suppress(LockLost):
            mutex.release()


if __name__ == "__main__":
    STORE = open_store(Settings.load(sys.argv[1]))
    FILE = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(2):
        threading.Thread(target=work).start()
