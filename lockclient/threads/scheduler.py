"""Scheduler: a daemon thread that runs jobs at their times, and starts the threads of all pools.

A job never waits: requests to a store go to a `WorkerPool`. So no store delays a job.

A signal handler or a finalizer may call anything here at any line of any thread, and would wait for
ever for a lock that its own thread holds. So threads share deques and queues, whose operations are
one C call each; only the scheduler's thread uses the heap.

Before Python 3.13, a `SimpleQueue.get(timeout=…)` that a signal interrupts, and that continues only
after its time, waits for ever: CPython takes the negative rest for no limit. That happens in a
process that was stopped (Ctrl-Z, a container's pause). So this thread blocks all signals. A pool's
thread that waits too long does no harm. No other thread waits for a `SimpleQueue`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import signal
import sys
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from lockclient.model.clocks import monotonic
from lockclient.threads.daemon_thread import (
    SYNCHRONOUS_SIGNALS,
    DaemonThread,
    is_interpreter_end,
)
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentrancy import mark_thread

log = get_logger(__name__)

Job = Callable[[], float | None]
"""Returns in how many seconds to run again; None: it is done."""

RETRY_S = 1.0
"""Seconds after which a job that raised is run again."""
MAX_SLEEP_S = 5.0
"""Seconds of one wait: a suspended machine stops the wait, but not the jobs' clock."""
on_start: list[Callable[[], object]] = []
"""Called by the thread as it starts."""


class CleanUp(Protocol):
    """An object whose `clean_up` this thread calls: a failed acquisition, a leaked lock."""

    def clean_up(self) -> None:
        """Withdraw, release or warn, without blocking. A second call has no effect."""


class _Mark:
    """An entry of the queue of clean-ups: the thread has handled all entries before it."""

    def __init__(self) -> None:
        self.reached = allocate_lock()
        self.reached.acquire()
        self.clean_up = self.reached.release


class Task:
    """A job that is scheduled."""

    __slots__ = ("_failing", "_job", "cancelled")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._failing = False
        self.cancelled = False

    def cancel(self) -> None:
        """Never run it again."""
        self.cancelled = True

    def run(self) -> float | None:
        """Run the job; return in how many seconds to run it again.

        A job that raises is logged once and runs again in `RETRY_S`, until it returns None.
        """
        try:
            again = None if self.cancelled else self._job()
        except BaseException:  # noqa: BLE001 - only its own None ends it
            if not self._failing:
                report("A job in the background failed.")
            self._failing = True
            return RETRY_S
        self._failing = False
        return again


class Scheduler(DaemonThread):
    """A thread that runs jobs at their times, one after the other."""

    def __init__(self) -> None:
        super().__init__("clustermutex-timers")
        self._new: deque[tuple[float, int, Task]] = deque()
        self._heap: list[tuple[float, int, Task]] = []  # the thread's own
        self._numbers = itertools.count()
        self._clear_at = 1000  # entries of the heap at which cancelled ones are thrown away
        self._clean_ups: SimpleQueue[CleanUp | None] = SimpleQueue()
        self.clean_up = self._clean_ups.put
        """Have the thread call an object's `clean_up`: one C call, so that a signal handler's
        exception comes before it or after it."""
        self._wakes_at = -math.inf

    def flush(self, seconds: float) -> None:
        """Wait until the thread has handled each earlier `clean_up`, at most for `seconds`."""
        if sys.is_finalizing() or (self.missing and self._clean_ups.empty()):
            return  # the thread does not run any more, or never did
        if self.missing and not self._is_running():
            return
        mark = _Mark()
        self._clean_ups.put(mark)
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
            self._clean_ups.put(None)  # else the thread wakes in time by itself
        if self.missing and not self._is_running():
            self._run_due()

    def _is_running(self) -> bool:
        """Return whether the thread runs, or starts now, or will start.

        If the interpreter ends and starts no thread, the caller runs what is due: no other thread
        does. If the system has none left, the task stays, and the next call starts the thread.
        """
        try:
            self.start()
        except RuntimeError as error:
            if is_interpreter_end(error):
                return False
            log.warning("The thread for background work can't be started: %s", error)
        return True

    def _begin(self) -> None:
        mark_thread()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - SYNCHRONOUS_SIGNALS)
        for call in on_start:
            call()

    def _turn(self) -> None:
        self._run_due()
        # This thread sets `_wakes_at`, then reads `_new`. `schedule` appends to `_new`, then reads
        # `_wakes_at`. So at least one of them sees the other.
        self._wakes_at = self._heap[0][0] if self._heap else math.inf
        if not self._new:
            pause = max(0.0, self._wakes_at - monotonic())
            with suppress(Empty):
                item = self._clean_ups.get(timeout=min(MAX_SLEEP_S, pause))
                if item is not None:
                    Task(item.clean_up).run()
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


def report(what: str) -> None:
    """Log the exception that is being handled; ignore what the program's log handlers raise."""
    with suppress(Exception):
        log.error(what, exc_info=True)  # noqa: LOG014 - they are the callers


shared = Scheduler()
"""The scheduler of this process; a fork's child has another one in `scheduler.shared`."""


def _start_afresh() -> None:
    """Called in a fork's child: the thread and the jobs are the parent's."""
    global shared
    shared = Scheduler()


os.register_at_fork(after_in_child=_start_afresh)
