"""Heartbeats of `run --alive output` and `run --alive manual`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf

from lockclient.acquisition.heartbeat_and_loss import Holding
from lockclient.cli.scripts.shell_mutex import ShellMutex
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, Stamps, monotonic
from lockclient.stores.outcomes import Done, ReadResult
from lockclient.stores.request_types import Push, Read


def push_after_output(mutex: ShellMutex) -> Callable[[], None]:
    """Start a thread that sends a heartbeat after each call of the returned function.

    In a thread, so that no outage delays the output.
    """
    printed = threading.Event()

    def push() -> None:
        with suppress(ClusterMutexError):  # lost (`on_lost` was called), or released
            while printed.wait():
                printed.clear()
                mutex.held.alive()

    threading.Thread(target=push, name="clustermutex-output", daemon=True).start()
    return printed.set


def follow_pushes(holding: Holding) -> None:
    """Start the thread that polls a held lock for heartbeats by others and moves its deadline."""
    valid_for = holding.acquisition.deadline - monotonic()
    if valid_for == inf:
        return
    # A heartbeat is seen after a twentieth of the time that it is valid for, at most.
    pause = min(1.0, valid_for / 20)
    threading.Thread(
        target=_follow, args=(holding, pause), name="clustermutex-follow", daemon=True
    ).start()


def _follow(holding: Holding, pause: float) -> None:
    acquisition = holding.acquisition
    polled_at, known = monotonic(), acquisition.token
    while not holding.ended and holding.loss() is None:
        asked_at = monotonic()
        limit = Deadline(min(acquisition.deadline, asked_at + 2.0))
        try:
            seen = holding.store.ask(Read(acquisition.name), limit)
        except ClusterMutexError:
            seen = None  # the deadline passes all the same
        if isinstance(seen, ReadResult):
            known, polled_at = _note_push(holding, seen, known, polled_at), asked_at
        time.sleep(pause)


def _note_push(holding: Holding, seen: ReadResult, known: int, polled_at: float) -> int:
    """Move the deadline if there was a heartbeat since the last poll; return its revision.

    A heartbeat that the last poll did not see reached the store after that poll was sent. An
    unlocker counts from later than that, so our deadline is never later than the unlocker's.
    """
    holder = seen.holder
    if holder is None or holder.uuid is None or holder.uuid != holding.acquisition.uuid:
        return known
    revision = holder.stamp_revisions[0]
    if holder.alert_at is None or revision == known:
        return known
    stamps = Stamps(holder.alert_at, holder.auto_unlock_at)
    push = Push(holder.name, holder.uuid, stamps, known)
    holding.acquisition.pushed(push, Done(revision), polled_at)
    return revision
