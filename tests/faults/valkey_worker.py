"""A process that takes locks in Valkey and writes down when it had them: `valkey_worker URL FILE`.

A line for each: "got NAME UUID TIME", then "gave NAME UUID TIME". The time is CLOCK_MONOTONIC,
which is one clock for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time

from lockclient import ClusterMutex, LockLost, StoreUnavailable
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.store import ValkeyStore

NAMES = ("a", "b")
AUTO_UNLOCK = 3.0


def main(url: str, path: str) -> None:
    """Take, hold for a moment, let go; or be too impatient to get it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = ValkeyStore(ValkeyLocation.of(url, {}))
    choose = random.Random()

    def note(*words: object) -> None:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())

    while True:
        mutex = ClusterMutex(
            choose.choice(NAMES), expected_runtime=1, auto_unlock_after=AUTO_UNLOCK, store=store
        )
        try:
            if not mutex.acquire(timeout=choose.choice([0, 5])):
                continue
        except StoreUnavailable:
            continue
        # The time first: whoever is frozen after it and wakes too late is told so by `healthy`.
        got, uuid = time.monotonic(), mutex.uuid
        if mutex.healthy:
            note("got", mutex.name, uuid, got)
        time.sleep(choose.uniform(0, 0.02))
        with contextlib.suppress(LockLost, StoreUnavailable):
            if choose.random() < 0.2:
                mutex.alive(force=True)
        # Before the release: whoever is killed in the middle of it may have let go already.
        note("gave", mutex.name, uuid, time.monotonic())
        with contextlib.suppress(LockLost, StoreUnavailable):
            mutex.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
