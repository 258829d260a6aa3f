"""A watch on one lock by polling, for stores that have none: requests its holder repeatedly."""

from __future__ import annotations

from collections.abc import Callable

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores.outcomes import Outcome, Position
from lockclient.stores.protocol import WatchEvent, WatchTarget
from lockclient.stores.requests import GetPosition, Request
from lockclient.threads import scheduler
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
        self._pool = pool
        self._notified: tuple[str | None] | None = None
        self._in_flight = False
        self._closed = False
        self._task = scheduler.shared.after(_FIRST_LOOK_S, self._due)

    def _due(self) -> float | None:
        if self._closed:
            return None
        if not self._in_flight:
            self._in_flight = True
            self._pool.submit(self._see)
        return POLL_INTERVAL_S

    def _see(self) -> None:
        try:
            found = self._ask(self._request, Deadline.after(POLL_INTERVAL_S))
        except ClusterMutexError:
            return  # the next one tells; that the time runs out is the holder's own to notice
        finally:
            self._in_flight = False
        if isinstance(found, Position) and not self._closed and self._notified != (found.holder,):
            self._notified = (found.holder,)
            self._notify(WatchEvent(found.revision, found.holder))

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
