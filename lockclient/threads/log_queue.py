"""Log queue: what this library logs is handled by one thread that does nothing else.

A handler of the program may block (a pipe that nobody reads, a disk that stands still) or wait for
a lock that the program has. Whoever waits there pushes no lock, tells of no loss and answers no
`release()`. So a record is made in the thread that says it, and handled here, in a copy of that
thread's context, one after the other. Whoever blocks this thread loses log lines, and nothing
else.

It takes no lock, as `scheduler` does not, and for the same reason: what logs may be a finalizer or
a signal's handler, in the middle of anything.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import threading
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

MAX_QUEUED = 1000
"""Records, or other calls, that wait at most; beyond that they are counted."""
IDLE_S = 5.0
"""Seconds without a call after which the thread ends."""
AT_EXIT_S = 0.5
"""Seconds that the end of the interpreter waits for what is queued."""

_NO_LOCK = {"lock": None, "uuid": None, "hostname": socket.gethostname()}
_MASK = signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""The signals that the program has blocked: a thread inherits those of who starts it."""


class CallQueue:
    """Calls that wait to be made, one after the other, and the thread that makes them.

    Args:
        name: of the thread.
        tell_dropped: called in it with how many were dropped, as soon as there is room again.
    """

    def __init__(self, name: str, tell_dropped: Callable[[int], object]) -> None:
        self._name = name
        self._tell_dropped = tell_dropped
        self._queue: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._dropped = deque[bool]()
        self._missing = deque((True,))  # the place of the one thread: it takes that itself
        self._thread: int | None = None
        self._finalizer: object = None

    def put(self, handle: Callable[[], object]) -> None:
        """Have it called after those before it, or count it as dropped."""
        if self._queue.qsize() >= MAX_QUEUED:
            self._dropped.append(True)
            return
        self._queue.put(handle)
        with suppress(RuntimeError):  # the system gives no thread: the next call asks again
            self._start()

    def flush(self, seconds: float) -> None:
        """Wait until all that was put before is handled, but not longer than that."""
        if threading.get_ident() == self._thread:
            return
        handled = allocate_lock()
        handled.acquire()
        self._queue.put(handled.release)
        try:
            self._start()
        except RuntimeError:  # as the interpreter ends: there is nobody else to do it
            self._handle_all()
        handled.acquire(timeout=seconds)

    def _start(self) -> None:
        """Start the thread if it does not run."""
        if self._missing:
            self._finalizer = self._finalizer or at_multiprocessing_exit(
                partial(self.flush, AT_EXIT_S), 0
            )
            start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._missing.pop()
        except IndexError:  # two were started at once, each by somebody who saw none
            return
        self._thread = threading.get_ident()
        threading.current_thread().name = self._name
        signal.pthread_sigmask(signal.SIG_SETMASK, _MASK)
        while True:
            try:
                self._handle(self._queue.get(timeout=IDLE_S))
            except Empty:
                # First the place, then the look: who puts does it the other way round.
                self._thread = None
                self._missing.append(True)
                if self._queue.empty():
                    return
                try:
                    self._missing.pop()
                except IndexError:  # who has put it has started another one
                    return
                self._thread = threading.get_ident()

    def _handle_all(self) -> None:
        with suppress(Empty):
            while True:
                self._handle(self._queue.get_nowait())

    def _handle(self, handle: Callable[[], object]) -> None:
        # Whatever the program's own handlers raise, `SystemExit` as well: the thread is needed.
        with suppress(BaseException):
            handle()
        if dropped := len(self._dropped):
            for _ in range(dropped):
                self._dropped.popleft()
            with suppress(BaseException):
                self._tell_dropped(dropped)


if TYPE_CHECKING:
    _Base = logging.Logger
else:
    _Base = object


class _Queued(_Base):
    """A logger whose records are handled by the thread."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Tell as `logging` does, without its lock, which a program may hold for long."""
        return self.manager.disable < level and level >= self.getEffectiveLevel()

    def makeRecord(self, *args: Any, **how: Any) -> logging.LogRecord:  # noqa: N802 - logging's
        """Make a record with `lock`, `uuid` (None where it is about none) and `hostname`."""
        record = super().makeRecord(*args, **how)
        vars(record).update({**_NO_LOCK, **vars(record)})
        return record

    def handle(self, record: logging.LogRecord) -> None:
        """Queue a record."""
        shared.put(partial(copy_context().run, super().handle, record))


class Named(Protocol):
    """What a record may be about: an acquisition, or a request or an error of one."""

    @property
    def name(self) -> str | None:
        """The lock's name."""

    @property
    def uuid(self) -> str | None:
        """The acquisition's."""


def naming(what: Named) -> dict[str, str | None]:
    """Return what names a lock in a record: `log.warning(…, extra=naming(acquisition))`."""
    return {"lock": what.name, "uuid": what.uuid}


def get_logger(name: str) -> logging.Logger:
    """Return a logger of this library, of the class that the program may have set for all."""
    logger = logging.getLogger(name)
    kind = type(logger)
    if not issubclass(kind, _Queued):
        logger.__class__ = type(kind.__name__, (_Queued, kind), {})
    return logger


_log = logging.getLogger("lockclient")


def _say_dropped(dropped: int) -> None:
    record = _log.makeRecord(
        *(_log.name, logging.WARNING, __file__, 0),
        "%d log records were dropped: a handler of the log was blocked.",
        (dropped,),
        None,
    )
    logging.Logger.handle(_log, record)


def new_queue() -> CallQueue:
    """Return a process's own queue of what it logs."""
    return CallQueue("clustermutex-log", _say_dropped)


shared = new_queue()


def flush(seconds: float) -> None:
    """Wait until what was logged so far is handled, but not longer than that."""
    shared.flush(seconds)


def at_multiprocessing_exit(call: Callable[[], None], priority: int) -> object:
    """Have it called as a child of `multiprocessing` ends: that knows no `atexit`.

    Those of a higher priority are called first. Return what stands for it; None: there is no
    `multiprocessing` here.
    """
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        with suppress(Exception):
            return util.Finalize(None, call, exitpriority=priority)
    return None


def _at_exit() -> None:
    flush(AT_EXIT_S)


def _start_afresh() -> None:
    """After fork, in the child: what was queued is the parent's."""
    global shared
    shared = new_queue()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_start_afresh)
