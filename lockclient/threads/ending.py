"""The end of a program, and of one store: the one procedure that `atexit` and `store.close()` use.

`atexit` calls, in this order: the program's functions that were registered after the first
acquisition; `begin`; those registered between the import and the first acquisition; `finish`; those
registered before the import. Python has joined all non-daemon threads and the workers of executors
by then, so none of their acquisitions is given up. The steps of `begin`:

1. From now on an acquisition by any other thread, or by a loop in one, does not begin.
2. Mark all running acquisitions, without a request. A marked one never returns: its thread sleeps
   until the interpreter stops it, its task stays pending.
3. Release the locks with `release_at_exit`, revoke the leases of tickets, and withdraw each
   acquisition whose take may still arrive. Threads of the stores send all this at the same time.
4. Wait for the answers, then log what may be left.

`finish` repeats them, logs what is new, and closes the watches. The thread that runs
`atexit` may acquire, wait and release at any moment. After `finish` its waiters poll.

Python 3.12 (not 3.10, 3.11, 3.13) starts no thread once the main function has ended, even while
other threads work. There the caller's thread sends its requests, where an exception of a signal
handler may land in gRPC, and waiters poll.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet

from lockclient.model.backtrace import innermost
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.text.timestamps import utc
from lockclient.threads import daemon_thread, log_queue, scheduler
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

LIMIT_S = 1.5
"""Seconds that the end of a program waits for all stores, instruments and log handlers together. An
etcd that answers after 500 ms has time for a request by a new connection, which takes three rounds.
"""
LOG_S = 0.25
"""The part of `LIMIT_S` that is kept for instruments and log handlers."""
MAX_LINES = 20
"""Lines about locks that may be left; the log counts the others."""


class Part:
    """The base of what `end` handles: running acquisitions, held locks, withdrawals.

    Attributes:
        name, uuid: of the acquisition.
        is_open: True if the end waits for an answer of the store.
    """

    name: str
    uuid: str
    is_open = False

    def mark(self, error: Exception | None) -> None:
        """Have a running acquisition raise this error, or with None never return; send nothing."""

    def end(self) -> None:
        """Send in the background what the store has to confirm: a withdrawal, or a release."""

    def end_with_program(self) -> None:
        """Release the lock in the background, if it wants that."""

    def left_over(self) -> str | None:
        """Return how the log continues "The program ends", None: nothing is left of it."""


class Store(Protocol):
    """An opened store."""

    def parts(self) -> list[Part]:
        """Return its running acquisitions, held locks and withdrawals."""

    def revoke_tickets(self) -> None:
        """Have the background end all waiters' tickets; a later waiter gets a new lease."""

    def settle(self, seconds: float) -> None:
        """Wait until no part is open, at most so long."""

    def close_streams(self) -> None:
        """Close all watches: the interpreter's teardown of an open stream can hang."""


stores: WeakSet[Store] = WeakSet()
"""All stores of this process that were opened."""
flushes: list[Callable[[float], object]] = [log_queue.flush]
"""Called with the seconds that are left: they hand over events and log records."""


class _State:
    """The end of this process, as far as it has come."""

    def __init__(self) -> None:
        self.left_s = LIMIT_S
        self.thread: int | None = None
        """The id of the thread that runs `atexit`; None: the program runs."""
        self.has_finished = False
        self._starts_threads: bool | None = None
        """Whether a thread was started after the main function had ended; None: none was tried."""

    def can_start_threads(self) -> bool:
        """Return whether the interpreter still starts threads."""
        if self._starts_threads is None:
            # Python sets the flag, joins executors, ends the main thread, joins other threads.
            is_alive = threading.main_thread().is_alive()
            if not getattr(threading, "_SHUTTING_DOWN", not is_alive):
                return True
            self._starts_threads = True
            try:
                start_new_thread(bool, ())
            except RuntimeError as error:
                self._starts_threads = not daemon_thread.is_interpreter_end(error)
        return self._starts_threads

    def within(self, seconds: float) -> Deadline:
        """Return the deadline of a try in the background; it is shorter in the caller's thread."""
        return Deadline.after(seconds if self.can_start_threads() else min(seconds, LIMIT_S / 2))


state = _State()


def can_watch() -> bool:
    """Return whether a watch can be opened; else waiters poll, and the next call notices a loss."""
    return not state.has_finished and state.can_start_threads()


def end(among: Sequence[Store], limit: Deadline, error: Exception | None = None) -> None:
    """End the acquisitions on these stores; wait for the answers until `limit`.

    Args:
        among: the stores.
        limit: of all stores together.
        error: raised by running acquisitions, and held locks stay: `close()`. None: the program
            ends, so acquisitions never return, and locks with `release_at_exit` are released.
    """
    parts = [part for store in among for part in store.parts()]
    for part in parts:
        part.mark(error)
    for part in parts:
        part.end()
        if error is None:
            part.end_with_program()
    for store in among:
        store.revoke_tickets()
    for store in among:
        store.settle(limit.remaining())


def begin() -> None:
    """Called by `atexit`; the module has the order."""
    _end_program()


def finish() -> None:
    """Called by `atexit`; the module has the order."""
    _end_program()
    for store in list(stores):
        store.close_streams()
    state.has_finished = True


def _end_program() -> None:
    # This thread sets `thread`, then reads the attempts. Another thread adds its attempt, then
    # reads `thread`. So at least one of them sees the other, and the attempt is marked.
    state.thread = threading.get_ident()
    limit = Deadline.after(state.left_s)
    try:
        scheduler.shared.flush(limit.remaining())  # its thread withdraws interrupted acquisitions
        end(list(stores), Deadline(limit - LOG_S))
    except BaseException:  # noqa: BLE001 - another Ctrl-C ends the waiting, not the log
        limit = Deadline.after(LOG_S)
    _log_leftovers()
    for flush in reversed(flushes):
        flush(limit.remaining())
    state.left_s = limit.remaining()


def _log_leftovers() -> None:
    parts = [part for store in list(stores) for part in store.parts()]
    texts = {part.uuid: (part, part.left_over()) for part in parts if part.uuid not in _named}
    found = [(part, text) for part, text in texts.values() if text is not None]
    for part, text in found[:MAX_LINES]:
        log.warning("The program ends %s", text, extra=naming(part))
    if len(found) > MAX_LINES:
        log.warning("The program ends, and %d more locks may be left.", len(found) - MAX_LINES)
    _named.update(part.uuid for part, _ in found)


_named: set[str] = set()
"""The acquisitions that `begin` logged."""


def line_of(holder: Holder, line: str | None = None) -> str:
    """Return the line of the program that acquired the lock: `report.py:7`.

    Args:
        holder: the lock's record.
        line: that line, if the record has no backtrace.
    """
    return line or innermost(holder.backtrace) or "an unknown line"


def stays(holder: Holder) -> str:
    """Return until when the lock stays if its holder does not release it."""
    if holder.auto_unlock_at is None:
        return "it stays locked until somebody unlocks it"
    return f"it stays locked until {utc(holder.auto_unlock_at)}"


def while_held(holder: Holder, line: str | None) -> str:
    """Continue "The program ends": it holds the lock."""
    where = line_of(holder, line)
    return (
        f"and still holds {holder.name!r}, taken at {where}; unless its owner still releases it, "
        f"{stays(holder)}."
    )


def while_releasing(holder: Holder, line: str | None = None) -> str:
    """Continue "The program ends": no answer has confirmed the release."""
    where = line_of(holder, line)
    return (
        f"and could not release {holder.name!r}, taken at {where}; unless the store released it, "
        f"{stays(holder)}."
    )


def while_acquiring(holder: Holder) -> str:
    """Continue "The program ends": a take was not answered, and its withdrawal neither."""
    return (
        f"and could not withdraw from {holder.name!r}, asked for at {line_of(holder)}: the lock "
        f"may still be granted when the store answers; then {stays(holder)}."
    )


def _end_child() -> None:
    """Called by `multiprocessing` at the end of a child, which may run no `atexit`.

    Its non-daemon threads may still work: join them first, as Python does before `atexit`.
    """
    if any(
        not thread.daemon and thread is not threading.current_thread()
        for thread in threading.enumerate()
    ):
        threading._shutdown()  # type: ignore[attr-defined]  # joins threads, ends executors; once
    begin()
    finish()


def arm() -> None:
    """Register `begin`: the scheduler's thread does so as it starts.

    `atexit` calls the last registered function first, so the functions that the program registered
    before its first acquisition run after `begin`, and the stores that they use are still open.
    """
    atexit.unregister(begin)
    atexit.register(begin)
    process = sys.modules.get("multiprocessing.process")
    if (
        sys.version_info < (3, 13)  # children of a fork run no `atexit` before
        and process is not None
        and process.parent_process() is not None
    ):
        finalize = sys.modules["multiprocessing.util"].Finalize
        finalize(None, _end_child, exitpriority=_LAST)


_LAST = -1000
"""The priority of `multiprocessing` that comes after all of the program's."""


def _start_afresh() -> None:
    """Called in a fork's child: it has its own end."""
    global state
    state = _State()
    _named.clear()


atexit.register(finish)
scheduler.on_start.append(arm)
os.register_at_fork(after_in_child=_start_afresh)
