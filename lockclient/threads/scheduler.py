"""Scheduler: one thread per process that runs jobs at their times, and starts all other threads.

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
thread; the threads of a pool may, unharmed, wait too long for work, and all others wait otherwise.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import signal
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from lockclient.model.clocks import monotonic
from lockclient.threads.at_exit import arm
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentry import mark_thread

log = get_logger(__name__)

Job = Callable[[], float | None]

RETRY_S = 1.0
"""Seconds after which a job that failed, or a thread that the system refused, is tried again."""
MAX_SLEEP_S = 5.0
"""Seconds: a thread's own wait stands still while the machine is suspended, times do not."""


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


class _Mark:
    """An entry of the bell: the thread has handled all entries before it."""

    def __init__(self) -> None:
        self.reached = allocate_lock()
        self.reached.acquire()
        self.let_go = self.reached.release


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
                report("A job in the background failed and is tried again.")
            self._failing = True
            return RETRY_S
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

    def flush(self, seconds: float) -> None:
        """Wait until the thread has handled each earlier `undo`, but not longer than that.

        The bell is first in, first out: the mark is reached after what was put before it.
        """
        if sys.is_finalizing() or (self.missing and self._bell.empty()):
            return  # the thread does not run any more, or never did
        mark = _Mark()
        self._bell.put(mark)
        mark.reached.acquire(timeout=max(0.0, seconds))

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
                log.warning("The thread for background work can't be started: %s", error)

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
        mark_thread()
        threading.current_thread().name = "clustermutex-timers"
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT)
        arm()
        while True:
            self._run_due()
            # First the time, then the look at what is new: who adds does it the other way round.
            self._wakes_at = self._heap[0][0] if self._heap else math.inf
            if not self._new:
                pause = max(0.0, self._wakes_at - monotonic())
                with suppress(Empty):
                    _let_go(self._bell.get(timeout=min(MAX_SLEEP_S, pause)))
            self._wakes_at = -math.inf

    def _run_due(self) -> None:
        while self._new:
            heapq.heappush(self._heap, self._new.popleft())
        if len(self._heap) >= self._clear_at:
            self._heap = [entry for entry in self._heap if not entry[2].cancelled]
            heapq.heapify(self._heap)
            self._clear_at = max(1000, 2 * len(self._heap))
        while self._heap and self._heap[0][0] <= monotonic():
            task = heapq.heappop(self._heap)[2]
            again = task.run()
            if again is not None:
                self._new.append((monotonic() + again, next(self._numbers), task))

            # Else it came in the last moment, when there seemed to be a thread.


def _let_go(undoing: Undoing | None) -> None:
    if undoing is not None:
        try:
            undoing.let_go()
        except Exception:  # noqa: BLE001 - the thread is needed for all else
            report("Undoing failed.")


def report(what: str) -> None:
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
