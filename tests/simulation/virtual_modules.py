"""The real modules of the library and the unlocker, on virtual clocks, threads and channels.

Nothing in them is written for that. Wherever one of their modules has a name that stands for a
clock, a thread, a lock or a connection, the name stands for a virtual one while a run goes on.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import math
import os
import queue
import secrets
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakSet

from greenlet import GreenletExit

from lockclient.acquisition import heartbeat_and_loss, leaked_locks, shared_mutex
from lockclient.model import clocks, process_identity
from lockclient.stores.common import background
from lockclient.stores.etcd import members
from lockclient.stores.etcd.wire import rpc_methods
from lockclient.threads import backoff, ending, log_queue, pool, scheduler
from tests.simulation.hub import Condition, Event, Hub, Lock, Process, Thread
from unlocker.periodic_tasks import Jobs

TICK_S = 1e-9
"""Seconds that a wait takes at least: a shorter one may be lost by rounding, and time would stand
still for a thread that waits for a moment."""


class Queue:
    """`queue.SimpleQueue`, and `queue.Queue` as far as it is used."""

    def __init__(self) -> None:
        self._entries: deque[Any] = deque()
        self._news = Event()

    def __class_getitem__(cls, _of: object) -> type[Queue]:
        return cls

    def put(self, entry: Any) -> None:
        """Add one."""
        self._entries.append(entry)
        self._news.set()

    def get(self, timeout: float | None = None) -> Any:
        """Return the next one."""
        hub = Hub.current
        if hub.over:  # a thread that always finds work would never wait, and so never end
            raise GreenletExit
        if timeout:
            timeout = max(timeout, TICK_S)
        until = math.inf if timeout is None else hub.now + timeout
        while not self._entries:
            if hub.now >= until:
                raise queue.Empty
            self._news.clear()
            self._news.wait(None if timeout is None else until - hub.now)
        return self._entries.popleft()

    def get_nowait(self) -> Any:
        """Return the next one, if there is one."""
        return self.get(0)

    def empty(self) -> bool:
        """Tell whether there is none."""
        return not self._entries

    def qsize(self) -> int:
        """Return how many there are."""
        return len(self._entries)


class Loop(asyncio.BaseEventLoop):
    """An event loop that waits by waiting for its turn."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._news = Event()

    def select(self, timeout: float | None) -> list[Any]:
        """Wait until there is something to do; None: for a call from elsewhere."""
        if timeout is None or timeout > 0:
            self._news.wait(timeout)
        self._news.clear()
        return []

    def time(self) -> float:
        """Return the monotonic time of its process."""
        return Hub.current.monotonic()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing of tasks that are left: the run ends before they do."""

    def _process_events(self, _events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        self._news.set()


class VirtualJobs:
    """`unlocker.periodic_tasks.Jobs`, without APScheduler, which plans by the real wall clock."""

    def __init__(self) -> None:
        self._threads: list[Thread] = []
        self._ending = Event()

    def every(
        self, seconds: float, task: Callable[[], None], name: str = "task", **how: bool
    ) -> None:
        """Run a task every so many seconds."""

        def run() -> None:
            if not how.get("at_once", True):
                self._ending.wait(seconds)
            if name in Hub.current.process.hangs:
                self._ending.wait()
            while not self._ending.is_set():
                try:
                    task()
                except Exception as error:  # noqa: BLE001 - as APScheduler: it is run again
                    Hub.current.happened("failed", name, type(error).__name__)
                self._ending.wait(seconds)

        self._threads.append(Thread(target=run, name=name))

    def trouble(self, limit: float) -> None:
        """Say that no task hangs."""

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._ending.set()


class Future:
    """The return value of a call in a `Pool`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.error: BaseException | None = None
        self.thread = Thread(target=self._run, name="pool")
        self.thread.start()

    def _run(self) -> None:
        try:
            self._found = self._call()
        except Exception as error:  # noqa: BLE001 - raised by `result`
            self.error = error

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self._found


class Pool:
    """`ThreadPoolExecutor`, as far as it is used: a thread for each call."""

    def __init__(self, *_: object) -> None:
        self._futures: list[Future] = []

    def __enter__(self) -> Pool:
        return self

    def submit(self, call: Callable[..., Any], *args: Any) -> Future:
        """Begin a call."""
        self._futures.append(Future(lambda: call(*args)))
        return self._futures[-1]

    def __exit__(self, *_: object) -> None:
        for future in self._futures:
            future.thread.join()


class _Shim(ModuleType):
    """A module of which some names stand for something else."""

    def __init__(self, real: ModuleType, **names: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(names)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Threading(_Shim):
    """`threading`, which ends with the simulated process."""

    @property
    def _SHUTTING_DOWN(self) -> bool:  # noqa: N802 - Python's name
        return Hub.current.process.is_ending


def _get_ident() -> int:
    thread = Hub.current.this_thread()
    return -1 if thread is None or thread.ident is None else thread.ident


def _current_thread() -> Any:
    return Hub.current.this_thread()


def _main_thread() -> Any:
    """Stand for `threading.main_thread`, which ends before `atexit` runs."""
    is_alive = not Hub.current.process.is_ending
    return SimpleNamespace(is_alive=lambda: is_alive, ident=_MAIN_IDENT)


_MAIN_IDENT = threading.main_thread().ident
_End = type(ending.state)


def _enumerate() -> list[Thread]:
    return list(Hub.current.threads.values())


def _start(function: Callable[..., object], args: tuple[Any, ...]) -> None:
    if Hub.current.over:
        raise RuntimeError("can't start new thread at interpreter shutdown")  # as 3.12 alone does
    Thread(target=function, args=args).start()


def _sleep(seconds: float) -> None:
    Hub.current.wait(seconds)


def _between(low: float, high: float) -> float:
    return low + (high - low) * Hub.current.draw_next("pause")


def _monotonic() -> float:
    return Hub.current.monotonic()


def _task_actor(task: object) -> str:
    actors = Hub.current.process.actors
    return actors.setdefault(task, f"{Hub.current.process.name}.t{len(actors)}")


def _fingerprint(_pid: int) -> str:
    return Hub.current.process.name


def _provably_runs(said: str | None) -> bool:
    hub = Hub.current
    return said in hub.processes and not hub.processes[said].dead


def _virtual(open_channel: Callable[..., Any]) -> dict[int, Any]:
    """Return what stands for what, by its id."""
    shims: list[tuple[ModuleType, dict[str, Any]]] = [
        (
            threading,
            {
                "Thread": Thread,
                "Lock": Lock,
                "Event": Event,
                "Condition": Condition,
                "get_ident": _get_ident,
                "current_thread": _current_thread,
                "main_thread": _main_thread,
                "enumerate": _enumerate,
            },
        ),
        (
            time,
            {
                "time": lambda: Hub.current.wall(),
                "monotonic": _monotonic,
                "sleep": _sleep,
            },
        ),
        (os, {"getpid": lambda: 1}),
        (signal, {"pthread_sigmask": lambda *_: set()}),
        (secrets, {"token_hex": lambda _n: Hub.current.uuid().hex[:8]}),
    ]
    found: dict[int, Any] = {id(real): _Shim(real, **names) for real, names in shims}
    found[id(threading)] = _Threading(threading, **shims[0][1])
    pairs: list[tuple[Any, Any]] = [
        (clocks.monotonic, _monotonic),
        (_thread.allocate_lock, Lock),
        (_thread.start_new_thread, _start),
        (threading.get_ident, _get_ident),
        (queue.SimpleQueue, Queue),
        (queue.Queue, Queue),
        (uuid.uuid4, lambda: Hub.current.uuid()),
        (backoff._between, _between),
        (process_identity.process_token, lambda: Hub.current.process.name),
        (shared_mutex.task_actor, _task_actor),
        (process_identity.fingerprint, _fingerprint),
        (process_identity.provably_runs, _provably_runs),
        (rpc_methods.open_channel, open_channel),
        (members.clock_offsets, lambda *_: Hub.current.clock_offsets()),
        (Jobs, VirtualJobs),
        (ThreadPoolExecutor, Pool),
    ]
    return {**found, **{id(real): virtual for real, virtual in pairs}}


@contextmanager
def virtual(open_channel: Callable[..., Any]) -> Iterator[None]:
    """Have all modules of ours use what is virtual."""
    stands_for = _virtual(open_channel)
    changed: list[tuple[ModuleType, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("lockclient", "unlocker"):
            for attribute, value in list(vars(module).items()):
                if id(value) in stands_for:
                    changed.append((module, attribute, value))
                    setattr(module, attribute, stands_for[id(value)])
    kept = [(module, name, getattr(module, name)) for module, name in GLOBALS]
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for module, attribute, value in (*changed, *kept):
            setattr(module, attribute, value)


GLOBALS: tuple[tuple[ModuleType, str], ...] = (
    (scheduler, "shared"),
    (heartbeat_and_loss, "held_by_process"),
    (leaked_locks, "program_threads"),
    (log_queue, "shared"),
    (scheduler, "on_start"),
    (ending, "state"),
    (ending, "stores"),
    (ending, "_named"),
    (background, "_main_thread"),
    (rpc_methods, "_has_threads"),
)
"""What each process has of its own."""


def new_process(hub: Hub, name: str) -> Process:
    """Return a process in which nothing has begun; its clock is off by as much as NTP lets it."""
    process = hub.new_process(name, rate=1.0 + 0.0008 * (hub.draw("rate", name) - 0.5))
    process.globals = dict.fromkeys(GLOBALS)
    with hub.of(process):
        made: tuple[Any, ...] = (
            scheduler.Scheduler(),
            {},
            pool.WorkerPool("on-lost", 1000),
            log_queue.new_queue(),
            [],  # `Ending` calls the hooks of `atexit`
            _End(),
            WeakSet(),
            set(),
            _MAIN_IDENT,
            True,  # else the first process of the first run alone would ask for them
        )
        process.globals = dict(zip(GLOBALS, made, strict=True))
    return process
