"""Shared looks: one look at a lock tells all waiters of this process who has it and who is ahead.

A thousand waiters ask the store no more than one does. One thread looks, for one lock after the
other; who asked is told by a call, waits for nothing, and hears of its turn meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.protocol import Look, MutexStore
from lockclient.stores.requests import Read
from lockclient.threads.pool import WorkerPool

SHARED_FOR_S = 10.0
"""Seconds for which a look is good for all. Who has joined the queue since is behind all in it."""
READ_TIMEOUT_S = 3.0
"""Seconds for the store to answer."""

Tell = Callable[[Look | None], object]
"""Called with what was seen; None: the store did not say."""


class SharedLooks:
    """Looks at locks for the waiters of one store.

    Args:
        store: is asked.
    """

    def __init__(self, store: MutexStore) -> None:
        self._store = store
        self._worker = WorkerPool("look", 1)
        self._asked: deque[tuple[str, Tell]] = deque()
        self._seen: dict[str, tuple[float, Look | None]] = {}

    def ask(self, name: str, tell: Tell) -> None:
        """See `Looks`."""
        self._asked.append((name, tell))
        self._worker.submit(self._answer)

    def close(self) -> None:
        """Let the thread end."""
        self._worker.close()

    def _answer(self) -> None:
        """Tell all that have asked; what has been answered with others finds nothing to do."""
        now = monotonic()
        for name, (looked_at, _) in list(self._seen.items()):
            if now - looked_at >= SHARED_FOR_S:
                del self._seen[name]
        while self._asked:
            name, tell = self._asked.popleft()
            if name not in self._seen:
                self._seen[name] = monotonic(), self._look(name)
            tell(self._seen[name][1])

    def _look(self, name: str) -> Look | None:
        try:
            seen = self._store.ask(Read(name, waiters=True), Deadline.after(READ_TIMEOUT_S))
        except ClusterMutexError:
            return None
        assert isinstance(seen, ReadResult)
        places = {ticket.uuid: place for place, ticket in enumerate(seen.waiters, 1)}
        return Look(seen.holder, places)
