"""`python broken.py FAULT unlocker|mutexdash …`: the program with one part that breaks at SIGUSR1.

Times that a test would have to wait for are short here.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from apscheduler.schedulers.base import BaseScheduler

from lockclient.service import supervision

supervision.LIMIT, supervision.SURE = 3.0, 3  # before anybody imports it, or has it for a default

# ruff: noqa: E402
from lockclient.overview import silent_watch
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.wire.watch_stream import WatchStream
from mutexdash.data import data_age
from unlocker.remover import Remover
from unlocker.unlocker import Unlocker

broken = threading.Event()


def fail(*_: Any) -> None:
    raise KeyError("a bug")


def hang(*_: Any) -> None:
    threading.Event().wait()


def poison(_: Remover, item: Any, *__: Any) -> None:
    if item.row.holder.name == "poison":
        raise ValueError("a bug")


FAULTS: dict[str, tuple[Any, Any, Any]] = {
    "table fails": (Table, Table._apply, fail),
    "watch fails": (WatchStream, WatchStream._handle, fail),
    "watch is silent": (WatchStream, WatchStream._handle, None),
    "removal fails": (Remover, Remover._remove, poison),
    "sweep hangs": (Unlocker, Unlocker._sweep, hang),
    "scheduler dies": (BaseScheduler, BaseScheduler._process_jobs, fail),
    "heartbeat hangs": (Unlocker, Unlocker._send_heartbeat, hang),
    "reading hangs": (data_age.Probe, data_age.Probe._ask, hang),
}
"""What is replaced: of which class, which method, what happens before it. None: events are lost."""


def break_at_signal(owner: Any, really: Any, before: Any) -> None:
    """Have the method do something else once the signal has come."""

    def wrapped(*how: Any) -> Any:
        if broken.is_set():
            if before is not None:
                before(*how)
            elif how[-1].events:
                return None
        return really(*how)

    setattr(owner, really.__name__, wrapped)


def main() -> None:
    fault, program = sys.argv[1:3]
    sys.argv[1:3] = []
    if fault:
        break_at_signal(*FAULTS[fault])
    signal.signal(signal.SIGUSR1, lambda *_: broken.set())
    silent_watch.READ_AFTER, silent_watch.READ_AGAIN_AFTER = 2.5, 2.5
    if program == "unlocker":
        from unlocker.cli import main as run
    else:
        from mutexdash.cli import main as run
    run()


if __name__ == "__main__":
    main()
