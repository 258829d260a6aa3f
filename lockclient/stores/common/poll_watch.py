"""A watch on one lock by polling, for stores that have none: requests its holder repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome, Position
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import GetPosition, Request
from lockclient.threads.pool import WorkerPool

POLL_INTERVAL_S = 2.0
"""Seconds between two requests whether a lock is still its holder's: nobody tells it. Each is one
request, of the cheap kind, for as long as a lock is held."""
_FIRST_LOOK_S = 1.0
"""Seconds to the first of them. A holder watches from a second on (`Holding`), so that what is lost
before that is told no later than what is lost afterwards."""


class PollWatch:
    """A watch on who has a lock, by looking from time to time; it tells what it finds changed.

    Args:
        ask: asks the store.
        target: the lock.
        notify: see `MutexStore.watch`.
        pool: the threads that look.
    """

    def __init__(
        self,
        ask: Callable[[Request, Deadline], Outcome],
        target: WatchTarget,
        notify: Callable[[WatchEvent], None],
        pool: WorkerPool,
    ) -> None:
        self._ask = ask
        self._request = GetPosition(target.name, "", 0)
        self._notify = notify
        self._notified: tuple[str | None] | None = None
        self._task = pool.repeat(self._poll, _FIRST_LOOK_S)

    def _poll(self) -> float:
        next_at = Deadline.after(POLL_INTERVAL_S)
        # Without an answer the next poll notifies; the holder notices by itself when its time ends.
        with suppress(ClusterMutexError):
            found = self._ask(self._request, next_at)
            assert isinstance(found, Position)
            if self._notified != (found.holder,) and not self._task.cancelled:
                self._notified = (found.holder,)
                self._notify(WatchEvent(found.revision, found.holder))
        return next_at.remaining()

    def close(self) -> None:
        self._task.cancel()
