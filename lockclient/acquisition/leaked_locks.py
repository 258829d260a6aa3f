"""Leaked locks: their `HeldLock` was garbage-collected, or the program ends while it holds them.

The unlocker removes them at their auto-unlock. A warning names the line that acquired them. A lock
with `release_at_exit` is released as the program ends.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial

from lockclient.acquisition import heartbeat_and_loss as held_locks
from lockclient.acquisition.heartbeat_and_loss import Holding
from lockclient.acquisition.thread_driver import drive
from lockclient.errors import ClusterMutexError
from lockclient.model.backtrace import innermost
from lockclient.model.clocks import Deadline
from lockclient.text.timestamps import utc
from lockclient.threads import scheduler
from lockclient.threads.at_exit import Order, calls
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

FINALIZERS_S = 1.0
"""Seconds that a finalizer has to release a garbage-collected lock before the warning."""
RELEASE_AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for all releases of `release_at_exit`."""


def _at_exit() -> None:
    """Called in `atexit`: release each held lock that wants it, and warn of the others."""
    until = Deadline.after(RELEASE_AT_EXIT_S)
    scheduler.shared.flush(RELEASE_AT_EXIT_S)  # interrupted acquisitions are withdrawn
    unreleased = [held for held in list(held_locks.held_by_process.values()) if held.healthy]
    # Release first, then warn, because a handler of the log may block.
    for held in sorted(unreleased, key=lambda held: not held.release_at_exit):
        if held.release_at_exit:
            _release(held, until.remaining())
        else:
            text = "still holds %r, taken at %s; unless its owner still releases it, %s."
            _warn_at_exit(held, text)


calls[Order.LOCKS] = _at_exit


def _release(held: Holding, seconds: float) -> None:
    if held.claim_release():
        try:
            # In this thread, because from Python 3.12 on `atexit` can start no thread.
            drive(held.releasing(seconds), held.store)
        except ClusterMutexError as error:
            text = "could not release %r, taken at %s; unless the store released it, %s: %s"
            _warn_at_exit(held, text, error)


def _warn_at_exit(held: Holding, text: str, *more: object) -> None:
    lock = held.acquisition
    facts = lock.name, line_of(held), _until(held), *more
    log.warning(f"The program ends and {text}", *facts, extra=naming(lock))


def on_collected(held: Holding) -> None:
    """Called by the scheduler's thread for a collected HeldLock: end its heartbeats, warn later.

    The lock stays watched and in `held_by_process`, so that no other thread of its identity
    reclaims it. The warning comes later, because a finalizer of another garbage-collected object
    may release the lock first.
    """
    held.keepalive = None
    scheduler.shared.after(FINALIZERS_S, partial(_warn_of_leak, held))


def _warn_of_leak(held: Holding) -> None:
    if not held.healthy:
        return
    where = line_of(held)
    message = (
        f"The lock {held.acquisition.name!r}, taken at {where}, was garbage-collected without "
        f"being released: {_until(held)}. Use `with`, or keep what acquire() returns."
    )
    log.warning("%s", message, extra=naming(held.acquisition))
    held_locks.on_lost_threads.submit(partial(_warn, message, where))


def line_of(held: Holding) -> str:
    """Return the line of the program that acquired it: `report.py:7`."""
    return held.line or innermost(held.acquisition.holder.backtrace) or "an unknown line"


def _until(held: Holding) -> str:
    unlock_at = held.acquisition.holder.auto_unlock_at
    if unlock_at is None:
        return "it stays locked until somebody unlocks it"
    return f"it stays locked until {utc(unlock_at)}"


def _warn(message: str, where: str) -> None:
    """Warn as Python does of a file that was not closed, at the line that acquired the lock."""
    filename, _, line = where.rpartition(":")
    with suppress(ResourceWarning):  # if warnings are errors: no caller could catch this one
        warnings.warn_explicit(
            message, ResourceWarning, filename or where, int(line) if line.isdecimal() else 1
        )
