"""The process's one background thread, and what runs on it.

Pushes of `keepalive`, the lease of the tickets, loss detection, clean-up: each is a job, a
function that returns in how many seconds it wants to run again, or None when it is done. The
thread is a daemon, starts when first needed, and is made anew after a fork.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from lockclient.driving import Inbox
from lockclient.errors import ClusterMutexError, StoreClosed, StoreUnavailable
from lockclient.store import LINE_INTERVAL, Event, MutexStore, Withdraw
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

Job = Callable[[], float | None]

CLEAN_UP_TRY = 2.0
REFUSED_PAUSE = 30.0
_PAUSES = (0.2, 0.5, 1.0, 2.0)
"""Seconds between two tries of a clean-up that nobody answers."""
AT_EXIT = 1.0
"""Seconds that the end of the interpreter waits for clean-up; all in all it takes two at most."""


class Task:
    """A job on the thread's list."""

    __slots__ = ("_job", "cancelled")

    def __init__(self, job: Job) -> None:
        self._job = job
        self.cancelled = False

    def cancel(self) -> None:
        """Never run it again; a run under way goes on to its end."""
        self.cancelled = True

    def run(self) -> float | None:
        """Run it once; return in how many seconds to run it again."""
        return None if self.cancelled else self._job()


class Background:
    """A thread that runs jobs at their times, one after the other."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._clear_at = 1000  # entries at which the cancelled ones among them are thrown away
        # Always `with self._lock`, never `with self._changed`: entering a condition is Python code,
        # and a KeyboardInterrupt in there would leave the lock taken for ever.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wakes_at = -math.inf
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, job: Job) -> Task:
        """Run `job` in so many seconds."""
        task = Task(job)
        self.schedule(task, seconds)
        return task

    def schedule(self, task: Task, seconds: float) -> None:
        """Run a task in so many seconds."""
        at = time.monotonic() + seconds
        with self._lock:
            if len(self._heap) >= self._clear_at:
                self._heap = [each for each in self._heap if not each[2].cancelled]
                heapq.heapify(self._heap)
                self._clear_at = max(1000, 2 * len(self._heap))
            heapq.heappush(self._heap, (at, next(self._numbers), task))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clustermutex-background", daemon=True
                )
                self._thread.start()
            elif at < self._wakes_at:
                self._changed.notify()  # otherwise it wakes in time by itself: no thread switch

    def _run(self) -> None:
        while True:
            task = self._next()
            try:
                again = task.run()
            except Exception:
                log.exception("A background job failed.")
                continue
            if again is not None:
                self.schedule(task, again)

    def _next(self) -> Task:
        with self._lock:
            while True:
                now = time.monotonic()
                # A cancelled one stays until its time has come, too: were it taken off now, the
                # next one would come before the thread's next waking and cost a thread switch,
                # at every short critical section.
                if self._heap and self._heap[0][0] <= now:
                    return heapq.heappop(self._heap)[2]
                self._wakes_at = self._heap[0][0] if self._heap else math.inf
                timeout = self._wakes_at - now if self._heap else None
                self._changed.wait(timeout)
                self._wakes_at = -math.inf


class Line:
    """The waiters of this process on one store: their tickets are kept alive while there are any.

    A waiter joins with its inbox; when the tickets are lost it is told to look for itself.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._inboxes: set[Inbox] = set()
        self._task: Task | None = None
        self._failing = False
        self._lock = threading.Lock()

    def join(self, inbox: Inbox) -> None:
        """Keep the tickets alive as long as this waiter is in line."""
        with self._lock:
            self._inboxes.add(inbox)
            if self._task is None:
                self._task = the_background().after(LINE_INTERVAL, self._keep)

    def leave(self, inbox: Inbox) -> None:
        """Forget this waiter."""
        with self._lock:
            self._inboxes.discard(inbox)

    def _keep(self) -> float | None:
        with self._lock:
            # Not when the last one leaves: who is woken often leaves and joins as often, and the
            # tickets would never be renewed.
            if not self._inboxes:
                self._task = None
                return None
        try:
            kept = self._store.keep_line(Deadline.after(LINE_INTERVAL))
        except ClusterMutexError as error:
            if not self._failing:  # once for an outage
                log.warning("The places in line could not be renewed, trying on: %s", error)
            self._failing = True
            return 1.0
        self._failing = False
        if not kept:
            with self._lock:
                for inbox in self._inboxes:
                    inbox.put(Event(0, missed=True))
        return LINE_INTERVAL


class CleanUp:
    """What of this process is to be withdrawn from one store, one after the other.

    The ticket of a living process does not expire (kazoo #732), so each is tried until it is done.
    While the store does not answer only the first is tried, however many there are: the thread is
    needed for other things.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._todo: deque[tuple[Withdraw, Callable[[], object]]] = deque()
        self._lock = threading.Lock()
        self._running = False
        self._pauses = iter(_PAUSES)

    def add(self, withdraw: Withdraw, done: Callable[[], object]) -> None:
        """Withdraw this soon, and say when it is done."""
        with self._lock:
            self._todo.append((withdraw, done))
            if not self._running:
                # Before it is noted: were it the other way round, an interrupt in between would
                # leave this and all to come undone. One that runs without need ends at once.
                the_background().after(0, self._run)
                self._running = True

    def pending(self) -> bool:
        """Tell whether there is anything left to do."""
        return self._running

    def _run(self) -> float | None:
        while True:
            with self._lock:
                if not self._todo:
                    self._running = False
                    return None
                withdraw, done = self._todo.popleft()
            try:
                self._store.ask(withdraw, Deadline.after(CLEAN_UP_TRY))
                done()
            except StoreUnavailable:
                with self._lock:
                    self._todo.appendleft((withdraw, done))
                return next(self._pauses, _PAUSES[-1])
            except StoreClosed:
                name = withdraw.name
                log.info("What is left of %r is not cleaned up: the store is closed.", name)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must go on
                log.error("Cleaning up after %r is refused and tried on: %s", withdraw.name, error)
                the_background().after(REFUSED_PAUSE, partial(self.add, withdraw, done))
            else:
                self._pauses = iter(_PAUSES)


def clean_up(
    store: MutexStore, withdraw: Withdraw, tell: Callable[[], object] = lambda: None
) -> None:
    """Leave nothing of an acquisition, for as long as that takes; `tell` when it is so."""
    _clean_up_of(store).add(withdraw, tell)


_background = Background()
_lines: WeakKeyDictionary[MutexStore, Line] = WeakKeyDictionary()
_clean_ups: WeakKeyDictionary[MutexStore, CleanUp] = WeakKeyDictionary()


def the_background() -> Background:
    """Return this process's background thread."""
    return _background


def line_of(store: MutexStore) -> Line:
    """Return the waiters of this process on a store."""
    line = _lines.get(store)
    return _lines.setdefault(store, Line(store)) if line is None else line


def _clean_up_of(store: MutexStore) -> CleanUp:
    found = _clean_ups.get(store)
    return _clean_ups.setdefault(store, CleanUp(store)) if found is None else found


def _start_afresh() -> None:
    """After fork, in the child: threads did not come along, and jobs are the parent's."""
    global _background
    _background = Background()
    _lines.clear()
    _clean_ups.clear()


def _at_exit() -> None:
    """Give clean-up that is under way a moment: the thread ends with the interpreter."""
    deadline = Deadline.after(AT_EXIT)
    while any(each.pending() for each in list(_clean_ups.values())) and not deadline.expired():
        time.sleep(0.01)


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_at_exit)
