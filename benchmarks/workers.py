"""Processes that lock and unlock as fast as they can, for `throughput` and `cluster`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.children import children
from benchmarks.contenders import cycle_of, our_store
from benchmarks.floor import Floor, Wire
from lockclient import ClusterMutex


class Job(NamedTuple):
    """What a process does from one moment to another, both on the monotonic clock, in seconds."""

    contender: str
    work: str
    threads: int
    begin: float
    end: float


class Pool:
    """Processes that live for the whole section: nothing is started while it counts."""

    def __init__(self, pipes: list[Any]) -> None:
        self._pipes = pipes

    def rate(
        self, contender: str, work: str, processes: int, threads: int, seconds: float
    ) -> float:
        """Return how many times a second so many threads in each of so many processes did it.

        Args:
            contender: `ours` or `floor`.
            work: `cycle` or `push`.
        """
        begin = time.monotonic() + 0.15
        busy = self._pipes[:processes]
        for pipe in busy:
            pipe.send(Job(contender, work, threads, begin, begin + seconds))
        done: int = sum(pipe.recv() for pipe in busy)
        return done / seconds


@contextmanager
def pool(size: int, endpoint: str, values: dict[str, str]) -> Iterator[Pool]:
    """Start the processes, all as clients of one endpoint."""
    with children(_run, [(index, endpoint, values) for index in range(size)]) as pipes:
        yield Pool(pipes)


def _run(index: int, endpoint: str, values: dict[str, str], pipe: Connection) -> None:
    """Do jobs until the parent ends."""
    store, wire_to = our_store(endpoint), Wire(endpoint)

    def lock(contender: str, thread: int) -> ClusterMutex | Floor:
        name = f"{index}-{thread}"
        ours = contender == "ours"
        return ClusterMutex(name, store=store) if ours else Floor(wire_to, name, values)

    for contender in ("ours", "floor"):  # connects, and starts what starts at first need
        cycle_of(lock(contender, 0))()
    pipe.send("ready")
    while True:
        job: Job = pipe.recv()
        with ThreadPoolExecutor(job.threads) as threads:
            locks = [lock(job.contender, thread) for thread in range(job.threads)]
            pipe.send(sum(threads.map(_work, [job] * job.threads, locks)))


def _work(job: Job, lock: ClusterMutex | Floor) -> int:
    """Return how often the job was done in its time."""
    count = 0
    call = cycle_of(lock) if job.work == "cycle" else _push_of(lock)
    time.sleep(max(0.0, job.begin - time.monotonic()))
    while time.monotonic() < job.end:
        call()
        count += 1
    if job.work == "push":
        lock.release()
    return count


def _push_of(lock: ClusterMutex | Floor) -> Callable[[], None]:
    """Take the lock, and return what pushes its stamps with one request."""
    if lock.acquire() is False:
        raise AssertionError(f"{lock!r} could not be had, though nobody has it")
    return lock.push if isinstance(lock, Floor) else lambda: lock.alive(force=True)
