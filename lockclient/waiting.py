"""How a thread waits for its turn: an ear on the lock's holder, or on the ticket ahead.

etcd serves a watch that begins at a revision of the past from a list that it looks through every
100 ms, and any write anywhere makes a revision the past. So the ear on the holder is opened
without one, where it can be before the store is asked how things stand: what happens after that
is told at once. If it turns out to have been opened too late to hear everything since the store
was asked, the store is asked again. Who stands further back can wait for those 100 ms.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue

from lockclient.background import line_of
from lockclient.engine import LOOK_INTERVAL, Wait
from lockclient.store import Event, MutexStore, Subscription, Target
from lockclient.timing import Deadline


class Ear:
    """Listens to one target for one waiter, whose tickets are kept alive meanwhile."""

    def __init__(self, store: MutexStore, target: Target) -> None:
        self.target = target
        self.deaf = False
        """Whether it may have missed something, so that another one is needed."""
        self._store = store
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        self._line = line_of(store)
        self._watch: Subscription | None = None

    def open(self, revision: int) -> None:
        """Listen from a revision on; 0: from now."""
        self._line.join(self._inbox)
        self._watch = self._store.watch(self.target, revision, self._inbox.put)

    def close(self) -> None:
        """Listen no more."""
        if self._watch is not None:
            self._watch.close()
        self._line.leave(self._inbox)

    def hear(self, wait: Wait, deadline: Deadline) -> Event | None:
        """Return the next event that is news to a waiter; None: look, or the deadline has come."""
        look = Deadline.after(LOOK_INTERVAL)
        while True:
            try:
                event = self._inbox.get(timeout=min(look.remaining(), deadline.remaining()))
            except Empty:
                return None
            if event.missed:
                self.deaf = True
                return event
            if event.revision < wait.revision:
                continue  # the store was asked later than that
            # Begun after the store was asked: in between it was not listening.
            if event.started:
                return Event(event.revision, missed=True)
            return event
