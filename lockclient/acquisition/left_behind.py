"""Left behind: locks that nobody can release any more, and those still held as the program ends.

Both are left to alert and auto-unlock, and the line that took them is named.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial

from lockclient.acquisition import holding
from lockclient.acquisition.holding import Holding
from lockclient.acquisition.steps import drive
from lockclient.errors import ClusterMutexError
from lockclient.model.backtrace import innermost
from lockclient.model.clocks import Deadline
from lockclient.text.timestamps import utc
from lockclient.threads import scheduler
from lockclient.threads.at_exit import Order, calls
from lockclient.threads.log_queue import get_logger, naming

log = get_logger(__name__)

FINALIZERS_S = 1.0
"""Seconds after which what was dropped, and not released by a finalizer, is complained about."""

RELEASE_AT_EXIT_S = 1.0
"""Seconds that the end of the interpreter waits for the releases of `release_at_exit`, in all."""


def _at_exit() -> None:
    """Release or name each lock that is held; a finalizer after this leaves its lock alone."""
    until = Deadline.after(RELEASE_AT_EXIT_S)
    scheduler.shared.flush(RELEASE_AT_EXIT_S)  # what an interrupt ended is not held
    held_locks = [held for held in list(holding.own.values()) if held.healthy]
    # The releases first: a handler of the log may block.
    for held in sorted(held_locks, key=lambda held: not held.release_at_exit):
        if held.release_at_exit:
            _release(held, until.remaining())
        else:
            log.warning(
                "The program ends and still holds %r, taken at %s; unless its owner still releases "
                "it, %s.",
                held.acquisition.name,
                line_of(held),
                _until(held),
                extra=naming(held.acquisition),
            )


calls[Order.LOCKS] = _at_exit


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
    return f"it stays locked until {utc(unlock_at)}"


def _warn(message: str, where: str) -> None:
    """Warn as Python does of what was never closed, by the line that took it."""
    filename, _, line = where.rpartition(":")
    with suppress(ResourceWarning):  # where warnings are errors: nobody could catch it here
        warnings.warn_explicit(
            message, ResourceWarning, filename or where, int(line) if line.isdecimal() else 1
        )
