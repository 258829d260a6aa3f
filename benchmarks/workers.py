"""Processes that lock and unlock as fast as they can, for `throughput` and `cluster`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

from benchmarks.children import children
from benchmarks.contenders import cycle_of
from benchmarks.floor import Floor, Wire
from lockclient import ClusterMutex, Settings, open_store

Contender = Literal["ours", "floor"]
Work = Literal["cycle", "push"]


@dataclass(frozen=True)
class Job:
    """What a process does from one moment to another, both on the monotonic clock, in seconds."""

    contender: Contender
    work: Work
    threads: int
    begin: float
    end: float


class Pool:
    """Processes that live for the whole section: nothing is started while it counts."""

    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    def rate(
        self, contender: Contender, work: Work, processes: int, threads: int, seconds: float
    ) -> float:
        """Return how many times a second so many threads in each of so many processes did it."""
        begin = time.monotonic() + 0.15
        job = Job(contender, work, threads, begin, begin + seconds)
        busy = self._pipes[:processes]
        for pipe in busy:
            pipe.send(job)
        done: int = sum(pipe.recv() for pipe in busy)
        return done / seconds


@contextmanager
def pool(size: int, endpoint: str, values: dict[str, str]) -> Iterator[Pool]:
    """Start the processes, all as clients of one endpoint."""
    with children(_run, [(index, endpoint, values) for index in range(size)]) as pipes:
        yield Pool(pipes)


def _run(index: int, endpoint: str, values: dict[str, str], pipe: Connection) -> None:
    """Do jobs until the parent ends."""
    store = open_store(Settings(endpoints=(endpoint,), root="/ours"))
    wire_to = Wire(endpoint)

    def lock(contender: Contender, thread: int) -> ClusterMutex | Floor:
        name = f"{index}-{thread}"
        if contender == "ours":
            return ClusterMutex(name, store=store)
        return Floor(wire_to, name, values)

    for contender in get_args(Contender):  # connects, and starts what starts at first need
        cycle_of(lock(contender, 0))()
    pipe.send("ready")
    while True:
        job: Job = pipe.recv()
        pipe.send(_do(job, [lock(job.contender, thread) for thread in range(job.threads)]))


def _do(job: Job, locks: list[ClusterMutex | Floor]) -> int:
    """Return how often the job was done in its time."""
    counts = [0] * len(locks)

    def work(number: int) -> None:
        lock = locks[number]
        call = cycle_of(lock) if job.work == "cycle" else _push_of(lock)
        time.sleep(max(0.0, job.begin - time.monotonic()))
        while time.monotonic() < job.end:
            call()
            counts[number] += 1
        if job.work == "push":
            lock.release()

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(locks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def _push_of(lock: ClusterMutex | Floor) -> Callable[[], None]:
    """Take the lock, and return what pushes its stamps with one request."""
    if lock.acquire() is False:
        raise AssertionError(f"{lock!r} could not be had, though nobody has it")
    if isinstance(lock, Floor):
        return lock.push
    return lambda: lock.alive(force=True)
