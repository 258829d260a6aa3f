"""Processes that take a lock, are interrupted at one step, and end.

`python -m tests.acceptance.interrupted_end KIND EVERY`, with the store's URL in the environment:
forks a process for each EVERY-th step from the first request on, and prints the name of its lock,
its status and where the interrupt came, until one comes to its end or has handed the lock over.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
from types import FrameType
from typing import Any

from lockclient import ClusterMutex
from lockclient.cli import main
from lockclient.cli.scripts import lock, run  # noqa: F401 - before the fork, so that it is quick
from lockclient.cli.scripts.signals import WAKE
from lockclient.stores.etcd import store  # noqa: F401
from tests.support.interrupts import Interrupt

HANDED_OVER = ("_start_under_lock", "_descendants", "hand_over")
"""From here on a signal ends neither `run` nor `lock`."""


class Signal(Interrupt):
    """Sends SIGINT at the n-th step after the first request, and writes the place to a pipe."""

    def __init__(self, number: int, pipe: int) -> None:
        super().__init__(number)
        self._pipe, self._sent = pipe, False
        # Python 3.12 traces instructions only if a frame asked for it before `settrace`.
        here = inspect.currentframe()
        assert here is not None
        here.f_trace_opcodes = True

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._sent = self._sent or frame.f_code.co_name == "run_shielded"
        return super().__call__(frame, event, argument)

    def step(self, where: str) -> None:
        if self._sent:
            super().step(where)

    def interrupt(self) -> None:
        sys.settrace(None)
        sys.setswitchinterval(10)  # no other thread runs until this one waits for it
        os.write(self._pipe, self.where.encode())
        # What `run` and `lock` get from the thread that receives their signals.
        signal.raise_signal(WAKE if callable(signal.getsignal(WAKE)) else signal.SIGINT)


def take(kind: str, name: str, interrupt: Signal) -> None:
    """Take the lock and let go of it, as this kind of program does."""
    if kind in ("run", "lock"):
        sys.argv = ["clustermutex", kind, name, *(("--", "true") if kind == "run" else ())]
        sys.settrace(interrupt)
        main()
    mutex = ClusterMutex(name)
    try:
        sys.settrace(interrupt)
        with mutex:
            pass
        sys.settrace(None)
    except KeyboardInterrupt:
        pass


def each_step(kind: str, every: int) -> None:
    number, where = 1, "?"
    while where and not where.startswith(HANDED_OVER):
        name = f"{kind}-{number}"
        reading, writing = os.pipe()
        interrupt = Signal(number, writing)
        if kind == "multiprocessing":
            child = multiprocessing.get_context("fork").Process(
                target=take, args=(kind, name, interrupt)
            )
            child.start()
            child.join()
            status = child.exitcode
        else:
            pid = os.fork()
            if not pid:
                return take(kind, name, interrupt)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(writing)
        where = os.read(reading, 4096).decode()
        os.close(reading)
        print(name, status, where, sep="\t", flush=True)
        number += every
    return None


if __name__ == "__main__":
    each_step(sys.argv[1], int(sys.argv[2]))
