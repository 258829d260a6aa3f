"""Lock model: the rules of `lockclient.stores.request_types` as code without I/O.

It knows nothing of keys and transactions: the state is a set of `Change`s, the past a journal of
them. A store that can do a request in one step of its own may let it decide.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Final

from lockclient.model.holder import MAX_VALUE_BYTES, SUBKEYS, Found, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.mutex_store import WatchEvent, WatchTarget
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
from lockclient.stores.request_types import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.stores.service_store import Change, Kind

Entry = tuple[Kind, str, str, bytes | None]
"""A write in one place: kind, name and part, as `Change` has them, and the new value."""
OF_LOCKS: Final = frozenset(("locks", "queue", "removed", "withdrawn"))


@dataclass
class Lock:
    """All that the store has for one lock's name."""

    name: str
    parts: dict[str, Found] = field(default_factory=dict)
    tickets: dict[str, tuple[Ticket, int]] = field(default_factory=dict)  # with its lease
    removals: dict[str, Removal] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)  # acquisitions that were given up

    @property
    def holder(self) -> Holder | None:
        parts = dict(self.parts)  # one step: others write
        return Holder.read(self.name, parts) if parts else None

    def uuid(self) -> str | None:
        value, _ = self.parts.get("uuid", (None, 0))
        return None if value is None else value.decode(errors="replace")

    def ahead_of(self, revision: int) -> str | None:
        """The youngest ticket that is older than this revision."""
        older = [ticket for ticket in self.queue() if ticket.revision < revision]
        return older[-1].uuid if older else None

    def queue(self) -> list[Ticket]:
        """Return the waiters, the next one first."""
        return sorted((ticket for ticket, _ in self.tickets.values()), key=lambda t: t.revision)

    def note(self, change: Change, lease: int) -> None:
        part, value = change.part, change.value
        if change.kind == "locks":
            self.parts[part] = value, change.revision
            if value is None:
                del self.parts[part]
        elif change.kind == "withdrawn":
            self.marks.discard(part) if value is None else self.marks.add(part)
        elif change.kind in ("queue", "removed"):
            self.tickets.pop(part, None)
            self.removals.pop(part, None) if change.kind == "removed" else None
            if value is not None and change.kind == "queue":
                bounded = value if len(value) <= MAX_VALUE_BYTES else b""
                self.tickets[part] = Ticket.read(self.name, part, bounded, change.created), lease
            elif value is not None:
                self.removals[part] = Removal.read(self.name, part, value)


class Model:
    """The state of a store, and what each request does to it, at once."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.kept: dict[tuple[Kind, str, str], Change] = {}
        self.journal: list[Change] = []
        self.locks: dict[str, Lock] = {}
        self.documents: dict[str, tuple[bytes, int]] = {}
        """Values and versions of documents; a deleted one keeps its version."""
        self.leases = count(1)
        """Numbers of what tickets are bound to."""

    def lock(self, name: str) -> Lock:
        return self.locks.setdefault(name, Lock(name))

    # ------------------------------------------------------------ writing

    def write(self, *entries: Entry, lease: int = 0) -> int:
        """Write these values in one step, or delete those of value None; return its revision.

        All requests are made of this, and so are changes by other clients.
        """
        self.revision += 1
        for kind, name, part, value in entries:
            old = self.kept.pop((kind, name, part), None)
            if value is None and old is None:
                continue
            created = 0 if value is None else old.created if old else self.revision
            change = Change(kind, name, part, value, self.revision, created)
            if value is not None:
                self.kept[kind, name, part] = change
            self.journal.append(change)
            if kind in OF_LOCKS:
                self.lock(name).note(change, lease)
        return self.revision

    def expire(self, lease: int) -> None:
        """Take away all tickets that are bound to a lease."""
        gone: list[Entry] = [
            ("queue", lock.name, uuid, None)
            for lock in self.locks.values()
            for uuid, (_, bound) in lock.tickets.items()
            if bound == lease
        ]
        self.write(*gone)

    def remove_holder(self, name: str) -> None:
        """Delete a lock as etcdctl does."""
        self.write(*self._held_by(name, None))

    def forget(self, change: Change) -> bool:
        """Delete what was read, unless it was written again since."""
        there = self.kept.get((change.kind, change.name, change.part))
        if there is None or there.revision != change.revision:
            return False
        self.write((change.kind, change.name, change.part, None))
        return True

    @staticmethod
    def _held_by(name: str, holder: Holder | None) -> Iterator[Entry]:
        """Return what makes this the holder, and leaves nothing of the one before it."""
        values = {} if holder is None else holder.subkeys()
        for part in SUBKEYS:
            yield "locks", name, part, values[part].encode() if part in values else None

    # ------------------------------------------------------------ reading

    def entries(self, kinds: Iterable[Kind]) -> list[Change]:
        """Return all items of these kinds, one kind after the other."""
        return [
            self.kept[key] for kind in kinds for key in sorted(k for k in self.kept if k[0] == kind)
        ]

    def since(self, revision: int) -> list[Change]:
        """Return what was written from a revision on, in order."""
        return self.journal[bisect_left(self.journal, revision, key=attrgetter("revision")) :]

    def events(self, target: WatchTarget, revision: int) -> list[WatchEvent]:
        """Return what happened to a target from a revision on."""
        if revision <= self.compacted:
            return [WatchEvent(0, gap=True)]
        ticket = target.ticket
        key = ("locks", target.name, "uuid") if ticket is None else ("queue", target.name, ticket)
        return [
            WatchEvent(change.revision, None if change.value is None else change.value.decode())
            for change in self.since(revision)
            if change[:3] == key and (ticket is None or change.value is None)
        ]

    def removal(self, name: str, uuid: str) -> Removal | None:
        """Return the record of a removal, with its backtrace."""
        record = self.lock(name).removals.get(uuid)
        if record is None or not record.code:
            return record
        code = self.kept.get(("code", record.code, ""))
        return record.with_backtrace(None if code is None else code.value)

    def _uuid_at(self, name: str, revision: int) -> tuple[str | None, int]:
        """Return the holder of a lock at a revision, and since which."""
        until = bisect_left(self.journal, revision + 1, key=attrgetter("revision"))
        for change in reversed(self.journal[:until]):
            if change[:3] == ("locks", name, "uuid"):
                return None if change.value is None else change.value.decode(), change.revision
        return None, 0

    # ------------------------------------------------------------ requests

    def apply(self, request: Request, lease: int = 0, *, resent: bool = False) -> Outcome:
        """Do a request; `lease` is what its ticket is bound to."""
        match request:
            case Take() | TakeOrQueue() | Claim() | Reclaim():
                return self._take(request, lease)
            case GetPosition():
                return self._position(request)
            case Push() | Unlock() | Remove():
                return self._as_holder(request, resent)
            case Withdraw(name=name, uuid=uuid):
                held = self.lock(name).uuid() == uuid
                gone = [*self._held_by(name, None)] if held else []
                mark: list[Entry] = [("withdrawn", name, uuid, b"")] if request.tombstone else []
                return Done(self.write(*gone, ("queue", name, uuid, None), *mark))
            case Read():
                lock = self.lock(request.name)
                removal = None if request.uuid is None else self.removal(request.name, request.uuid)
                waiters = tuple(lock.queue()) if request.waiters else ()
                return ReadResult(lock.holder, waiters, removal, self.revision)

    def _take(self, request: Take | TakeOrQueue | Claim | Reclaim, lease: int) -> Outcome:
        name, uuid = request.holder.name, request.holder.uuid or ""
        lock = self.lock(name)
        if self._may_take(request, lock):
            held = self._held_by(name, request.holder)
            gone: list[Entry] = []
            if isinstance(request, Claim | Reclaim):
                gone = [("queue", name, uuid, None)]
            return Taken(self.write(*held, *gone))
        if lock.holder is not None and lock.uuid() == uuid:
            return Taken(lock.holder.fencing_token, by_earlier_send=True)
        if isinstance(request, TakeOrQueue) and uuid not in lock.marks:
            self.write(("queue", name, uuid, request.ticket.value().encode()), lease=lease)
            revision = lock.tickets[uuid][0].revision
            last = lock.queue()[-1].revision == revision
            ahead = lock.ahead_of(revision) if last else None
            waiters = len(lock.queue())
            return Queued(revision, ahead, lock.uuid(), self.revision, not last, waiters)
        if isinstance(request, TakeOrQueue):
            return Refused(None, self.revision, uuid_spent=True)
        stands = isinstance(request, Claim) and self._stands(lock, uuid, request.ticket_revision)
        return Refused(lock.uuid(), self.revision, stands)

    def _may_take(self, request: Take | TakeOrQueue | Claim | Reclaim, lock: Lock) -> bool:
        if isinstance(request, Claim):
            stands = self._stands(lock, request.holder.uuid or "", request.ticket_revision)
            return lock.uuid() is None and stands
        if request.holder.uuid in lock.marks:
            return False
        if isinstance(request, Reclaim):
            return lock.holder is not None and (
                (lock.holder.uuid, lock.holder.fencing_token)
                == (request.previous.uuid, request.previous.fencing_token)
            )
        return lock.uuid() is None and not lock.tickets

    @staticmethod
    def _stands(lock: Lock, uuid: str, revision: int) -> bool:
        return uuid in lock.tickets and lock.tickets[uuid][0].revision == revision

    def _position(self, request: GetPosition) -> Position:
        lock = self.lock(request.name)
        stands = self._stands(lock, request.uuid, request.ticket_revision)
        deleted_at = request.predecessor_deleted_at
        if deleted_at is not None and deleted_at > self.compacted:
            got_it = (request.predecessor, deleted_at)
            is_unsure = self._uuid_at(request.name, deleted_at) != got_it
            return Position(stands, None, lock.uuid(), self.revision, is_unsure)
        if request.predecessor is not None and deleted_at is None:
            found = lock.tickets.get(request.predecessor)
            stands_ahead = found is not None and found[0].revision < request.ticket_revision
            return Position(
                stands, request.predecessor, lock.uuid(), self.revision, not stands_ahead
            )
        ahead = lock.ahead_of(request.ticket_revision)
        return Position(stands, ahead, lock.uuid(), self.revision)

    def _as_holder(self, request: Push | Unlock | Remove, resent: bool) -> Outcome:
        if isinstance(request, Remove):
            name, uuid = request.removal.holder.name, request.removal.holder.uuid or ""
        else:
            name, uuid = request.name, request.uuid
        lock = self.lock(name)
        if lock.uuid() != uuid or (isinstance(request, Remove) and _is_stale(request, lock)):
            removal = self.removal(name, uuid)
            mine = request.removal.value() if isinstance(request, Remove) else None
            if removal is not None and removal.value() == mine:
                return Done(self.revision)
            return NotHolder(lock.uuid(), removal, resent)
        if isinstance(request, Push):
            return self._push(request, lock)
        written = [*self._held_by(name, None)]
        if isinstance(request, Remove) and request.recorded:
            written += self._recorded(request.removal)
        return Done(self.write(*written))

    def _push(self, request: Push, lock: Lock) -> Outcome:
        holder, stamps = lock.holder, request.stamps
        assert holder is not None
        at = holder.stamp_revisions[0]
        if at > request.revision:
            done = holder.alert_at == round(stamps.alert_at, 3)
            return Done(at) if done else Conflict(at)
        values = holder.stamped(stamps).subkeys()
        parts = ("alert_at",) if stamps.auto_unlock_at is None else ("alert_at", "auto_unlock_at")
        written: list[Entry] = [
            ("locks", request.name, part, values[part].encode()) for part in parts
        ]
        return Done(self.write(*written))

    def _recorded(self, removal: Removal) -> Iterator[Entry]:
        """Return the record of a removal; a long backtrace has its own key."""
        name, uuid = removal.holder.name, removal.holder.uuid or ""
        record, backtrace = removal.split_backtrace()
        yield "removed", name, uuid, record.value().encode()
        yield "withdrawn", name, uuid, b""
        if backtrace:
            yield "code", record.code, "", backtrace.encode()


def _is_stale(request: Remove, lock: Lock) -> bool:
    holder, seen = lock.holder, request.stamp_revisions
    return seen is not None and holder is not None and seen != holder.stamp_revisions
