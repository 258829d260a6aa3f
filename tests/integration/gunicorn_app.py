"""A web application whose requests share a lock, loaded before its server forks (`--preload`).

`/count` adds to the number in COUNT_FILE under a lock; `/hold` takes the lock and keeps it;
`/boot` tells whether the lock of the process that loaded this is held here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lockclient import ClusterMutex
from lockclient.default_store import default_store

# Locks used and held before the fork: connection, watch and background thread are the master's.
boot = ClusterMutex("boot", keepalive=True, expected_runtime=1, auto_unlock_after=60)
boot.acquire()
while not default_store().connected():
    time.sleep(0.01)


def count() -> dict[str, object]:
    file = Path(os.environ["COUNT_FILE"])
    with ClusterMutex("count", timeout=60) as mutex:
        number = int(file.read_text()) + 1
        file.write_text(str(number))
        mutex.alive(force=True)
        return {"pid": os.getpid(), "number": number, "token": mutex.fencing_token}


def hold() -> dict[str, object]:
    with ClusterMutex("count"):
        time.sleep(600)
    return {}


def has_boot() -> dict[str, object]:
    """Tell what is known here of the lock that was taken before the fork."""
    return {"locked": boot.locked(), "healthy": boot.healthy}


PAGES = {"/count": count, "/hold": hold, "/boot": has_boot}


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    body = json.dumps(PAGES[environ["PATH_INFO"]]()).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]
