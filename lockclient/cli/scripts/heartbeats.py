"""Heartbeats of `run` other than that the command lives: `--alive output` and `--alive manual`."""

from __future__ import annotations

import threading
import time

from lockclient.acquisition.heartbeat_and_loss import Holding
from lockclient.cli.scripts.shell_mutex import ShellMutex
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, Stamps, monotonic
from lockclient.stores.outcomes import Done, ReadResult
from lockclient.stores.requests import Push, Read


class OutputHeartbeats:
    """Pushes when there was output; in a thread, so that no outage holds the output up."""

    def __init__(self, mutex: ShellMutex) -> None:
        self._mutex = mutex
        self._printed = threading.Event()

    def start(self) -> None:
        """Begin to push."""
        threading.Thread(target=self._push, name="clustermutex-output", daemon=True).start()

    def printed(self) -> None:
        """Take note of output."""
        self._printed.set()

    def _push(self) -> None:
        while True:
            self._printed.wait()
            self._printed.clear()
            try:
                self._mutex.held.alive()
            except ClusterMutexError:
                return  # whoever waits for the command is told by `on_lost`, or has released


class FollowedMutex(ShellMutex):
    """A mutex that others push, by its uuid: it finds out, and moves its own deadline."""

    def follow(self) -> None:
        """Look for pushes from now on, in a thread."""
        if self._runtime.auto_unlock is None:
            return  # there is no deadline
        threading.Thread(target=self._follow, name="clustermutex-follow", daemon=True).start()

    def _follow(self) -> None:
        holding = self.held.holding
        # Often enough to be late by a small part of the time that a push is good for.
        pause = min(1.0, (self._runtime.auto_unlock or 10.0) / 20)
        looked_at = monotonic()
        known = holding.acquisition.token
        while not holding.ended and holding.loss() is None:
            asked_at = monotonic()
            limit = Deadline(min(holding.acquisition.deadline, asked_at + 2.0))
            try:
                seen = holding.store.ask(Read(self.name), limit)
            except ClusterMutexError:
                seen = None  # the deadline does not wait for an answer
            if isinstance(seen, ReadResult):
                known, looked_at = _note_push(holding, seen, known, looked_at), asked_at
            time.sleep(pause)


def _note_push(holding: Holding, seen: ReadResult, known: int, looked_at: float) -> int:
    """Move the deadline if there was a push since we last looked; return its revision.

    A push that the last look did not see reached the store after that look was sent, and so
    does an unlocker's count of it: ours from the moment of that look is never later.
    """
    holder = seen.holder
    if holder is None or holder.uuid is None or holder.uuid != holding.acquisition.uuid:
        return known
    revision = holder.stamp_revisions[0]
    if holder.alert_at is None or revision == known:
        return known
    stamps = Stamps(holder.alert_at, holder.auto_unlock_at)
    push = Push(holder.name, holder.uuid, stamps, known)
    holding.acquisition.pushed(push, Done(revision), looked_at)
    return revision
