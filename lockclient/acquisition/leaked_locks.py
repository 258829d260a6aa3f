"""Leaked locks: their `HeldLock` was garbage-collected, or the program ends while it holds them.

The unlocker removes them at their auto-unlock. A warning names the line that acquired them.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from functools import partial
from typing import Protocol

from lockclient.acquisition.state_machine import Acquisition
from lockclient.threads import scheduler
from lockclient.threads.ending import line_of, stays
from lockclient.threads.log_queue import get_logger, naming
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)


class Held(Protocol):
    """A `Holding`, as this file sees it."""

    acquisition: Acquisition
    line: str | None
    keepalive: float | None

    @property
    def healthy(self) -> bool:
        """True if it is held and not lost."""


FINALIZERS_S = 1.0
"""Seconds that a finalizer has to release a garbage-collected lock before the warning."""


program_threads = WorkerPool("on-lost", 1000)
"""Threads that run the program's code, which may block them."""


def on_collected(held: Held) -> None:
    """Called by the scheduler's thread for a collected HeldLock: end its heartbeats, warn later.

    The lock stays watched and in `held_by_process`, so that no other thread of its identity
    reclaims it. The warning comes later, because a finalizer of another garbage-collected object
    may release the lock first.
    """
    held.keepalive = None
    scheduler.shared.after(FINALIZERS_S, partial(_warn_of_leak, held))


def _warn_of_leak(held: Held) -> None:
    if not held.healthy:
        return
    holder = held.acquisition.holder
    where = line_of(holder, held.line)
    message = (
        f"The lock {holder.name!r}, taken at {where}, was garbage-collected without "
        f"being released: {stays(holder)}. Use `with`, or keep what acquire() returns."
    )
    log.warning("%s", message, extra=naming(held.acquisition))
    program_threads.submit(partial(_warn, message, where))


def _warn(message: str, where: str) -> None:
    """Warn as Python does of a file that was not closed, at the line that acquired the lock."""
    filename, _, line = where.rpartition(":")
    with suppress(ResourceWarning):  # if warnings are errors: no caller could catch this one
        warnings.warn_explicit(
            message, ResourceWarning, filename or where, int(line) if line.isdecimal() else 1
        )


def _start_afresh() -> None:
    """After fork, in the child: the threads are the parent's."""
    global program_threads
    program_threads = WorkerPool("on-lost", 1000)


os.register_at_fork(after_in_child=_start_afresh)
