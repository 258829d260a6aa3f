"""Log queue: a log handler that blocks delays no thread of this library.

A thread of the program logs in place. A thread of this library, and any thread inside a request to
a store, puts its record into a bounded queue. One thread calls the handlers with these records,
each in a copy of the context in which it was logged.

The queue takes no lock: a finalizer or a signal handler may log at any line of any thread.
"""

from __future__ import annotations

import logging
import os
import socket
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from lockclient.threads.daemon_thread import DaemonThread
from lockclient.threads.reentrancy import is_inside, run_outside

MAX_QUEUED = 1000
"""Calls in the queue at most; further calls are dropped and counted."""

_NO_LOCK = {"lock": None, "uuid": None, "hostname": socket.gethostname()}


class CallQueue(DaemonThread):
    """A bounded queue of calls, and the daemon thread that makes one after the other.

    Args:
        name: the thread's name.
        on_dropped: called in the thread with the number of dropped calls.
    """

    def __init__(self, name: str, on_dropped: Callable[[int], object]) -> None:
        super().__init__(name)
        self._on_dropped = on_dropped
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._dropped = deque[bool]()

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call, or count it as dropped."""
        if self._queue.qsize() >= MAX_QUEUED:
            self._dropped.append(True)
            return
        self._queue.put(call)
        with suppress(RuntimeError):  # the system gives no thread: the next call asks again
            self.start()

    def flush(self, seconds: float) -> None:
        """Wait until the thread has made all earlier calls, at most for `seconds`."""
        if self.missing and self._queue.empty():
            return
        handled = allocate_lock()
        handled.acquire()
        self._queue.put(handled.release)
        try:
            self.start()
        except RuntimeError:  # the interpreter ends, and starts no thread
            while not self._queue.empty():
                self._make(self._queue.get_nowait)
        handled.acquire(timeout=seconds)

    def _turn(self) -> None:
        self._make(self._queue.get)

    def _make(self, next_call: Callable[[], Callable[[], object]]) -> None:
        # Any other exception ends this thread, which `DaemonThread` starts again.
        with suppress(Exception, KeyboardInterrupt, SystemExit):
            next_call()()
        if dropped := len(self._dropped):
            for _ in range(dropped):
                self._dropped.popleft()
            with suppress(BaseException):
                self._on_dropped(dropped)


if TYPE_CHECKING:
    _Base = logging.Logger
else:
    _Base = object


class _Queued(_Base):
    """A logger that queues the records of the library's own threads."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Return the same as `logging`, without its lock, which a program may hold for long."""
        return self.manager.disable < level and level >= self.getEffectiveLevel()

    def handle(self, record: logging.LogRecord) -> None:
        """Add `lock`, `uuid` and `hostname` to a record, and handle it in place or queue it."""
        vars(record).update({**_NO_LOCK, **vars(record)})
        if is_inside():
            shared.put(partial(copy_context().run, run_outside, super().handle, record))
        else:
            super().handle(record)


def naming(about: Any) -> dict[str, str | None]:
    """Return a record's `extra` that names the lock of an acquisition, a request or an error."""
    return {"lock": about.name, "uuid": about.uuid}


def get_logger(name: str) -> logging.Logger:
    """Return a logger of this library, also of the class that the program has set for loggers."""
    logger = logging.getLogger(name)
    kind = type(logger)
    if not issubclass(kind, _Queued):
        logger.__class__ = type(kind.__name__, (_Queued, kind), {})
    return logger


def new_queue() -> CallQueue:
    """Return a process's own queue of log records."""
    say = partial(
        get_logger("lockclient").warning,
        "%d log records were dropped: a handler of the log was blocked.",
    )
    return CallQueue("clustermutex-log", say)


shared = new_queue()


def flush(seconds: float) -> None:
    """Wait until the handlers have received all earlier records, at most for `seconds`."""
    shared.flush(seconds)


def _start_afresh() -> None:
    """Called in a fork's child: queued records are the parent's."""
    global shared
    shared = new_queue()


os.register_at_fork(after_in_child=_start_afresh)
