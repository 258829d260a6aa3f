"""Programs that end, in many states: `ending_program.py SCENARIO URL [WORD...]`.

A program prints lines for the test, and waits for a line where the test has something to do. Its
times are monotonic ones, which the test can compare with its own.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import _exit as exit_at_once
from types import FrameType
from typing import Any

last_functions: list[Callable[[], object]] = []


def run_last_functions() -> None:
    for function in last_functions:
        function()


atexit.register(run_last_functions)  # before the import of the library: called after its own

from lockclient import AsyncClusterMutex, ClusterMutex, LockLost, Settings, open_store  # noqa: E402
from lockclient.threads import pool  # noqa: E402

URL = sys.argv[2]


def open_another() -> Any:
    return open_store(Settings.load(URL))


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # one call: other threads say things, too
    sys.stdout.flush()


def wait(*words: object) -> None:
    """Say this, and wait for the test."""
    say(*words)
    sys.stdin.readline()


def say_end() -> None:
    say(time.monotonic())


def outcome_of(call: Callable[[], object]) -> str:
    """Return the name of the exception that a call raises, or what it returns."""
    try:
        return str(call())
    except BaseException as error:  # noqa: BLE001
        return type(error).__name__


def start(work: Callable[[], object], *, daemon: bool = True) -> None:
    threading.Thread(target=work, daemon=daemon).start()


def start_task(make: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a task in the loop of a daemon thread."""
    start(lambda: asyncio.run(make()))


async def acquire_as_task(name: str, store: Any) -> None:
    await AsyncClusterMutex(name, store=store).acquire()


# ------------------------------------------------------------------ 1: what `atexit` waits for


def workers(begun: str) -> None:
    """A thread and an executor's worker are inside `acquire` as the main function ends.

    Args:
        begun: "waiting": they wait in the queue; "beginning": they have just begun.
    """
    store = open_another()

    def work(name: str) -> None:
        with ClusterMutex(name, store=store):
            say(name)

    idle = ThreadPoolExecutor(1)
    idle.submit(int).result()
    start(partial(work, "thread"), daemon=False)
    ThreadPoolExecutor(1).submit(work, "worker")
    if begun == "waiting":
        busy = [ClusterMutex(name, store=store) for name in ("thread", "worker")]
        while not all(mutex.waiters() for mutex in busy):
            time.sleep(0.01)
    say("ends")


def workers_of_a_child(begun: str) -> None:
    """The main function is that of a child, made by `multiprocessing` by a fork."""
    child = multiprocessing.get_context("fork").Process(target=workers, args=(begun,))
    child.start()
    child.join()
    sys.exit(child.exitcode)


# ------------------------------------------------------------------ 2, 3: `atexit` functions


def atexit_functions(idle_s: str) -> None:
    """One function is registered before the import, one after it, one after the first acquisition.

    Each acquires, waits, calls `alive`, loses a lock and releases.
    """
    store = open_another()
    is_time, returned = threading.Event(), list[str]()

    def other() -> None:
        is_time.wait()
        returned.append(outcome_of(ClusterMutex("other", store=store).acquire))

    async def other_task() -> None:
        while not is_time.is_set():
            await asyncio.sleep(0.01)
        await acquire_as_task("other", store)
        returned.append("task")

    async def task(name: str) -> None:
        async with AsyncClusterMutex(name, store=store) as held:
            say("acquired", time.monotonic())
            await held.alive(force=True)

    def work(moment: str) -> None:
        if moment != "first-acquisition":
            is_time.set()
        wait("begins", moment)
        with ClusterMutex(f"free-{moment}", store=store) as held:
            held.alive(force=True)
        with ClusterMutex(f"thread-{moment}", store=store) as held:
            say("acquired", time.monotonic())
            held.alive(force=True)
        asyncio.run(task(f"task-{moment}"))
        lost = ClusterMutex(f"lost-{moment}", store=store)
        lost.acquire()
        wait("holds")
        try:
            lost.release()
        except LockLost:
            say("lost")
        say("ends", returned)

    last_functions.append(partial(work, "import"))
    atexit.register(work, "after-import")
    with ClusterMutex("first", store=store):
        pass
    atexit.register(work, "first-acquisition")
    start(other)
    start_task(other_task)
    time.sleep(float(idle_s))


def first_used_at_exit() -> None:
    """An `atexit` function is the first user of a store."""
    store = open_another()

    def work() -> None:
        with ClusterMutex("busy", store=store):
            say("acquired", time.monotonic())

    atexit.register(work)


def closed_at_exit() -> None:
    """Two stores are closed by `atexit`: one before the library's own function, one after it."""
    early, late = open_another(), open_another()

    def close(store: Any) -> None:
        began = time.monotonic()
        store.close()
        took = time.monotonic() - began
        say(took, outcome_of(lambda: ClusterMutex("busy", store=store).acquire(timeout=1)))

    atexit.register(close, late)
    for store in (early, late):
        with ClusterMutex("first", store=store):
            pass
        start(partial(outcome_of, ClusterMutex("busy", store=store).acquire))
    atexit.register(close, early)
    wait("waits")


# ------------------------------------------------------------------ 4, 7: what is running


def waiting() -> None:
    """Daemon threads and the loop of one wait in the queue."""
    store = open_another()
    start(ClusterMutex("busy", store=store).acquire)
    start(lambda: ClusterMutex("busy", store=store).acquire(timeout=60))
    start_task(partial(acquire_as_task, "busy", store))
    wait("waits")


def cycling() -> None:
    """Daemon threads and the loop of one acquire and release all the time."""
    store = open_another()

    def cycle(name: str) -> None:
        while True:
            with ClusterMutex(name, store=store):
                pass

    async def cycle_as_task(name: str) -> None:
        while True:
            async with AsyncClusterMutex(name, store=store):
                pass

    for number in range(3):
        start(partial(cycle, f"thread-{number}"))
    start_task(partial(cycle_as_task, "task"))
    time.sleep(0.5)


def taking(*kinds: str) -> None:
    """A daemon thread and a task in the loop of one are taking locks; the test delays that."""
    store = open_another()

    async def take_as_task() -> None:
        async with AsyncClusterMutex("first-task", store=store):
            pass
        is_connected.set()
        while not is_time.is_set():
            await asyncio.sleep(0.01)
        await acquire_as_task("task", store)

    atexit.register(wait, "ends")  # called after the library's first function
    is_connected, is_time = threading.Event(), threading.Event()
    if "task" in kinds:
        start_task(take_as_task)
        is_connected.wait()
    with ClusterMutex("first", store=store):
        pass
    wait("connected")
    is_time.set()
    start(ClusterMutex("thread", store=store).acquire)
    wait("taking")


# ------------------------------------------------------------------ 5, 6: the deadline, the log


def bare() -> None:
    """A program that has done nothing with its store."""
    open_another()
    wait("ready")
    say_end()


def nothing_open() -> None:
    """A program that has released all its locks."""
    store = open_another()
    with ClusterMutex("first", store=store):
        pass
    assert not ClusterMutex("busy", store=store).acquire(timeout=0.1)
    wait("ready")
    say_end()


def stores(count: str) -> None:
    """A lock with `release_at_exit` and a waiter on each of many stores."""
    kept = []
    for number in range(int(count)):
        store = open_another()
        name = f"lock-{os.getpid()}-{number}"  # the last run's locks may stand there
        mutex = ClusterMutex(name, store=store, release_at_exit=True)
        kept.append((store, mutex, mutex.acquire()))
        start(ClusterMutex("busy", store=store).acquire)
    wait("ready")
    say_end()


def holding(count: str) -> None:
    """A program that ends with many locks."""
    store = open_another()
    kept = [ClusterMutex(f"lock-{number}", store=store) for number in range(int(count))]
    for mutex in kept:
        mutex.acquire()
    wait("ready")


# ------------------------------------------------------------------ 8: close()


def closing() -> None:
    """`close` while threads and a loop wait, and a lock is held."""
    store = open_another()
    held = ClusterMutex("held", store=store)
    held.acquire()

    async def acquire_busy() -> None:
        try:
            await acquire_as_task("busy", store)
        except Exception as error:  # noqa: BLE001
            say(type(error).__name__)

    start(lambda: say(outcome_of(ClusterMutex("busy", store=store).acquire)))
    start_task(acquire_busy)
    wait("waits")
    store.close()
    wait("closed")


def closing_while_taking() -> None:
    """`close` while a thread takes a lock, and the test holds the answers up."""
    store = open_another()
    with ClusterMutex("first", store=store):
        pass
    wait("connected")
    start(lambda: say(outcome_of(ClusterMutex("free", store=store).acquire)))
    wait("taking")
    say("closes")
    store.close()
    sys.stdin.readline()


def many_closed(count: str) -> None:
    """Say which threads of the pools are left of closed stores; none ends for being idle."""
    pool.IDLE_S = 3600
    for number in range(int(count)):
        store = open_another()
        start(partial(outcome_of, ClusterMutex("busy", store=store).acquire))
        with ClusterMutex(f"lock-{number}", store=store):
            wait("waits", number)
        store.close()
    until = time.monotonic() + 60
    while (names := own_threads()) and time.monotonic() < until:
        time.sleep(0.02)
    say("left", *names)


def own_threads() -> list[str]:
    """Return the names of the library's threads, except those of the process."""
    names = [thread.name for thread in threading.enumerate() if "clustermutex" in thread.name]
    return [name for name in names if name not in ("clustermutex-timers", "clustermutex-log")]


# ------------------------------------------------------------------ more


def fork_in_handler(call: str) -> None:
    """A handler of a signal forks while the main thread waits for the store."""
    parent, children = os.getpid(), list[int]()

    def fork(_number: int, _frame: FrameType | None) -> None:
        children.append(os.fork())

    signal.signal(signal.SIGUSR1, fork)
    store = open_another()
    held = ClusterMutex("held", store=store)
    held.acquire()
    calls: dict[str, Callable[[], object]] = {
        "acquire": ClusterMutex("busy", store=store).acquire,
        "alive": partial(held.alive, force=True),
        "release": held.release,
    }
    wait("ready")
    say("calls")
    outcome = outcome_of(calls[call])
    if os.getpid() != parent:
        say("child", outcome)
        exit_at_once(0)
    os.waitpid(children[0], 0)
    say("parent", outcome)


def stuck_finalizer(part: str) -> None:
    """A finalizer in a thread of the library waits for an RLock of the main thread.

    Args:
        part: of the path of the file whose function is interrupted.
    """
    store, lock, collecting = open_another(), threading.RLock(), list[str]()

    class Node:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with lock:
                pass

    def collect(frame: FrameType, _event: str, _: object) -> None:
        is_there = part in frame.f_code.co_filename
        if is_there and not collecting and is_deputy():
            collecting.append("once")
            gc.collect()

    gc.disable()
    threading.setprofile(collect)
    with lock:
        Node()
        began = time.monotonic()
        outcome = outcome_of(lambda: ClusterMutex("free", store=store).acquire(timeout=1))
        say(time.monotonic() - began, outcome)
    sys.stdin.readline()


def is_deputy() -> bool:
    """Tell whether this is a thread that asks the store for the main thread."""
    return threading.current_thread().name == "clustermutex-deputy"


def slow_to_wake() -> None:
    """The main thread waits in the queue. The thread that asks for it is slow after each wait."""
    store = open_another()

    def delay(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code.co_name == "wait" and is_deputy():
            time.sleep(0.3)

    threading.setprofile(delay)
    say(outcome_of(lambda: ClusterMutex("busy", store=store).acquire(timeout=30)))


def short_timeout() -> None:
    """`acquire(timeout=2)` waits in the queue of a store that freezes."""
    store = open_another()
    began = time.monotonic()
    outcome = outcome_of(lambda: ClusterMutex("busy", store=store).acquire(timeout=2))
    say(time.monotonic() - began, outcome)
    sys.stdin.readline()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[3:])
