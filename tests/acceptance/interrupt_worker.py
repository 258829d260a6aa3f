"""A process that takes and lets go until it is told to stop: `interrupt_worker.py URL NAME STOP`.

Prints a line when it has begun, and one for each interrupt that it has dealt with. When the file
STOP exists it stays alive and does nothing, so that whatever it has left behind stays, too.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from lockclient import ClusterMutex, Settings, open_store


def take_and_let_go(mutex: ClusterMutex, stop: Path) -> None:
    """Until it is interrupted, or told to stop: often in line, now and then for too long."""
    while not stop.exists():
        with suppress(ConnectionError):  # 50 ms can be too short for any answer
            if mutex.acquire(timeout=0.05):
                mutex.release()


def say(word: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(url: str, name: str, path: str) -> None:
    """Work on after each interrupt."""
    mutex = ClusterMutex(name, store=open_store(Settings.load(url)))
    stop = Path(path)
    mutex.holder()
    say("begun")
    while not stop.exists():
        try:
            take_and_let_go(mutex, stop)
        except KeyboardInterrupt:
            if mutex.locked():
                mutex.release()
            say("interrupted")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
