"""The process's clock: one thread that runs jobs at their times, and starts all other threads.

A job returns in how many seconds it wants to run again, or None when it is done. It never waits
for anything: what asks a store is handed to a `Crew`, so that no job is ever late because of a
store, and no store because of another one. The thread is a daemon, starts when first needed, and
is made anew after a fork.

Nothing here takes a lock. A signal's handler may call anything of ours at any moment, in the very
thread that it interrupts, and would wait for ever for a lock that this thread has: what is shared
are deques and queues, whose operations are one step each.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from lockclient.timing import monotonic

log = logging.getLogger(__name__)

Job = Callable[[], float | None]

RETRY = 1.0
"""Seconds after which a job that failed, or a thread that the system refused, is tried again."""
_LONGEST_SLEEP = 5.0
"""Seconds: a thread's own wait stands still while the machine is suspended, times do not."""
IDLE = 5.0
"""Seconds without work after which a thread of a crew ends."""


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


class Timers:
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
        self._place = deque((True,))  # of the one thread; it takes it itself

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
        try:
            self.start()
        except NoThread as error:  # it is kept, and tried again with the next one
            log.warning("The thread for all that goes on in the background is missing: %s", error)

    def start(self) -> None:
        """Start the thread if it does not run.

        Raises:
            NoThread: it can't be.
        """
        if self._place:
            # Not `Thread.start()`, which is many steps of Python's: interrupted between two of them
            # by a signal's handler, it leaves a thread that hangs before it has begun.
            try:
                start_new_thread(self._run, ())
            except RuntimeError as error:
                raise NoThread(str(error)) from error

    def _run(self) -> None:
        try:
            self._place.pop()
        except IndexError:  # two were started at once, each by somebody who saw none
            return
        threading.current_thread().name = "clustermutex-timers"
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


class Crew:
    """Daemon threads that do pieces of work, so many at once; they end when there is none.

    Args:
        name: of its threads.
        at_most: threads at once.
    """

    def __init__(self, name: str, at_most: int) -> None:
        self._name = f"clustermutex-{name}"
        self._at_most = at_most
        self._todo: deque[Callable[[], object]] = deque()
        self._bells: deque[SimpleQueue[None]] = deque()  # of the threads that wait for work
        self._threads: set[threading.Thread] = set()
        self._refused = False
        self._closed = False

    def do(self, work: Callable[[], object]) -> None:
        """Have it done as soon as a thread is free; what the system refuses is tried on."""
        self._todo.append(work)
        try:
            self._bells.pop().put(None)
        except IndexError:
            the_timers().after(0, self._add_thread)

    def help_out(self) -> None:
        """Do in this thread what no thread can be had for, as the interpreter ends."""
        if self._refused and self._todo:
            with suppress(IndexError):
                self._todo.popleft()()

    def close(self) -> None:
        """Let the threads end when they are done with what there is."""
        self._closed = True
        while self._bells:
            self._bells.pop().put(None)

    def threads(self) -> list[threading.Thread]:
        """Return the threads that there are."""
        return list(self._threads)

    def _add_thread(self) -> float | None:
        """Called by the timers' thread alone: it counts the threads."""
        if not self._todo or len(self._threads) >= self._at_most:
            return None  # those at work look for more when they are done
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            if not self._refused and "shutdown" not in str(error):
                log.warning("The system refuses a thread, trying on: %s", error)
            self._refused = True
            return RETRY / 10
        self._refused = False
        return 0.0 if len(self._todo) > 1 else None

    def _work(self) -> None:
        bell: SimpleQueue[None] = SimpleQueue()
        try:
            while self._do_all() and self._wait(bell):
                pass
        finally:
            self._threads.discard(threading.current_thread())
            if self._todo:  # it came in the last moment, when there seemed to be a thread
                the_timers().after(0, self._add_thread)

    def _do_all(self) -> bool:
        while True:
            try:
                work = self._todo.popleft()
            except IndexError:
                return not self._closed
            try:
                work()
            except Exception:  # noqa: BLE001 - the thread is needed for the next one
                _report("Work in the background failed.")
            del work  # it may hold what nobody else needs any more

    def _wait(self, bell: SimpleQueue[None]) -> bool:
        """Wait for more; False if there was nothing for long."""
        self._bells.append(bell)
        # First the bell, then the look: who brings work does it the other way round.
        quiet = False
        if not self._todo and not self._closed:
            try:
                bell.get(timeout=IDLE)
            except Empty:
                quiet = True
            else:
                return True
        try:
            self._bells.remove(bell)
        except ValueError:
            return True  # somebody rings
        return not quiet


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


_timers = Timers()


def the_timers() -> Timers:
    """Return this process's clock."""
    return _timers


def _start_afresh() -> None:
    """After fork, in the child: threads did not come along, and jobs are the parent's."""
    global _timers
    _timers = Timers()


os.register_at_fork(after_in_child=_start_afresh)
