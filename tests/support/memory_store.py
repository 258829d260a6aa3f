"""A `ServiceStore` in memory: what `lockclient.stores` promises, written a second time.

The contract suite holds it against the real ones; programs are tested on it, and the engine is
explored on its `Model`, where a request can arrive late, twice or never.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from lockclient.errors import StoreClosed, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.common.background import Background
from lockclient.stores.diagnosis_protocol import History, Member
from lockclient.stores.outcomes import Outcome
from lockclient.stores.protocol import Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.stores.requests import Request, RequestState, TakeOrQueue, Unlock, Withdraw
from lockclient.stores.service_protocol import (
    MAX_NOTE_BYTES,
    Batch,
    Change,
    Kind,
    Note,
    Tickets,
    WaitQueue,
)
from lockclient.threads import scheduler
from lockclient.threads.scheduler import Task
from tests.support.memory_model import Entry, Model
from tests.support.records import subkeys

CLOSE_TIMEOUT_S = 0.4
_BY_KEY: tuple[Kind, ...] = ("queue", "withdrawn", "code")
"""Of which `load` and `follow` leave the values out."""


class _Watch:
    """Who is notified of one lock's or ticket's changes, in the thread that makes them."""

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


class _Follower(threading.Thread):
    """Who is notified of all changes, in a thread of its own: a slow one holds nobody up."""

    def __init__(self, store: MemoryStore, revision: int, notify: Callable[[Batch], None]) -> None:
        super().__init__(name="clustermutex-memory-follower", daemon=True)
        self.revision = revision
        """Of the first change that it has not been notified of."""
        self.closed = False
        self.store = store
        self._notify = notify

    def run(self) -> None:
        """Notify of what is there and of what comes, until it is closed."""
        batch: Batch | None = Batch((), self.revision - 1, started=True)
        while batch is not None:
            self._notify(batch)
            batch = None if batch.gap else self.store.next_batch(self)

    def close(self) -> None:
        self.store.unfollow(self)


class MemoryStore:
    """The model as a `ServiceStore`, for the threads of one process.

    Args:
        page_size: how many values `load` has in one batch.
    """

    can = Capabilities("The model")
    poll = 0.0

    def __init__(self, page_size: int = 1000) -> None:
        self.model = Model()
        self.asked: list[Request] = []
        self.background = Background(self)
        self.page_size = page_size
        self._lease = next(self.model.leases)
        self._has_lease = False
        self._changed = threading.Condition()
        """Guards all that is here, and is told of all that changes."""
        self._watches: list[_Watch] = []
        self._followers: list[_Follower] = []
        self._expiries: dict[str, Task] = {}
        self._closed = False

    def another(self) -> MemoryStore:
        """Return the store of another client, in which the same stands."""
        other = MemoryStore(self.page_size)
        other.model, other._changed = self.model, self._changed
        other._watches, other._followers = self._watches, self._followers
        other._expiries, other._lease = self._expiries, next(self.model.leases)
        return other

    def write(self, *entries: Entry) -> int:
        """Write these values in one step, or delete those of value None, as any client may."""
        with self._changed:
            revision = self.model.write(*entries)
        self._notify()
        return revision

    # ------------------------------------------------------------ what happens in the store

    def take(self, name: str, **values: Any) -> None:
        """Have somebody take the lock, now unless `locked_at` says otherwise."""
        self.write(*[("locks", name, key, value) for key, value in subkeys(**values).items()])

    def push(self, name: str, *, alert: float = 300.0, unlock: float = 900.0) -> None:
        """Push the stamps forward, from now on, together as holders do."""
        now = time.time()
        stamps = (("alert_at", now + alert), ("auto_unlock_at", now + unlock))
        self.write(*[("locks", name, part, f"{at:.3f}".encode()) for part, at in stamps])

    def release(self, name: str) -> None:
        gone = [key for key in self.model.kept if key[:2] == ("locks", name)]
        self.write(*[(kind, of, part, None) for kind, of, part in gone])

    def wait(self, name: str, uuid: str, **values: Any) -> None:
        self.write(("queue", name, uuid, json.dumps(values).encode()))

    def unlocker(self, name: str = "watchdog-1:77", *, runs: bool = True) -> None:
        self.write(("unlockers", name, "", b"{}" if runs else None))

    def removed(self, name: str, uuid: str, **values: Any) -> None:
        self.write(("removed", name, uuid, json.dumps(values).encode()))

    def lose_watches(self) -> None:
        """Have nobody told any more of what is written, until he follows anew."""
        for follower in list(self._followers):
            follower.close()

    # ------------------------------------------------------------ MutexStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        with self._changed:
            if self._closed and not isinstance(request, Withdraw | Unlock):
                raise StoreClosed("The store in memory was closed.")
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
        with self._changed:
            now = self.model.revision
            watch = _Watch(self, target, revision or now + 1, notify)
            self._watches.append(watch)
        if not revision:
            notify(WatchEvent(now, started=True))
        self._notify()
        return watch

    def unwatch(self, watch: _Watch) -> None:
        with self._changed:
            if watch in self._watches:
                self._watches.remove(watch)

    def watching(self) -> int:
        return len(self._watches)

    def guard(self, name: str, uuid: str) -> Guard:
        return Guard(name.encode(), uuid.encode())

    def for_the_end(self) -> MemoryStore:
        return self

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        return self._has_lease

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        return self._has_lease

    def lose_tickets(self) -> None:
        """Let the tickets' time run out, as when the process sleeps for too long."""
        with self._changed:
            self._has_lease = False
            self.model.expire(self._lease)
            self._lease = next(self.model.leases)
        self._notify()

    def _notify(self) -> None:
        due: list[tuple[_Watch, WatchEvent]] = []
        with self._changed:
            self._changed.notify_all()
            for watch in list(self._watches):
                for event in self.model.events(watch.target, watch.revision):
                    watch.revision = event.revision + 1
                    due.append((watch, event))
                    if event.gap:
                        self._watches.remove(watch)
        for watch, event in due:
            watch.notify(event)

    # ------------------------------------------------------------ reading and following all

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        with self._changed:
            changes = iter(self.model.entries(kinds))
            revision = self.model.revision
        page: tuple[Change, ...] | None = ()
        while page is not None:
            page = tuple(map(_without_value, islice(changes, self.page_size)))
            yield Batch(page, revision)
            page = page if len(page) == self.page_size else None

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> _Follower:
        follower = _Follower(self, revision, notify)
        with self._changed:
            self._followers.append(follower)
        follower.start()
        return follower

    def next_batch(self, follower: _Follower) -> Batch | None:
        """Wait for what is new to a follower; None: it was closed."""
        with self._changed:
            model = self.model
            self._changed.wait_for(lambda: follower.closed or model.revision >= follower.revision)
            if follower.closed:
                return None
            if follower.revision <= model.compacted:
                return Batch((), 0, gap=True)
            news = model.since(follower.revision)
            revision = news[0].revision if news else model.revision
            step = takewhile(lambda change: change.revision == revision, news)
            follower.revision = revision + 1
            return Batch(tuple(map(_without_value, step)), revision)

    def unfollow(self, follower: _Follower) -> None:
        """Notify it no more."""
        with self._changed:
            follower.closed = True
            if follower in self._followers:
                self._followers.remove(follower)
            self._changed.notify_all()

    def connected(self) -> bool:
        return not self._closed

    def watch_restarts(self) -> int:
        return 0

    def renew_watch(self) -> None:
        """Do nothing: what follows here can't fall silent."""

    # ------------------------------------------------------------ what unlockers write

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        revision = self.write(("unlockers", unlocker, "", value.encode()))
        self._expire(unlocker, scheduler.shared.after(ttl, lambda: self._gone(unlocker)))
        return revision

    def newest_announcement(self, deadline: Deadline) -> int:
        with self._changed:
            return max((sign.revision for sign in self.model.entries(("unlockers",))), default=0)

    def announce_restored(self, value: str, deadline: Deadline) -> None:
        self.write(("restored", "", "", value.encode()))

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        self._expire(unlocker, None)
        self._gone(unlocker)

    def _expire(self, unlocker: str, task: Task | None) -> None:
        before = self._expiries.pop(unlocker, None)
        if before is not None:
            before.cancel()
        if task is not None:
            self._expiries[unlocker] = task

    def _gone(self, unlocker: str) -> None:
        self.write(("unlockers", unlocker, "", None))

    def read_note(self, deadline: Deadline) -> Note:
        with self._changed:
            note = self.model.note
        return note if len(note.value) <= MAX_NOTE_BYTES else note._replace(value=b"")

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        with self._changed:
            if self.model.note.version != seen.version:
                return False
            self.model.note = Note(value, seen.version + 1)
            return True

    def forget(self, change: Change, deadline: Deadline) -> bool:
        with self._changed:
            done = self.model.forget(change)
        self._notify()
        return done

    # ------------------------------------------------------------ reading some of it

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        with self._changed:
            found = self.model.kept.get(("code", code, ""))
        return None if found is None else found.value

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        with self._changed:
            waiting = self.model.lock(name).queue()
        return WaitQueue(len(waiting), tuple(waiting[:limit]))

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        with self._changed:
            found = [ticket for lock in self.model.locks.values() for ticket in lock.queue()]
        late = (ticket for ticket in found[limit:] if ticket.actor in actors)
        return Tickets([ticket.listed() for ticket in (*found[:limit], *late)], len(found))

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        with self._changed:
            held = (name for name, lock in self.model.locks.items() if lock.uuid() is not None)
            return sorted(name for name in held if name.startswith(prefix))[:limit]

    # ------------------------------------------------------------ what it says of itself

    def endpoints(self) -> tuple[str, ...]:
        return ("memory",)

    def members(self, timeout: float) -> list[Member]:
        return [Member(endpoint, ahead=0.0, leader=True) for endpoint in self.endpoints()]

    def clock_offsets(self, timeout: float) -> list[float]:
        return [0.0]

    def history(self, deadline: Deadline) -> History:
        return History(self.model.revision, self.model.compacted + 1)

    def probe_permissions(self, deadline: Deadline) -> Mapping[str, bool]:
        return {}

    def votes(self) -> Mapping[str, str]:
        return {}

    def warnings_for_display(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._closed = True
        for follower in list(self._followers):
            if follower.store is self:
                follower.close()
        self.background.close(CLOSE_TIMEOUT_S)
        self.lose_tickets()


def _without_value(change: Change) -> Change:
    known = change.kind in _BY_KEY and change.value is not None
    return change._replace(value=b"") if known else change
