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
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakKeyDictionary

from lockclient.errors import ClusterMutexError, StoreError, StoreUnavailable
from lockclient.store import LINE_INTERVAL, Event, MutexStore, Withdraw
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

Job = Callable[[], float | None]

CLEAN_UP_TRY = 2.0
LATE = 10.0
"""Seconds after which a request that nobody answered is not expected to arrive any more."""


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
        self._changed = threading.Condition(threading.Lock())
        self._wakes_at = -math.inf
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, job: Job) -> Task:
        """Run `job` in so many seconds."""
        task = Task(job)
        self._put(time.monotonic() + seconds, task)
        return task

    def _put(self, at: float, task: Task) -> None:
        with self._changed:
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
                self._put(time.monotonic() + again, task)

    def _next(self) -> Task:
        with self._changed:
            while True:
                now = time.monotonic()
                if self._heap and (self._heap[0][0] <= now or self._heap[0][2].cancelled):
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
        self._inboxes: set[SimpleQueue[Event]] = set()
        self._task: Task | None = None
        self._lock = threading.Lock()

    def join(self, inbox: SimpleQueue[Event]) -> None:
        """Keep the tickets alive as long as this waiter is in line."""
        with self._lock:
            self._inboxes.add(inbox)
            if self._task is None:
                self._task = the_background().after(LINE_INTERVAL, self._keep)

    def leave(self, inbox: SimpleQueue[Event]) -> None:
        """Forget this waiter."""
        with self._lock:
            self._inboxes.discard(inbox)
            if not self._inboxes and self._task is not None:
                self._task.cancel()
                self._task = None

    def _keep(self) -> float | None:
        try:
            kept = self._store.keep_line(Deadline.after(LINE_INTERVAL))
        except ClusterMutexError as error:
            log.warning("The places in line could not be renewed: %s", error)
            return 1.0
        if not kept:
            with self._lock:
                for inbox in self._inboxes:
                    inbox.put(Event(0, missed=True))
        return LINE_INTERVAL


def clean_up(store: MutexStore, withdraw: Withdraw, *, unsure: bool, patience: float) -> None:
    """Leave no lock and no ticket of an acquisition, for as long as it takes; wait a moment for it.

    The ticket of a living process does not expire (kazoo #732), so this is tried until it is done.
    With `unsure` a request may still be under way to a member that is frozen: it is looked for
    once more when it can't arrive any later.
    """
    looks = 2 if unsure else 1
    pauses = iter([0.2, 0.5, 1.0])

    def job() -> float | None:
        nonlocal looks
        try:
            store.ask(withdraw, Deadline.after(CLEAN_UP_TRY))
        except StoreUnavailable:
            return next(pauses, 2.0)
        except StoreError:
            log.exception("Cleaning up after %r is refused; tried again.", withdraw.name)
            return 30.0
        finished.set()
        _pending.discard(finished)
        looks -= 1
        return LATE if looks else None

    finished = threading.Event()
    _pending.add(finished)
    the_background().after(0, job)
    finished.wait(patience)


_background = Background()
_lines: WeakKeyDictionary[MutexStore, Line] = WeakKeyDictionary()
_pending: set[threading.Event] = set()


def the_background() -> Background:
    """Return this process's background thread."""
    return _background


def line_of(store: MutexStore) -> Line:
    """Return the waiters of this process on a store."""
    line = _lines.get(store)
    return _lines.setdefault(store, Line(store)) if line is None else line


def _start_afresh() -> None:
    """After fork, in the child: threads did not come along, and jobs are the parent's."""
    global _background
    _background = Background()
    _lines.clear()
    _pending.clear()


def _at_exit() -> None:
    """Give clean-up that is under way a moment: the thread ends with the interpreter."""
    deadline = Deadline.after(1.5)
    for finished in list(_pending):
        finished.wait(deadline.remaining())


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_at_exit)
