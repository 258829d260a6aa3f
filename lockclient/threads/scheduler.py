"""The process's clock: one thread that runs jobs at their times, and starts all other threads.

A job returns in how many seconds it wants to run again, or None when it is done. It never waits
for anything: what asks a store is handed to a `WorkerPool`, so that no job is ever late because of
a store, and no store because of another one. The thread is a daemon, starts when first needed, and
is made anew after a fork.

Nothing here takes a lock. A signal's handler may call anything of ours at any moment, in the very
thread that it interrupts, and would wait for ever for a lock that this thread has: what is shared
are deques and queues, whose operations are one step each.

Before Python 3.13 a `SimpleQueue` that is waited at for so long waits for ever, if a signal's
handler interrupts that and it goes on only when the time is up, as in a process that was stopped
meanwhile: it takes what is left, which is negative, for no limit. So no signal comes to this
thread; the threads of a crew may, unharmed, wait too long for work, and all others wait otherwise.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import signal
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from lockclient.model.clocks import monotonic

log = logging.getLogger(__name__)

Job = Callable[[], float | None]

RETRY = 1.0
"""Seconds after which a job that failed, or a thread that the system refused, is tried again."""
_LONGEST_SLEEP = 5.0
"""Seconds: a thread's own wait stands still while the machine is suspended, times do not."""
IDLE = 5.0
"""Seconds without work after which a thread of a crew ends."""


_SYNCHRONOUS: Final = {
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
    *(signal.SIGABRT, signal.SIGSYS),
}
"""What a thread does to itself: blocked, it would end the process without `faulthandler`'s word."""
_SENT: Final = signal.valid_signals() - _SYNCHRONOUS


class Undoing(Protocol):
    """What somebody was about to have, and has not."""

    def let_go(self) -> None:
        """Undo it, waiting for nothing; twice does no harm."""


class NoThread(Exception):
    """The system refuses a thread. The reason is the text."""


class Task:
    """A job on the list."""

    __slots__ = ("_failing", "_job", "cancelled")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._failing = False
        self.cancelled = False

    def cancel(self) -> None:
        """Never run it again; a run under way goes on to its end."""
        self.cancelled = True

    def run(self) -> float | None:
        """Run it once; return in how many seconds to run it again.

        Nothing ends a job but its own end: one that raises is tried again, and logged once.
        """
        try:
            again = None if self.cancelled else self._job()
        except Exception:  # noqa: BLE001 - only its own end ends it
            if not self._failing:
                _report("A job in the background failed and is tried again.")
            self._failing = True
            return RETRY
        self._failing = False
        return again


class Scheduler:
    """A thread that runs jobs at their times, one after the other."""

    def __init__(self) -> None:
        self._new: deque[tuple[float, int, Task]] = deque()
        self._heap: list[tuple[float, int, Task]] = []  # the thread's own
        self._numbers = itertools.count()
        self._clear_at = 1000  # entries at which the cancelled ones among them are thrown away
        self._bell: SimpleQueue[Undoing | None] = SimpleQueue()
        self.undo = self._bell.put
        """Have it undone by the thread. This is one step, in C: what a signal's handler raises
        comes before it or after it, and not in the middle."""
        self._wakes_at = -math.inf
        self.mask: set[int] = set()
        """The signals that are blocked in other threads. They must not all be: a program that a
        thread starts, in `on_lost` say, has those blocked that were blocked in that thread."""
        self.missing = deque((True,))
        """The place of the one thread, as long as there is none: it takes that itself."""

    def after(self, seconds: float, job: Job) -> Task:
        """Run `job` in so many seconds."""
        task = Task(job)
        self.schedule(task, seconds)
        return task

    def schedule(self, task: Task, seconds: float) -> None:
        """Run a task in so many seconds."""
        at = monotonic() + seconds
        self._new.append((at, next(self._numbers), task))
        if at < self._wakes_at:
            self._bell.put(None)  # otherwise it wakes in time by itself: no thread switch
        if self.missing:
            try:
                self.start()
            except NoThread as error:  # it is kept, and tried again with the next one
                log.warning("The thread for what goes on in the background is missing: %s", error)

    def start(self) -> None:
        """Start the thread if it does not run.

        Raises:
            NoThread: it can't be.
        """
        if self.missing:
            # Not `Thread.start()`, which is many steps of Python's: interrupted between two of them
            # by a signal's handler, it leaves a thread that hangs before it has begun.
            try:
                start_new_thread(self._run, ())
            except RuntimeError as error:
                raise NoThread(str(error)) from error

    def _run(self) -> None:
        try:
            self.missing.pop()
        except IndexError:  # two were started at once, each by somebody who saw none
            return
        threading.current_thread().name = "clustermutex-timers"
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT)
        while True:
            self._run_due()
            # First the time, then the look at what is new: who adds does it the other way round.
            self._wakes_at = self._heap[0][0] if self._heap else math.inf
            if not self._new:
                pause = max(0.0, self._wakes_at - monotonic())
                with suppress(Empty):
                    _let_go(self._bell.get(timeout=min(_LONGEST_SLEEP, pause)))
            self._wakes_at = -math.inf

    def _run_due(self) -> None:
        while self._new:
            heapq.heappush(self._heap, self._new.popleft())
        if len(self._heap) >= self._clear_at:
            self._heap = [each for each in self._heap if not each[2].cancelled]
            heapq.heapify(self._heap)
            self._clear_at = max(1000, 2 * len(self._heap))
        while self._heap and self._heap[0][0] <= monotonic():
            task = heapq.heappop(self._heap)[2]
            again = task.run()
            if again is not None:
                self._new.append((monotonic() + again, next(self._numbers), task))


class WorkerPool:
    """Daemon threads that do pieces of work, so many at once; they end when there is none.

    Args:
        name: of its threads.
        at_most: threads at once.
    """

    def __init__(self, name: str, at_most: int) -> None:
        self._name = f"clustermutex-{name}"
        self._at_most = at_most
        self._todo: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._free = deque[bool]()  # an entry for each thread that waits for work
        self._threads: set[threading.Thread] = set()
        self.refused = False
        """Whether the system refused the last thread that was asked for."""
        self._closed = False

    def submit(self, work: Callable[[], object]) -> None:
        """Have it done as soon as a thread is free; what the system refuses is tried on."""
        # First the work, then the look: a thread that is taken for a free one, and has got another
        # piece at that moment, looks for more when it is no longer counted as free.
        self._todo.put(work)
        if not self._free:
            self._want_thread()

    def _want_thread(self) -> None:
        shared.after(0, self._add_thread)

    def help_out(self) -> None:
        """Do in this thread what no thread can be had for, as the interpreter ends."""
        if self.refused:
            with suppress(Empty):
                self._todo.get_nowait()()

    def close(self) -> None:
        """Let the threads end when they are done with what there is."""
        self._closed = True
        for _ in self.threads():
            self._todo.put(_wake)

    def threads(self) -> list[threading.Thread]:
        """Return the threads that there are."""
        return list(self._threads)

    def _add_thread(self) -> float | None:
        """Called by the timers' thread alone: it counts the threads."""
        if self._todo.empty() or len(self._threads) >= self._at_most:
            return None  # those at work look for more when they are done
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            if not self.refused and "shutdown" not in str(error):
                log.warning("The system refuses a thread, trying on: %s", error)
            self.refused = True
            return RETRY / 10
        self.refused = False
        return 0.0 if self._todo.qsize() > 1 else None

    def _work(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, shared.mask)
        try:
            while (work := self._next()) is not None:
                try:
                    work()
                except Exception:  # noqa: BLE001 - the thread is needed for the next one
                    _report("Work in the background failed.")
                del work  # it may hold what nobody else needs any more
        finally:
            self._threads.discard(threading.current_thread())
            if not self._todo.empty():  # there were too many threads when it came
                self._want_thread()

    def _next(self) -> Callable[[], object] | None:
        """Wait for work; None if there was nothing for long."""
        while True:
            self._free.append(True)
            try:
                work = self._todo.get(timeout=0 if self._closed else IDLE)
            except Empty:
                work = None
            self._free.pop()
            if self._todo.empty():
                return work
            if work is not None:
                if not self._free:
                    self._want_thread()
                return work
            # Else it came in the last moment, when there seemed to be a thread.


def _wake() -> None:
    """Do nothing: who waits for work finds that there will be no more."""


def _let_go(undoing: Undoing | None) -> None:
    if undoing is not None:
        try:
            undoing.let_go()
        except Exception:  # noqa: BLE001 - the thread is needed for all else
            _report("Undoing failed.")


def _report(what: str) -> None:
    """Log an exception, whatever the program's own handlers of the log may raise."""
    with suppress(Exception):
        log.error(what, exc_info=True)  # noqa: LOG014 - they are the callers


shared = Scheduler()
"""This process's; to be used as `scheduler.shared`, since a fork's child has another one."""


def _start_afresh() -> None:
    """After fork, in the child: threads did not come along, and jobs are the parent's."""
    global shared
    shared = Scheduler()


os.register_at_fork(after_in_child=_start_afresh)
