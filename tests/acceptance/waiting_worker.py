"""A process with waiters: `waiting_worker.py URL NAME`, then a line "NUMBER TIMEOUT" for each.

With a third argument, a number, it waits for that one alone, in its main thread, to be interrupted.
Prints "NUMBER TOKEN" when a waiter has the lock, which it gives back at once, else "NUMBER WHY".
"""

from __future__ import annotations

import sys
import threading

from lockclient import ClusterMutex, Settings, open_store


def wait(number: str, timeout: float) -> None:
    mutex = ClusterMutex(NAME, reason=number, store=STORE, capture_backtrace=False)
    try:
        if not mutex.acquire(timeout=timeout):
            said = "timeout"
        else:
            said = str(mutex.fencing_token)
            mutex.release()
    except KeyboardInterrupt:
        said = "interrupt"
    sys.stdout.write(f"{number} {said}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    STORE = open_store(Settings.load(sys.argv[1]))
    NAME = sys.argv[2]
    if len(sys.argv) > 3:
        wait(sys.argv[3], 600)
    for line in () if len(sys.argv) > 3 else sys.stdin:
        number, timeout = line.split()
        threading.Thread(target=wait, args=(number, float(timeout))).start()
