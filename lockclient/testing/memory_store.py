"""`MemoryStore`: locks in the memory of one process, for tests.

It passes the contract suite of `lockclient.stores`, for the threads and event loops of one process.
It would exclude no other process, so no URL leads here: a program gets it by
`ClusterMutex.setup(store=…)`, by `store=`, or by the pytest plugin.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice, takewhile

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.common.background import Background
from lockclient.stores.common.store_lifecycle import OpenedStore
from lockclient.stores.findings import FINE, Clock, Finding
from lockclient.stores.location import UrlLocation
from lockclient.stores.mutex_store import Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Request, TakeOrQueue, delivery_of
from lockclient.stores.service_store import (
    MAX_DOCUMENT_BYTES,
    Batch,
    Change,
    Document,
    Kind,
    Tickets,
    WaitQueue,
)
from lockclient.testing.lock_model import Entry, Model
from lockclient.threads import scheduler
from lockclient.threads.scheduler import Task

_BY_KEY: tuple[Kind, ...] = ("queue", "withdrawn", "code")
"""Kinds whose values `load` and `follow` leave out."""


class _Watch:
    """A watch of one lock or ticket; the thread that changes it calls `notify`."""

    def __init__(
        self,
        store: MemoryStore,
        target: WatchTarget,
        revision: int,
        notify: Callable[[WatchEvent], None],
    ) -> None:
        self.target = target
        self.revision = revision
        self.notify = notify
        self._store = store

    def close(self) -> None:
        self._store.unwatch(self)


class Follower(threading.Thread):
    """A thread that calls `notify` with all changes: a slow one delays no other."""

    def __init__(self, store: MemoryStore, revision: int, notify: Callable[[Batch], None]) -> None:
        super().__init__(name="clustermutex-memory-follower", daemon=True)
        self.revision = revision
        """The revision of the first change of which `notify` was not called."""
        self.closed = False
        self.store = store
        self._notify = notify

    def run(self) -> None:
        """Notify of all changes, until it is closed."""
        batch: Batch | None = Batch((), self.revision - 1, started=True)
        while batch is not None:
            self._notify(batch)
            batch = None if batch.gap else self.store.next_batch(self)

    def close(self) -> None:
        self.store.unfollow(self)


class Memory:
    """The locks in memory and the watches of them, for one store or several."""

    def __init__(self) -> None:
        self.model = Model()
        self.changed = threading.Condition()
        """Guards this object; its waiters are notified of each change."""
        self.watches: list[_Watch] = []
        self.followers: list[Follower] = []
        self.expiries: dict[str, Task] = {}
        self.away = False
        """True while a test has made it unreachable."""

    def lease(self) -> int:
        """Return the number of a new lease."""
        with self.changed:
            return next(self.model.leases)


class MemoryStore(OpenedStore):
    """Locks in memory, for the threads and event loops of one process: a store for tests.

        ClusterMutex.setup(store=MemoryStore())

    It has the capabilities of etcd (`MemoryStore.can`): queue, watch, fencing tokens, guard. A
    request in a fork's child raises `StoreError`.

    Args:
        page_size: the number of values in one batch of `load`.
        memory: the memory of another `MemoryStore`, to be a second client of its locks.
    """

    can = Capabilities("A store in memory", shared=False)
    poll = 0.0

    def __init__(self, page_size: int = 1000, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.model = self.memory.model
        """The state of all locks, and the rules of each request."""
        self.page_size = page_size
        self._process = os.getpid()
        self._lease = self.memory.lease()
        self._has_lease = False
        super().__init__(UrlLocation("memory://"))

    def _connect(self) -> None:
        super()._connect()
        self.background = Background(self)
        if os.getpid() != self._process:  # a thread of the parent may have held the lock
            self.memory.changed = threading.Condition()

    def another(self) -> MemoryStore:
        """Return the store of another client of the same locks."""
        return type(self)(self.page_size, self.memory)

    def write(self, *entries: Entry) -> int:
        """Write these values in one step, or delete those of value None, as any client may."""
        with self.memory.changed:
            revision = self.model.write(*entries)
        self.notify()
        return revision

    def apply(self, request: Request) -> Outcome:
        """Do a request of another client, also while the store is unreachable."""
        with self.memory.changed:
            outcome = self.model.apply(request)
        self.notify()
        return outcome

    def _reach(self) -> threading.Condition:
        """Return the lock of the memory, for a request of a program.

        Raises:
            StoreError: the memory is that of the process that forked this one.
            StoreUnavailable: a test has made the store unreachable.
        """
        if os.getpid() != self._process:
            raise StoreError(
                "A store in memory is one process's: locks that this child of a fork took there "
                "would exclude nobody. Give the child a store that all processes reach, by "
                "ClusterMutex.setup()."
            )
        if self.memory.away:
            raise StoreUnavailable(
                "The store in memory is away: the test says so.", unknown=False, refused=True
            )
        return self.memory.changed

    # ------------------------------------------------------------ MutexStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        with self._reach():
            self._check_open(request)
            self._has_lease |= isinstance(request, TakeOrQueue)
            outcome = self.model.apply(request, self._lease)
        self.notify()
        return outcome

    def send(self, request: Request, deadline: Deadline) -> Outcome:
        delivery = delivery_of(request)
        delivery.in_flight = True
        try:
            outcome = self.ask(request, deadline)
        except (StoreUnavailable, StoreError) as error:
            delivery.is_unknown |= error.unknown
            delivery.in_flight = False
            raise
        return outcome

    async def send_async(self, request: Request, deadline: Deadline) -> Outcome:
        """See `AsyncMutexStore.send_async`; other tasks run before and after it."""
        delivery_of(request).in_flight = True
        await asyncio.sleep(0)
        outcome = self.send(request, deadline)
        await asyncio.sleep(0)
        return outcome

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> _Watch:
        with self.memory.changed:
            now = self.model.revision
            watch = _Watch(self, target, revision or now + 1, notify)
            self.memory.watches.append(watch)
        if not revision:
            notify(WatchEvent(now, started=True))
        self.notify()
        return watch

    def unwatch(self, watch: _Watch) -> None:
        """Notify it no more."""
        with self.memory.changed:
            if watch in self.memory.watches:
                self.memory.watches.remove(watch)

    def watching(self) -> int:
        """Return how many watches there are."""
        return len(self.memory.watches)

    def guard(self, name: str, uuid: str) -> Guard:
        return Guard(name.encode(), uuid.encode())

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        return self._has_lease

    def extend_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        with self._reach():
            return self._has_lease

    def lose_tickets(self) -> None:
        """Expire all tickets, as when the process sleeps for too long."""
        with self.memory.changed:
            self._has_lease = False
            self.model.expire(self._lease)
            self._lease = next(self.model.leases)
        self.notify()

    def revoke_tickets(self) -> None:
        """Expire the tickets of this process's waiters."""
        if self.background.tickets.groups():
            self.lose_tickets()

    def notify(self) -> None:
        """Notify each watch of its new events, unless the store is unreachable."""
        due: list[tuple[_Watch, WatchEvent]] = []
        memory = self.memory
        with memory.changed:
            memory.changed.notify_all()
            for watch in () if memory.away else tuple(memory.watches):
                for event in memory.model.events(watch.target, watch.revision):
                    watch.revision = event.revision + 1
                    due.append((watch, event))
                    if event.gap:
                        memory.watches.remove(watch)
        for watch, event in due:
            watch.notify(event)

    # ------------------------------------------------------------ reading and following all

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        with self._reach():
            changes = iter(self.model.entries(kinds))
            revision = self.model.revision
        page: tuple[Change, ...] | None = ()
        while page is not None:
            page = tuple(map(_without_value, islice(changes, self.page_size)))
            yield Batch(page, revision)
            page = page if len(page) == self.page_size else None

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Follower:
        follower = Follower(self, revision, notify)
        with self.memory.changed:
            self.memory.followers.append(follower)
        follower.start()
        return follower

    def next_batch(self, follower: Follower) -> Batch | None:
        """Wait for a follower's next batch; None: it was closed."""
        with self.memory.changed:
            model = self.model
            self.memory.changed.wait_for(
                lambda: (
                    follower.closed
                    or (model.revision >= follower.revision and not self.memory.away)
                )
            )
            if follower.closed:
                return None
            if follower.revision <= model.compacted:
                return Batch((), 0, gap=True, missed=True)
            news = model.since(follower.revision)
            revision = news[0].revision if news else model.revision
            step = takewhile(lambda change: change.revision == revision, news)
            follower.revision = revision + 1
            return Batch(tuple(map(_without_value, step)), revision)

    def unfollow(self, follower: Follower) -> None:
        """Notify it no more."""
        with self.memory.changed:
            follower.closed = True
            if follower in self.memory.followers:
                self.memory.followers.remove(follower)
            self.memory.changed.notify_all()

    def connected(self) -> bool:
        return not (self._closing or self.memory.away)

    def watch_restarts(self) -> int:
        return 0

    def reopen_watch(self) -> None:
        """Do nothing: a follower of the memory can't fall silent."""

    # ------------------------------------------------------------ what unlockers write

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        with self._reach():
            pass  # it is reachable
        revision = self.write(("unlockers", unlocker, "", value.encode()))
        self._expire(
            unlocker, scheduler.shared.after(ttl, lambda: self._delete_announcement(unlocker))
        )
        return revision

    def newest_announcement(self, deadline: Deadline) -> int:
        with self._reach():
            return max((sign.revision for sign in self.model.entries(("unlockers",))), default=0)

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        self._expire(unlocker, None)
        self._delete_announcement(unlocker)

    def _expire(self, unlocker: str, task: Task | None) -> None:
        before = self.memory.expiries.pop(unlocker, None)
        if before is not None:
            before.cancel()
        if task is not None:
            self.memory.expiries[unlocker] = task

    def _delete_announcement(self, unlocker: str) -> None:
        self.write(("unlockers", unlocker, "", None))

    def read_document(self, name: str, deadline: Deadline) -> Document:
        with self._reach():
            value, version = self.model.documents.get(name, (b"", 0))
        return Document(value if len(value) <= MAX_DOCUMENT_BYTES else None, version)

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        with self._reach():
            if self.model.documents.get(name, (b"", 0))[1] != seen.version:
                return None
            self.model.documents[name] = value, seen.version + 1
            return Document(value, seen.version + 1)

    def document_names(self, deadline: Deadline) -> list[str]:
        with self._reach():
            return [name for name, (value, _) in self.model.documents.items() if value]

    def forget(self, change: Change, deadline: Deadline) -> bool:
        with self._reach():
            done = self.model.forget(change)
        self.notify()
        return done

    # ------------------------------------------------------------ reading some of it

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        with self._reach():
            found = self.model.kept.get(("code", code, ""))
        return None if found is None else found.value

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        with self._reach():
            waiting = self.model.lock(name).queue()
        return WaitQueue(len(waiting), tuple(waiting[:limit]))

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        with self._reach():
            found = [ticket for lock in self.model.locks.values() for ticket in lock.queue()]
        late = (ticket for ticket in found[limit:] if ticket.actor in actors)
        return Tickets([ticket.listed() for ticket in (*found[:limit], *late)], len(found))

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        with self._reach():
            held = (name for name, lock in self.model.locks.items() if lock.uuid() is not None)
            return sorted(name for name in held if name.startswith(prefix))[:limit]

    # ------------------------------------------------------------ what it says of itself

    def examine(self) -> Iterator[Finding | Clock]:
        yield Finding("memory", FINE, "Locks in memory: other processes have their own.")

    def clock_offsets(self, timeout: float) -> list[float]:
        return [0.0]

    def _disconnect(self) -> None:
        for follower in list(self.memory.followers):
            if follower.store is self:
                follower.close()


def _without_value(change: Change) -> Change:
    known = change.kind in _BY_KEY and change.value is not None
    return change._replace(value=b"") if known else change
