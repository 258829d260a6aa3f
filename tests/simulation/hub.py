"""Virtual time, processes and threads: a seed alone decides the order of execution.

Each thread of the real code is a greenlet here. It goes on until it waits for something, and then
the next entry of one heap of moments has its turn. So a run that takes minutes for the code takes
milliseconds, and two runs of one seed are the same.

What is drawn by chance is drawn by name and number (`Hub.draw`), and not from one sequence: the
order in which a set is walked through, or a step that is left out while a failure is shrunk, then
changes nothing for anybody else.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from random import Random
from typing import Any
from uuid import UUID

from greenlet import GreenletExit, getcurrent, greenlet

BEGIN = 1000.0
"""When a run begins, on the monotonic clock of nobody."""
WALL = 1_700_000_000.0
"""The same moment on the wall clock."""
SWITCH_S = 0.0005
"""Seconds that it takes at most until a thread that was woken goes on."""


class Process:
    """A virtual process: clocks of its own, and what its modules keep as globals.

    Args:
        name: by which the history knows it.
        rate: seconds of its clocks in a second.
    """

    def __init__(self, name: str, rate: float = 1.0) -> None:
        self.name = name
        self.rate = rate
        self.wall_ahead = 0.0
        self.dead = False
        self.frozen_until = -math.inf
        self.globals: dict[tuple[Any, str], Any] = {}
        self.numbers = itertools.count()
        self.chance = Random()
        self.actors: dict[object, str] = {}
        self.cut_off_until = -math.inf
        self.hangs: Collection[str] = ()
        """Names of tasks that never end."""
        self.is_ending = False
        """True from the begin of `atexit` on."""
        self.starts_no_thread = False
        """True if it ends as Python 3.12 does, which starts no thread then."""

    def enter(self) -> None:
        """Have this process's globals in their modules."""
        for (module, name), value in self.globals.items():
            setattr(module, name, value)


class Thread:
    """A greenlet with the interface of `threading.Thread`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        daemon: bool | None = None,
    ) -> None:
        self.hub = Hub.current
        self.process = self.hub.process
        self.name, self.daemon, self._target, self._args = name, daemon, target, args
        self.ident: int | None = None
        self.epoch = 0
        self.loop: Any = None
        self.begun, self.ended = Event(), Event()
        self.greenlet = greenlet(self._main, self.hub.greenlet)

    def start(self) -> None:
        """Run it, as soon as it has its turn; return when it has begun, as real ones do."""
        if self.process.starts_no_thread:
            raise RuntimeError("can't start new thread at interpreter shutdown")
        self.ident = next(self.hub.idents)
        self.hub.threads[self.greenlet] = self
        self.hub.wake(self)
        if self.hub.this_thread() is not None:
            self.begun.wait()

    def _main(self, *_: object) -> None:
        self.begun.set()
        try:
            if self._target is not None:
                self._target(*self._args)
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001 - it is reported with its seed
            self.hub.failed(self, error)
        finally:
            self.hub.threads.pop(self.greenlet, None)
            if not self.hub.over:
                self.ended.set()

    def is_alive(self) -> bool:
        """Tell whether it was started and has not ended."""
        return self.ident is not None and not self.ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self.ended.wait(timeout)


class Hub:
    """One run.

    Args:
        seed: of all that is drawn.
    """

    current: Hub

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = BEGIN
        self.over = False
        self.greenlet = getcurrent()
        self.threads: dict[greenlet, Thread] = {}
        self.processes: dict[str | None, Process] = {}
        self.idents = itertools.count(1_000_000)
        self.process = self.outside = self.new_process("outside")
        self.errors: list[str] = []
        self.clock_offsets: Callable[[], list[float]] = lambda: [0.0]
        """Seconds by which the members' clocks are ahead of the process that asks."""
        self.order = blake2b(digest_size=8)
        self._heap: list[tuple[float, float, int, Process, Callable[[], object]]] = []
        self._numbers = itertools.count()
        Hub.current = self

    def new_process(self, name: str, rate: float = 1.0) -> Process:
        """Return a process, with numbers of its own."""
        process = Process(name, rate)
        process.chance.seed(self.draw("process", name))
        self.processes[name] = process
        return process

    # ------------------------------------------------------------ chance

    def draw(self, *about: object) -> float:
        """Return a number from 0 to 1 that depends on what it is about, and on the seed."""
        words = "/".join(map(str, (self.seed, *about)))
        return int.from_bytes(blake2b(words.encode(), digest_size=7).digest(), "big") / 2**56

    def draw_for(self, process: Process) -> float:
        """Return the next number of a process's own, quickly."""
        return process.chance.random()

    def draw_next(self, *about: object) -> float:
        """Return the next number of this process's own."""
        return self.draw(self.process.name, next(self.process.numbers), *about)

    def uuid(self) -> UUID:
        """Return the next uuid of this process's own."""
        words = f"{self.seed}/{self.process.name}/{next(self.process.numbers)}"
        return UUID(bytes=blake2b(words.encode(), digest_size=16).digest(), version=4)

    def happened(self, *words: object) -> None:
        """Note a step: the steps distinguish orders."""
        self.order.update(repr(words).encode())

    # ------------------------------------------------------------ clocks

    def monotonic(self) -> float:
        """Return the monotonic time of the process that asks."""
        return BEGIN + (self.now - BEGIN) * self.process.rate

    def wall(self) -> float:
        """Return the wall-clock time of the process that asks."""
        return WALL + self.now - BEGIN + self.process.wall_ahead

    # ------------------------------------------------------------ who goes on

    def at(self, moment: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Have it called at a moment, for a process, or for nobody."""
        owner = process or self.outside
        tie = self.draw_for(owner)
        heapq.heappush(self._heap, (moment, tie, next(self._numbers), owner, call))

    def wake(self, thread: Thread, *, woken: bool = True) -> None:
        """Have a thread go on soon."""
        epoch = thread.epoch
        pause = SWITCH_S * self.draw_for(thread.process)
        self.at(self.now + pause, lambda: self._resume(thread, epoch, woken), thread.process)

    def wait(self, timeout: float | None = None) -> bool:
        """Let others go on until this thread is woken; False: the time was up first."""
        thread = self.threads.get(getcurrent())
        if self.over or thread is None:
            raise GreenletExit
        epoch = thread.epoch
        if timeout is not None:
            moment = self.now + max(0.0, timeout) / self.process.rate
            self.at(moment, lambda: self._resume(thread, epoch, False), thread.process)
        thread.loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        woken = self.greenlet.switch()
        if self.over:
            raise GreenletExit
        asyncio._set_running_loop(thread.loop)
        return bool(woken)

    def this_thread(self) -> Thread | None:
        """Return the thread that runs."""
        return self.threads.get(getcurrent())

    def _resume(self, thread: Thread, epoch: int, woken: bool) -> None:
        if thread.epoch == epoch:  # else it went on by something else
            thread.epoch += 1
            thread.greenlet.switch(woken)

    def run(self, until: float) -> None:
        """Go on to a moment."""
        entered: Process | None = None
        while self._heap and self._heap[0][0] <= until:
            moment, _, _, process, call = heapq.heappop(self._heap)
            self.now = max(self.now, moment)
            if process.dead:
                continue
            if process.frozen_until > self.now:
                self.at(process.frozen_until, call, process)
                continue
            self.process = process
            if process is not entered:
                process.enter()
                entered = process
            call()
            self.process = self.outside
        self.now = until

    def failed(self, thread: Thread, error: BaseException) -> None:
        """Take note of what a thread has raised, and nobody caught."""
        trace = "".join(traceback.format_exception(error)[-3:])
        self.errors.append(f"{thread.process.name}/{thread.name}: {trace}")

    def end(self) -> None:
        """End all threads, where they stand."""
        self.over = True
        for thread in list(self.threads.values()):
            thread.greenlet.throw(GreenletExit)
        asyncio._set_running_loop(None)

    @contextmanager
    def of(self, process: Process) -> Iterator[None]:
        """Make what belongs to a process."""
        before, self.process = self.process, process
        process.enter()
        try:
            yield
        finally:
            self.process = before


# ---------------------------------------------------------------- what threads wait at


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        """Tell whether it is set."""
        return self._set

    def set(self, *_: object) -> None:
        """Wake the waiters."""
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            thread.hub.wake(thread)

    def clear(self) -> None:
        """Have the next ones wait."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or the time is up."""
        hub, until = Hub.current, math.inf
        if timeout is not None:
            until = hub.now + timeout / hub.process.rate
        while not self._set and hub.now < until:
            thread = hub.this_thread()
            if thread is None:
                raise GreenletExit
            self._waiting.append(thread)
            hub.wait(None if until == math.inf else (until - hub.now) * hub.process.rate)
        return self._set


class Lock:
    """`threading.Lock`: a thread may lose its turn before it takes it, as between any two steps."""

    def __init__(self) -> None:
        self._taken = False
        self._free = Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it."""
        hub = Hub.current
        until = math.inf if timeout < 0 else hub.now + timeout
        while self._taken:
            if not blocking or hub.now >= until:
                return False
            self._free.clear()
            self._free.wait(None if until == math.inf else until - hub.now)
        self._taken = True
        return True

    def release(self, *_: object) -> None:
        """Give it back."""
        self._taken = False
        self._free.set()

    def locked(self) -> bool:
        """Tell whether it is taken."""
        return self._taken

    __enter__ = acquire
    __exit__ = release


class Condition(Lock):
    """`threading.Condition`, as far as a bounded queue wants it."""

    def __init__(self) -> None:
        super().__init__()
        self._news = Event()

    def wait_for(self, ready: Callable[[], object]) -> None:
        """Wait until it is so."""
        while not ready():
            self._news.clear()
            self.release()
            self._news.wait()
            self.acquire()

    def notify_all(self) -> None:
        """Have all look again."""
        self._news.set()
