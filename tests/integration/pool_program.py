"""A program that holds a lock and starts others which share one: `pool_program.py WAY URL FILE`.

Each of them adds to the number in FILE, under the lock. Prints the fencing tokens that they had,
in the order of the numbers that they wrote.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from multiprocessing.context import BaseContext
from pathlib import Path

from lockclient import ClusterMutex, LockNotHeld, Settings, open_store
from lockclient.stores.mutex_store import MutexStore

WORKERS, TIMES = 3, 10

Turn = tuple[int, int]
"""The number that was written, and the fencing token under which."""


@cache
def store_of(url: str) -> MutexStore:
    """Return the process's store; a forked one has it from its parent."""
    return open_store(Settings.load(url))


def count(url: str, path: str, _number: int) -> list[Turn]:
    """Add to the number, again and again."""
    turns = []
    file = Path(path)
    mutex = ClusterMutex("count", store=store_of(url), timeout=60)
    for _ in range(TIMES):
        with mutex:
            number = int(file.read_text()) + 1
            file.write_text(str(number))
            turns.append((number, mutex.fencing_token))
    return turns


def by_processes(context: BaseContext, url: str, path: str) -> list[Turn]:
    """Let processes count that are made by `multiprocessing` one by one."""
    results = context.SimpleQueue()
    team = [
        context.Process(target=put_count, args=(results, url, path))  # type: ignore[attr-defined]
        for _ in range(WORKERS)
    ]
    for process in team:
        process.start()
    turns = [turn for _ in team for turn in results.get()]
    for process in team:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a process ended with {process.exitcode}")
    return turns


def put_count(results: multiprocessing.SimpleQueue[list[Turn]], url: str, path: str) -> None:
    """Count, and hand the turns over."""
    results.put(count(url, path, 0))


def by_executor(executor: Executor, url: str, path: str) -> list[Turn]:
    """Let the workers of a `concurrent.futures` executor count."""
    with executor:
        jobs = executor.map(partial(count, url, path), range(WORKERS))
        return [turn for turns in jobs for turn in turns]


def count_by(way: str, url: str, path: str) -> list[Turn]:
    """Count in one of the ways."""
    kind, _, method = way.partition(" ")
    if kind == "threads":
        return by_executor(ThreadPoolExecutor(WORKERS), url, path)
    context = multiprocessing.get_context(method)
    if kind == "pool":
        return by_executor(ProcessPoolExecutor(WORKERS, mp_context=context), url, path)
    return by_processes(context, url, path)


def main(way: str, url: str, path: str) -> None:
    """Hold a lock of one's own meanwhile, which nobody may disturb."""
    Path(path).write_text("0")
    mine = ClusterMutex(
        "mine", store=store_of(url), keepalive=True, expected_runtime=1, auto_unlock_after=60
    )
    with mine:
        turns = count_by(way, url, path)
        mine.alive(force=True)
        mine.check_health()
    try:
        mine.check_health()
    except LockNotHeld:
        print(*(token for _, token in sorted(turns)))


if __name__ == "__main__":
    main(*sys.argv[1:])
