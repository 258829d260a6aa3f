"""`MemoryLocks`: what happens to locks in memory, by a test's hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from lockclient.acquisition.heartbeat_and_loss import held_by_process
from lockclient.errors import ClusterMutexError
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.mutex import ClusterMutex
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Remove
from lockclient.testing.memory_store import MemoryStore


class MemoryLocks:
    """The locks of a test, which are in memory, and what can happen to them.

    Attributes:
        store: the `MemoryStore` in which they are, for `store=`.
    """

    def __init__(self) -> None:
        self.store = MemoryStore()
        # The hands of others: what they do is done though the program can't reach the store.
        self._hands = self.store.another()

    def holder(self, name: str) -> Holder | None:
        """Return the holder of a lock; None: the lock is free."""
        found = self.store.model.lock(name).holder
        return found if found is not None and found.uuid is not None else None

    def held(self) -> list[str]:
        """Return the names of all held locks, in alphabetical order."""
        names = {name for kind, name, part in list(self.store.model.kept) if kind == "locks"}
        return sorted(name for name in names if self.holder(name) is not None)

    def expire(self, name: str) -> None:
        """Have the time of a lock run out, as if its holder had been silent: it is removed.

        As the unlocker does it. Its holder has lost it when this returns: `alive()` and
        `check_health()` raise `LockLost`, and `on_lost` is called soon, in a thread of its own.

        Raises:
            ClusterMutexError: nobody holds it.
        """
        self._remove(name, "the unlocker", AUTO_UNLOCK, "it was silent for too long (a test)")

    def take_away(self, name: str, by: str = "a person", why: str = "the test says so") -> None:
        """Have a person force-unlock a lock; its holder has lost it when this returns.

        Args:
            name: of the lock.
            by: the person who removes it, for the record and the holder's `LockLost`.
            why: the reason, for the same.

        Raises:
            ClusterMutexError: nobody holds it.
        """
        self._remove(name, by, FORCE_UNLOCK, why)

    @contextmanager
    def held_elsewhere(self, name: str, reason: str = "elsewhere") -> Iterator[Holder]:
        """Let another host hold a lock during the block.

        Raises:
            LockTimeout: the lock is held already.
        """
        with ClusterMutex(name, timeout=0, reason=reason, store=self._hands) as held:
            yield held.record

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Make the store unreachable during the block.

        A call that needs the store raises `StoreUnavailable` at once, not after ten seconds. A
        holder keeps its lock, and waiters in the queue keep waiting, as in an outage. `expire` and
        `take_away` work meanwhile; the program notices the loss when the block ends.
        """
        memory = self.store.memory
        memory.away = True
        try:
            yield
        finally:
            memory.away = False
            self.store.notify()

    def close(self) -> None:
        """Release all locks of this process; its waiters get `StoreClosed`."""
        # First the stores: else a waiter of this process would acquire a released lock.
        for store in (self._hands, self.store):
            store.close()
        for holding in list(held_by_process.values()):
            if holding.store is self.store:
                holding.release_in_background()

    def _remove(self, name: str, by: str, kind: str, why: str) -> None:
        holder = self.holder(name)
        if holder is None:
            raise ClusterMutexError(f"Nobody holds the lock {name!r}.", name=name)
        removal = Removal(holder, time.time(), by, kind, why)
        done = self.store.apply(Remove(removal, None))
        assert isinstance(done, Done)
        holding = held_by_process.get(holder.uuid or "")
        if holding is not None:
            holding.read_lock()
