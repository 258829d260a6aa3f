"""Worker pool: daemon threads that start when there is work, so many at once, and end when idle.

It takes no lock, as `scheduler` does not, and for the same reason. Its threads are started by the
scheduler's thread. They may, unharmed, wait too long for work (see there).
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from lockclient.threads import scheduler
from lockclient.threads.daemon_thread import PROGRAM_MASK
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentry import mark_thread

log = get_logger(__name__)

IDLE_S = 5.0
"""Seconds without work after which a thread of a pool ends."""


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
        """Have it done as soon as a thread is free; what the system refuses is retried."""
        # First the work, then the look: a thread that is taken for a free one, and has got another
        # piece at that moment, looks for more when it is no longer counted as free.
        self._todo.put(work)
        if not self._free:
            self._want_thread()

    def _want_thread(self) -> None:
        scheduler.shared.after(0, self._add_thread)

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
        """Called by the scheduler's thread alone, which counts the threads."""
        if self._todo.empty() or len(self._threads) >= self._at_most:
            return None  # those at work look for more when they are done
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.discard(thread)
            if not self.refused and "shutdown" not in str(error):
                log.warning("The system refuses to start a thread; retrying: %s", error)
            self.refused = True
            return scheduler.RETRY_S / 10
        self.refused = False
        return 0.0 if self._todo.qsize() > 1 else None

    def _work(self) -> None:
        mark_thread()
        signal.pthread_sigmask(signal.SIG_SETMASK, PROGRAM_MASK)
        try:
            while (work := self._next()) is not None:
                try:
                    work()
                except Exception:  # noqa: BLE001 - the thread is needed for the next one
                    scheduler.report("Work in the background failed.")
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
                work = self._todo.get(timeout=0 if self._closed else IDLE_S)
            except Empty:
                work = None
            self._free.pop()
            if self._todo.empty():
                return work
            if work is not None:
                if not self._free:
                    self._want_thread()
                return work


def _wake() -> None:
    """Do nothing: who waits for work finds that there will be no more."""
