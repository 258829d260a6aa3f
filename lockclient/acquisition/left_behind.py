"""Left behind: locks that nobody can release any more, and those still held as the program ends.

Both are left to alert and auto-unlock, and the line that took them is named.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings
from contextlib import suppress
from functools import partial

from lockclient.acquisition import holding
from lockclient.acquisition.holding import Holding
from lockclient.acquisition.steps import drive
from lockclient.errors import ClusterMutexError
from lockclient.model.backtrace import innermost
from lockclient.model.clocks import Deadline
from lockclient.stores.protocol import MutexStore
from lockclient.threads import scheduler
from lockclient.threads.log_queue import at_multiprocessing_exit, get_logger, naming

log = get_logger(__name__)

FINALIZERS_S = 1.0
"""Seconds after which what was dropped, and not released by a finalizer, is complained about."""

RELEASE_AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for the releases of `release_at_exit`, in all."""

exit_hooks: list[object] = []


def watch_the_exit() -> None:
    """Have told what is still held as the interpreter ends.

    With the first lock: what is registered later is called before, and stores are there still.
    """
    atexit.unregister(_at_exit)  # of a parent's, before a fork
    exit_hooks.append(atexit.register(_at_exit))
    at_multiprocessing_exit(_at_exit, 10)  # before the log is flushed


def _at_exit() -> None:
    at_end: dict[MutexStore, MutexStore] = {}
    until = Deadline.after(RELEASE_AT_EXIT_S)
    scheduler.shared.flush(RELEASE_AT_EXIT_S)  # what an interrupt ended is not held
    for held in list(holding.own.values()):
        if not held.healthy:
            continue
        if held.release_at_exit:
            _release(held, until.remaining())
        else:
            if held.store not in at_end:
                at_end[held.store] = held.store.for_the_end()
            held.store_at_end = at_end[held.store]
            log.warning(
                "The program ends and still holds %r, taken at %s; unless its owner still releases "
                "it, %s.",
                held.acquisition.name,
                line_of(held),
                _until(held),
                extra=naming(held.acquisition),
            )


def _release(held: Holding, seconds: float) -> None:
    if held.end():
        try:
            # In this thread: from Python 3.12 on no other one can be started any more.
            drive(held.releasing(seconds), held.store)
        except ClusterMutexError as error:
            log.warning(
                "The program ends and could not release %r, taken at %s; unless it is gone all the "
                "same, %s: %s",
                held.acquisition.name,
                line_of(held),
                _until(held),
                error,
                extra=naming(held.acquisition),
            )


def _start_afresh() -> None:
    """After fork, in the child, where what is to be done at the end is forgotten as well."""
    exit_hooks.clear()


os.register_at_fork(after_in_child=_start_afresh)


def dropped(held: Holding) -> None:
    """Nobody refers to it any more: push it no more, and say whose it was.

    It is still watched, and its uuid known, so that no other thread of the same identity takes it
    over. A finalizer of what it was dropped with may be about to release it: that has a moment.
    """
    held.stop_pushing()
    scheduler.shared.after(FINALIZERS_S, partial(_say_dropped, held))


def _say_dropped(held: Holding) -> None:
    if not held.healthy:
        return
    where = line_of(held)
    message = (
        f"The lock {held.acquisition.name!r}, taken at {where}, was dropped without being "
        f"released: {_until(held)}. Use `with`, or keep what acquire() returns."
    )
    log.warning("%s", message, extra=naming(held.acquisition))
    holding.tellers.submit(partial(_warn, message, where))


def line_of(held: Holding) -> str:
    """Return the line of the program that took it: `report.py:7`."""
    return held.line or innermost(held.acquisition.holder.backtrace) or "an unknown line"


def _until(held: Holding) -> str:
    unlock_at = held.acquisition.holder.auto_unlock_at
    if unlock_at is None:
        return "it stays locked until somebody unlocks it"
    return f"it stays locked until {time.strftime('%H:%M', time.localtime(unlock_at))}"


def _warn(message: str, where: str) -> None:
    """Warn as Python does of what was never closed, by the line that took it."""
    filename, _, line = where.rpartition(":")
    with suppress(ResourceWarning):  # where warnings are errors: nobody could catch it here
        warnings.warn_explicit(
            message, ResourceWarning, filename or where, int(line) if line.isdecimal() else 1
        )
