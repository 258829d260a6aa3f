"""Faults of a program's Python: each lasts until the end of its block."""

from __future__ import annotations

import _thread
import asyncio
import faulthandler
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from lockclient import AsyncClusterMutex, ClusterMutex, ClusterMutexError, Settings, open_store
from tests.support.locks import read, remove

_OURS = f"{os.sep}lockclient{os.sep}"
_kept: list[Any] = []
"""What is alive to the very end."""


class Interrupted(Exception):
    """Raised by the handler of a signal."""


def _every_now_and_then(case: Any, least_s: float, most_s: float, do: Callable[[], object]) -> None:
    """Do something in a daemon thread, until the time of the case is over."""

    def run() -> None:
        while case.working():
            time.sleep(case.choose.uniform(least_s, most_s))
            do()

    # One C step: an interrupt of another fault would leave `Thread.start` half done.
    _thread.start_new_thread(run, ())


class _Garbage:
    """A cycle whose finalizer releases a lock."""

    def __init__(self, held: Any) -> None:
        self._me, self._held = self, held

    def __del__(self) -> None:
        with suppress(ClusterMutexError):
            self._held.release()


@contextmanager
def garbage(case: Any) -> Iterator[None]:
    """Collect garbage that releases locks, in calls inside the library, in each thread."""
    mutexes = [
        ClusterMutex(f"{case.prefix}/garbage-{number}", expected_runtime=1, auto_unlock_after=3)
        for number in range(15)
    ]
    held = [held for mutex in mutexes if (held := mutex.acquire()) is not None]

    def hook(frame: Any, event: str, _: Any) -> None:
        if event == "call" and _OURS in frame.f_code.co_filename and case.choose.random() < 0.01:
            with suppress(IndexError):
                _Garbage(held.pop())
            gc.collect(0)

    threading.setprofile(hook)
    sys.setprofile(hook)
    yield
    sys.setprofile(None)
    threading.setprofile(None)
    while held:
        held.pop().release()


@contextmanager
def signals(case: Any) -> Iterator[None]:
    """Raise by a signal's handler, at any moment of the main thread."""

    def raises(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, case.choose.choice((0.0005, 0.005, 0.05, 0.5)))
        raise Interrupted

    before = signal.signal(signal.SIGALRM, raises)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        yield
    finally:
        while True:
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                break


@contextmanager
def bad_log(case: Any) -> Iterator[None]:
    """Have a handler of the log that raises, blocks, or takes what a signal's handler wants."""
    taken = threading.Lock()

    class Bad(logging.Handler):
        kind = case.choose.choice(("raises", "exits", "blocks", "takes"))

        def emit(self, _: logging.LogRecord) -> None:
            if self.kind == "raises":
                raise KeyError("a handler of the log")
            if self.kind == "exits":
                raise SystemExit(7)
            with taken:
                time.sleep(0.3)

    def wants(*_: object) -> None:
        if taken.acquire(timeout=1):
            taken.release()

    log, handler = logging.getLogger("lockclient"), Bad()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    signal.signal(signal.SIGUSR2, wants)
    _every_now_and_then(case, 0.05, 0.2, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    yield
    log.removeHandler(handler)


@contextmanager
def full_stderr(case: Any) -> Iterator[None]:
    """Have nobody read what is written to stderr, for a second."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    with suppress(BlockingIOError):
        while True:
            os.write(into, bytes(4096))
    os.set_blocking(into, True)
    real = os.dup(2)
    os.dup2(into, 2)
    logging.basicConfig(level=logging.DEBUG)

    def drain() -> None:
        time.sleep(1.0)
        while data := os.read(out, 65536):
            os.write(real, data.strip(b"\0"))

    threading.Thread(target=drain, daemon=True).start()
    yield


@contextmanager
def no_threads(case: Any) -> Iterator[None]:
    """Have every other thread refused."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if case.choose.random() < 0.5:
            raise RuntimeError("can't start new thread")
        start(self)

    with patch.object(threading.Thread, "start", refused):
        yield


@contextmanager
def no_files(case: Any) -> Iterator[None]:
    """Have no descriptor left, now and then."""
    whole = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, whole[1]))
        time.sleep(0.3)
        resource.setrlimit(resource.RLIMIT_NOFILE, whole)

    _every_now_and_then(case, 0.0, 0.5, take)
    yield


def _at_some_line(case: Any, often: float, do: Callable[[], object]) -> None:
    def trace(frame: Any, event: str, _: Any) -> Any:
        if _OURS not in frame.f_code.co_filename:
            return None
        if event == "line" and case.choose.random() < often:
            sys.settrace(None)
            do()
            sys.settrace(trace)
        return trace

    sys.settrace(trace)


@contextmanager
def forks(case: Any) -> Iterator[None]:
    """Fork at lines of the library; the child ends at once, or wants a lock first."""
    children: list[int] = []

    def fork() -> None:
        wants = case.choose.random() < 0.3
        if (child := os.fork()) != 0:
            children.append(child)
            return
        # A handler that was about to run may have set the timer anew: that is to end nobody.
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.alarm(40)  # one that hangs says where, and ends
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, chain=True)
        with suppress(BaseException):
            if wants:
                case.mutex().acquire()
        os._exit(0)

    _at_some_line(case, 0.002, fork)
    yield
    sys.settrace(None)
    for child in children:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        # Where a loop has calls under way, gRPC's threads begin anew in the child, and may end it:
        # see docs/programs.md.
        if status != 0 and not case.asyncio:
            case.note("odd", text=f"a fork's child ended with {status}")


@contextmanager
def execs(case: Any) -> Iterator[None]:
    """Become another program at a line of the library."""
    program = [sys.executable, "-c", "pass"]
    _at_some_line(case, 0.0005, lambda: os.execv(sys.executable, program))
    yield
    sys.settrace(None)


@contextmanager
def stopped(case: Any) -> Iterator[None]:
    """Stand still for longer than a lock's time."""

    def stop() -> None:
        time.sleep(case.choose.uniform(0.0, 0.7))
        awake = subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        awake.wait()

    threading.Thread(target=stop, daemon=True).start()
    yield


@contextmanager
def losses(case: Any) -> Iterator[None]:
    """Take locks away; `on_lost` then releases, acquires, raises, or ends its thread."""
    kind = case.choose.choice(("release", "acquire", "raise", "exit", "nothing"))
    store = open_store(Settings.load(os.environ["CLUSTERMUTEX_URL"]))

    def on_lost(lost: Any) -> Any:
        if kind == "release":
            lost.release()
        elif kind == "acquire":
            case.mutex().acquire(timeout=0.1)
        elif kind == "raise":
            raise KeyError("on_lost")
        elif kind == "exit":
            raise SystemExit(7)

    def take() -> None:
        with suppress(ClusterMutexError, AssertionError):
            if (holder := read(store, case.choose.choice(case.locks)).holder) is not None:
                remove(store, holder)

    case.on_lost = on_lost
    _every_now_and_then(case, 0.05, 0.2, take)
    yield


@contextmanager
def ends(case: Any) -> Iterator[None]:
    """End while threads, generators, tasks and executors are alive and hold locks or want them."""
    yield

    def suspended() -> Iterator[None]:
        with case.mutex():
            yield

    def at_it() -> None:
        while True:
            with suppress(Exception), case.mutex():
                time.sleep(0.01)

    async def abandoned() -> None:
        mutex = case.mutex(AsyncClusterMutex)
        _kept.append(asyncio.create_task(mutex.acquire()))
        await asyncio.sleep(case.choose.uniform(0, 0.05))
        assert isinstance(mutex, AsyncClusterMutex)

    _kept.append(suspended())
    with suppress(ClusterMutexError, TimeoutError):
        next(_kept[-1])
    threading.Thread(target=at_it, daemon=True).start()
    pool = ThreadPoolExecutor(2)
    _kept.extend([pool, pool.submit(case.mutex().acquire)])
    with suppress(ClusterMutexError, TimeoutError):
        asyncio.run(abandoned())
    if case.choose.random() < 0.5:
        sys.exit(7)


FAULTS: tuple[Callable[[Any], AbstractContextManager[None]], ...] = (
    *(garbage, signals, bad_log, full_stderr, no_threads, no_files),
    *(forks, execs, stopped, losses, ends),
)
