"""A `MutexStore` in memory: what `lockclient.stores.protocol` promises, written a second time.

It knows nothing of etcd's keys and transactions. The contract suite holds both against each
other, and the engine is explored on this one, where a request can arrive late, twice or never.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.common.background import Background
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
from lockclient.stores.protocol import Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.stores.requests import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    RequestState,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)


@dataclass
class Lock:
    """What the model knows of one lock's name."""

    holder: Holder | None = None
    tickets: dict[str, tuple[Ticket, int]] = field(default_factory=dict)  # with its lease
    removals: dict[str, Removal] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)  # acquisitions that were given up
    log: list[tuple[WatchTarget, int, str | None]] = field(default_factory=list)

    def uuid(self) -> str | None:
        """Who has the lock."""
        return None if self.holder is None else self.holder.uuid

    def uuid_at(self, revision: int) -> tuple[str | None, int]:
        """Who had the lock at a revision, and since which."""
        found: tuple[str | None, int] = (None, 0)
        for target, at, uuid in self.log:
            if target.ticket is None and at <= revision:
                found = (uuid, at)
        return found

    def ahead_of(self, revision: int) -> str | None:
        """The youngest ticket that is older than this revision."""
        older = [each for each, _ in self.tickets.values() if each.revision < revision]
        return max(older, key=lambda each: each.revision).uuid if older else None


class Model:
    """The state of a store, and what each request does to it, at once."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.locks: dict[str, Lock] = {}

    def lock(self, name: str) -> Lock:
        """Return the lock of this name."""
        return self.locks.setdefault(name, Lock())

    def apply(self, request: Request, lease: int = 0, *, resent: bool = False) -> Outcome:
        """Do a request; `lease` is what its ticket is bound to."""
        match request:
            case Take() | TakeOrQueue() | Claim() | Reclaim():
                return self._take(request, lease)
            case GetPosition():
                return self._look(request)
            case Push() | Unlock() | Remove():
                return self._as_holder(request, resent)
            case Withdraw():
                self._next()
                lock = self.lock(request.name)
                if lock.uuid() == request.uuid:
                    self._set_holder(lock, request.name, None)
                self._drop_ticket(lock, request.uuid)
                if request.tombstone:
                    lock.marks.add(request.uuid)
                return Done(self.revision)
            case Read():
                return self._read(request)

    def expire(self, lease: int) -> None:
        """Take away all tickets that are bound to a lease."""
        self._next()
        for lock in self.locks.values():
            for uuid in [uuid for uuid, (_, bound) in lock.tickets.items() if bound == lease]:
                self._drop_ticket(lock, uuid)

    def remove_holder(self, name: str) -> None:
        """Delete a lock as somebody with etcdctl does."""
        self._next()
        self._set_holder(self.lock(name), name, None)

    def write(self, name: str, part: str, value: bytes | None) -> None:
        """Write or delete one subkey of a held lock, as somebody with etcdctl does."""
        lock = self.lock(name)
        assert lock.holder is not None
        lock.holder = lock.holder.updated({part: (value, self._next())})

    def events(self, target: WatchTarget, revision: int) -> list[WatchEvent]:
        """Return what happened to a target from a revision on."""
        if revision <= self.compacted:
            return [WatchEvent(0, gap=True)]
        log = self.lock(target.name).log
        return [
            WatchEvent(at, uuid) for which, at, uuid in log if which == target and at >= revision
        ]

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def _set_holder(self, lock: Lock, name: str, holder: Holder | None) -> None:
        if holder is None and lock.holder is None:
            return
        if holder is not None:
            written = holder.subkeys().items()
            holder = Holder.read(
                name, {key: (text.encode(), self.revision) for key, text in written}
            )
        lock.holder = holder
        lock.log.append((WatchTarget(name), self.revision, None if holder is None else holder.uuid))

    def _drop_ticket(self, lock: Lock, uuid: str) -> None:
        found = lock.tickets.pop(uuid, None)
        if found is not None:
            lock.log.append((WatchTarget(found[0].name, uuid), self.revision, None))

    def _take(self, request: Take | TakeOrQueue | Claim | Reclaim, lease: int) -> Outcome:
        name, uuid = request.holder.name, request.holder.uuid or ""
        lock = self.lock(name)
        if self._may_take(request, lock):
            self._next()
            self._set_holder(lock, name, request.holder)
            if isinstance(request, Claim | Reclaim):
                self._drop_ticket(lock, uuid)
            return Taken(self.revision)
        if lock.holder is not None and lock.uuid() == uuid:
            return Taken(lock.holder.fencing_token, by_earlier_send=True)
        if isinstance(request, TakeOrQueue) and uuid not in lock.marks:
            self._next()
            known = lock.tickets.get(uuid)
            revision = self.revision if known is None else known[0].revision
            value = request.ticket.value().encode()
            lock.tickets[uuid] = (Ticket.read(name, uuid, value, revision), lease)
            last = max(each.revision for each, _ in lock.tickets.values()) == revision
            ahead = lock.ahead_of(revision) if last else None
            return Queued(revision, ahead, lock.uuid(), self.revision, not last)
        if isinstance(request, TakeOrQueue):
            return Refused(None, self.revision, uuid_spent=True)
        stands = isinstance(request, Claim) and self._stands(lock, uuid, request.ticket_revision)
        return Refused(lock.uuid(), self.revision, stands)

    def _may_take(self, request: Take | TakeOrQueue | Claim | Reclaim, lock: Lock) -> bool:
        if isinstance(request, Claim):
            stands = self._stands(lock, request.holder.uuid or "", request.ticket_revision)
            return lock.holder is None and stands
        if request.holder.uuid in lock.marks:
            return False
        if isinstance(request, Reclaim):
            return lock.holder is not None and (
                (lock.holder.uuid, lock.holder.fencing_token)
                == (request.previous.uuid, request.previous.fencing_token)
            )
        return lock.holder is None and not lock.tickets

    @staticmethod
    def _stands(lock: Lock, uuid: str, revision: int) -> bool:
        return uuid in lock.tickets and lock.tickets[uuid][0].revision == revision

    def _look(self, request: GetPosition) -> Position:
        lock = self.lock(request.name)
        stands = self._stands(lock, request.uuid, request.ticket_revision)
        if request.left_at is not None and request.left_at > self.compacted:
            got_it = lock.uuid_at(request.left_at) == (request.predecessor, request.left_at)
            return Position(stands, None, lock.uuid(), self.revision, ambiguous=not got_it)
        if request.predecessor is not None and request.left_at is None:
            found = lock.tickets.get(request.predecessor)
            stands_ahead = found is not None and found[0].revision < request.ticket_revision
            return Position(
                stands, request.predecessor, lock.uuid(), self.revision, not stands_ahead
            )
        ahead = lock.ahead_of(request.ticket_revision)
        return Position(stands, ahead, lock.uuid(), self.revision)

    def _as_holder(self, request: Push | Unlock | Remove, resent: bool) -> Outcome:
        if isinstance(request, Remove):
            name, uuid = request.removal.holder.name, request.removal.holder.uuid
        else:
            name, uuid = request.name, request.uuid
        lock = self.lock(name)
        stale = isinstance(request, Remove) and request.stamp_revisions not in (
            None,
            (0, 0) if lock.holder is None else lock.holder.stamp_revisions,
        )
        if lock.holder is None or lock.uuid() != uuid or stale:
            removal = lock.removals.get(uuid or "")
            if isinstance(request, Remove) and removal == request.removal:
                return Done(self.revision)
            return NotHolder(lock.uuid(), removal, resent)
        if isinstance(request, Push):
            at, mine = lock.holder.stamp_revisions[0], round(request.stamps.alert_at, 3)
            if at > request.revision:
                return Done(at) if lock.holder.alert_at == mine else Conflict(at)
        self._next()
        if isinstance(request, Push):
            never = request.stamps.auto_unlock_at is None
            written = lock.holder.stamped(request.stamps).subkeys().items()
            lock.holder = lock.holder.updated(
                {
                    key: (text.encode(), self.revision)
                    for key, text in written
                    if key == "alert_at" or (key == "auto_unlock_at" and not never)
                }
            )
        else:
            self._set_holder(lock, name, None)
            if isinstance(request, Remove) and request.recorded:
                lock.removals[uuid or ""] = request.removal
                lock.marks.add(uuid or "")
        return Done(self.revision)

    def _read(self, request: Read) -> ReadResult:
        lock = self.lock(request.name)
        line = sorted((each for each, _ in lock.tickets.values()), key=lambda each: each.revision)
        removal = None if request.uuid is None else lock.removals.get(request.uuid)
        waiters = tuple(line) if request.waiters else ()
        return ReadResult(lock.holder, waiters, removal, self.revision)


class _Watch:
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
        self._store.forget(self)


class MemoryStore:
    """The model as a `MutexStore`, for the threads of one process."""

    can = Capabilities("The model")

    def __init__(self) -> None:
        self.model = Model()
        self.asked: list[Request] = []
        self.background = Background(self)
        self._lease = 1
        self._has_lease = False
        self._lock = threading.Lock()
        self._watches: list[_Watch] = []

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        with self._lock:
            self.asked.append(request)
            self._has_lease |= isinstance(request, TakeOrQueue)
            outcome = self.model.apply(request, self._lease)
        self._notify()
        return outcome

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        sending.in_flight = True
        try:
            outcome = self.ask(sending.request, deadline)
        except (StoreUnavailable, StoreError) as error:
            sending.ambiguous |= error.unknown
            sending.in_flight = False
            raise
        return outcome

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """See `AsyncMutexStore.send_async`: the asker is away before it is done, and after."""
        sending.in_flight = True
        await asyncio.sleep(0)
        outcome = self.send(sending, deadline)
        await asyncio.sleep(0)
        return outcome

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> _Watch:
        with self._lock:
            now = self.model.revision
            watch = _Watch(self, target, revision or now + 1, notify)
            self._watches.append(watch)
        if not revision:
            notify(WatchEvent(now, started=True))
        self._notify()
        return watch

    def forget(self, watch: _Watch) -> None:
        """End a watch."""
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def watching(self) -> int:
        """How many watches there are."""
        return len(self._watches)

    def guard(self, name: str, uuid: str) -> Guard:
        return Guard(name.encode(), uuid.encode())

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        return self._has_lease

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        return self._has_lease

    def lose_tickets(self) -> None:
        """Let the tickets' time run out, as when the process sleeps for too long."""
        with self._lock:
            self._has_lease = False
            self.model.expire(self._lease)
            self._lease += 1
        self._notify()

    def _notify(self) -> None:
        due: list[tuple[_Watch, WatchEvent]] = []
        with self._lock:
            for watch in list(self._watches):
                for event in self.model.events(watch.target, watch.revision):
                    watch.revision = event.revision + 1
                    due.append((watch, event))
                    if event.gap:
                        self._watches.remove(watch)
        for watch, event in due:
            watch.notify(event)
