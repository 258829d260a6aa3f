"""Worker pool: daemon threads that start when there is work, up to a number, and end when idle.

Any caller may submit work, also a signal handler or a finalizer: `submit` takes no lock. The
scheduler's thread alone starts the threads of all pools, and counts them.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from lockclient.model.clocks import monotonic
from lockclient.threads import scheduler
from lockclient.threads.daemon_thread import is_interpreter_end, set_program_mask
from lockclient.threads.reentrancy import mark_thread
from lockclient.threads.scheduler import Job, Task

Work = Callable[..., object]

IDLE_S = 5.0
"""Seconds without work after which a thread of a pool ends."""


class WorkerPool:
    """A pool of threads.

    Args:
        name: the threads' name.
        at_most: the most threads at the same time.
        if_refused: if the system refuses a thread, the scheduler's thread calls this with each
            piece of waiting work and the error; None: the work waits, and it asks again. If the
            interpreter ends and starts no thread, the scheduler's thread does the work.
    """

    def __init__(
        self,
        name: str,
        at_most: int,
        if_refused: Callable[[Work, RuntimeError], object] | None = None,
    ) -> None:
        self._name = f"clustermutex-{name}"
        self._at_most = at_most
        self._if_refused = if_refused
        self._todo: SimpleQueue[Work | None] = SimpleQueue()  # None ends a thread
        self._free = deque[bool]()  # an entry for each thread that waits for work
        self._threads: set[threading.Thread] = set()
        self._adding = Task(self._add_thread)
        self._is_closed = False

    def submit(self, work: Work) -> None:
        """Have a free or a new thread do the work."""
        # The caller queues the work, then reads `_free`. A thread removes its entry from `_free`,
        # then reads the queue. So at least one of them sees the other, and asks for a thread.
        self._todo.put(work)
        if not self._free:
            scheduler.shared.schedule(self._adding, 0)

    def repeat(self, job: Job, seconds: float = 0.0) -> Repeating:
        """Have a thread run a job in so many seconds, and again and again, never twice at once."""
        repeating = Repeating(self.submit, job)
        repeating.run_within(seconds)
        return repeating

    def close(self) -> None:
        """End each thread when there is no work."""
        # This thread sets the flag, then queues an end for each thread. A thread that still works
        # reads the flag afterwards. So each thread sees one of the two.
        self._is_closed = True
        for _ in self.threads():
            self._todo.put(None)

    def threads(self) -> list[threading.Thread]:
        """Return the threads that run."""
        return list(self._threads)

    def _add_thread(self) -> float | None:
        """Called by the scheduler's thread; raises the system's refusal, so it is called again."""
        if self._todo.empty() or len(self._threads) >= self._at_most:
            return None  # a thread reads the queue again when it is done
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            if self._if_refused is None and not is_interpreter_end(error):
                raise
            with suppress(Empty):
                while True:
                    if (work := self._todo.get_nowait()) is not None:
                        (self._if_refused or _work_here)(work, error)
            return None
        return 0.0 if self._todo.qsize() > 1 else None

    def _work(self) -> None:
        mark_thread()
        set_program_mask()
        try:
            while True:
                self._free.append(True)
                try:
                    work = self._todo.get(timeout=IDLE_S)
                except Empty:
                    return
                finally:
                    self._free.pop()
                if work is None:
                    return
                if not (self._todo.empty() or self._free):
                    scheduler.shared.schedule(self._adding, 0)
                try:
                    work()
                except BaseException:  # noqa: BLE001 - the thread must not end
                    scheduler.report("Work in the background failed.")
                del work  # so that its objects are freed now
                if self._is_closed and self._todo.empty():
                    return
        finally:
            self._threads.discard(threading.current_thread())
            if not self._todo.empty():
                scheduler.shared.schedule(self._adding, 0)


def _work_here(work: Work, _refusal: RuntimeError) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001 - the other work must be done
        scheduler.report("Work in the background failed.")


class Repeating:
    """A job that threads of a pool run again and again, never twice at once.

    The next run begins after the end of this one: in as many seconds as the job returns, or in
    `RETRY_S` if it raises; None: not before the next `run_within`.

    Any thread may call `run_within`; the scheduler's thread alone reads and writes the times.
    """

    def __init__(self, submit: Callable[[Work], object], job: Job) -> None:
        self._submit = submit
        self._task = Task(job)
        self._is_running = False
        self._next_at = math.inf

    def run_within(self, seconds: float) -> None:
        """Begin a run in at most so many seconds, after the end of one that runs then."""
        scheduler.shared.after(0, partial(self._schedule, monotonic() + seconds))

    def _schedule(self, at: float) -> None:
        if at < self._next_at:
            self._next_at = at
            scheduler.shared.after(at - monotonic(), self._start)

    def _start(self) -> float | None:
        """Start a run if one is due; return the seconds until then."""
        if self._is_running or self._next_at == math.inf:
            return None
        if (left := self._next_at - monotonic()) > 0:
            return left
        self._is_running, self._next_at = True, math.inf
        self._submit(self._run)
        return None

    def _run(self) -> None:
        again = self._task.run()
        at = math.inf if again is None else monotonic() + again
        scheduler.shared.after(0, partial(self._ended, at))

    def _ended(self, at: float) -> None:
        self._is_running = False
        at, self._next_at = min(at, self._next_at), math.inf
        self._schedule(at)
