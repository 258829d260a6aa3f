"""A process that takes a lock again and again: `append_worker.py URL NAME FILE TIMES`.

Under the lock it appends "TOKEN PID begin" and, in a second write, "TOKEN PID end" to the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lockclient import ClusterMutex, Settings, open_store

if __name__ == "__main__":
    url, name, path, times = sys.argv[1:]
    store = open_store(Settings.load(url))
    for _ in range(int(times)):
        with ClusterMutex(name, store=store) as mutex, Path(path).open("a") as file:
            file.write(f"{mutex.fencing_token} {os.getpid()} begin\n")
            file.flush()
            file.write(f"{mutex.fencing_token} {os.getpid()} end\n")
