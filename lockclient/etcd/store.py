"""The store on etcd: requests go through transactions over channels, watches share one stream."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

from lockclient.background import AT_EXIT, Background
from lockclient.errors import ClusterMutexError
from lockclient.etcd import forking
from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.aio import AioChannels
from lockclient.etcd.borrowed import Borrowed, endpoint_of
from lockclient.etcd.channels import Channels
from lockclient.etcd.failover import FaultError
from lockclient.etcd.faults import Fault, was_closed
from lockclient.etcd.keyspace import Keyspace
from lockclient.etcd.lease import Lease
from lockclient.etcd.methods import RANGE, TXN
from lockclient.etcd.paging import Pages
from lockclient.etcd.transactions import Transactions
from lockclient.etcd.watch_stream import Missed, News, Started, Watch, WatchStream
from lockclient.settings import Settings
from lockclient.store import (
    TICKET_TTL,
    Batch,
    Change,
    Event,
    Guard,
    Kind,
    Look,
    Member,
    Outcome,
    Remove,
    Request,
    Sending,
    TakeOrQueue,
    Target,
    Unlock,
    Withdraw,
)
from lockclient.timers import Crew
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

RETENTION = 7 * 86400
"""Seconds for which the record of a removal is kept."""
_RETENTION_REUSE = 3600
MARKED = 86400
"""Seconds for which an acquisition that was given up stays marked: a take of it that is still under
way somewhere does nothing when it arrives."""
CLOSING = 0.4
"""Seconds that closing waits for what is to be cleaned up; half of it for a lease."""
_PAGE = 10_000
"""Keys of a page: of a thousand locks or less, some 2 MB."""
_NAMES_PAGE = 1000
"""Keys of a page without values: of some eighty locks."""


class EtcdStore:
    """A `ServiceStore` on an etcd cluster. Nothing is sent before it is first asked.

    Args:
        settings: where the cluster is.
        client: an `etcd3` client whose connection is used instead of one of our own.

    Raises:
        ClusterMutexError: the process's threads were replaced by green ones.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        forking.require_real_threads()
        self._borrowed = None if client is None else Borrowed(client)
        if client is not None:
            settings = replace(settings, endpoints=(endpoint_of(client),))
        self.settings = settings
        self._keyspace = Keyspace(settings.root)
        self._transactions = Transactions(self._keyspace)
        self._connect()
        _stores.add(self)

    def _connect(self) -> None:
        self._closing = False
        self._channels = Channels(self.settings, self._borrowed)
        self.background = Background(self)
        self._streams = [WatchStream(self._channels)]
        if len(self.settings.endpoints) > 1:
            self._streams.append(WatchStream(self._channels, self._streams[0]))
        self._tickets = self._ticket_lease()
        # One lease for all removals of an hour, so that each costs one request and not two.
        self._retention = Lease(self._channels, RETENTION + _RETENTION_REUSE, RETENTION)
        self._marks = Lease(self._channels, 2 * MARKED, MARKED)
        self._announced: dict[str, Lease] = {}
        self._loops: dict[Hashable, AioChannels] = {}

    def _ticket_lease(self) -> Lease:
        return Lease(self._channels, TICKET_TTL, TICKET_TTL / 2, renewed=True)

    # ------------------------------------------------------------ MutexStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """See `MutexStore.ask`."""
        return self.background.away(lambda: self.send(Sending(request), deadline))

    def send(self, sending: Sending, deadline: Deadline) -> Outcome:
        """See `MutexStore.send`."""
        lease, number = self._lease_for(sending.request, self._tickets), 0
        while True:
            try:
                if lease is not None:
                    number = lease.get(deadline)
                txn = self._transactions.build(sending.request, number)
                answer = self._channels.call(TXN, txn, deadline, sending)
                return self._transactions.read(sending.request, answer, resent=sending.unknown)
            except FaultError as error:
                lease, number = _otherwise(error, sending, lease, number)

    async def send_async(self, sending: Sending, deadline: Deadline) -> Outcome:
        """See `AsyncMutexStore.send_async`."""
        channels = self._on_this_loop()
        lease, number = self._lease_for(sending.request, channels.tickets), 0
        while True:
            try:
                if lease is not None:
                    number = await channels.lease_id(lease, deadline)
                txn = self._transactions.build(sending.request, number)
                answer = await channels.call(TXN, txn, deadline, sending)
                return self._transactions.read(sending.request, answer, resent=sending.unknown)
            except FaultError as error:
                lease, number = _otherwise(error, sending, lease, number)

    def _on_this_loop(self) -> AioChannels:
        """Return the channels of the running event loop: grpc.aio's belong to one."""
        loop = asyncio.get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            # Those of loops that are over go now. (They hold their loop: no weak reference helps.)
            for each, old in list(self._loops.items()):
                if old.loop.is_closed():
                    self._loops.pop(each, None)
            channels = AioChannels(self._channels, self.background, self._ticket_lease())
            self._loops[loop] = channels
        return channels

    def _lease_for(self, request: Request, tickets: Lease) -> Lease | None:
        # As it closes, what takes back is asked still, and all else not any more.
        if self._closing and not isinstance(request, Withdraw | Unlock):
            raise was_closed(self.endpoints())
        if isinstance(request, TakeOrQueue):
            return tickets
        if isinstance(request, Withdraw):
            return self._marks if request.mark else None
        return self._retention if isinstance(request, Remove) else None

    def watch(self, target: Target, revision: int, notify: Callable[[Event], None]) -> Watch:
        """See `MutexStore.watch`."""
        keys = self._keyspace.keys_of(target.name)
        key = keys.uuid if target.ticket is None else keys.ticket_as_read(target.ticket)

        def translate(events: News) -> None:
            if isinstance(events, Missed):
                notify(Event(0, missed=True))
                return
            if isinstance(events, Started):
                notify(Event(events.revision, started=True))
                return
            for event in events:
                gone = event.kind == wire.WatchEvent.DELETE
                uuid = None if gone else event.kv.value.decode(errors="replace")
                notify(Event(event.kv.mod_revision, uuid))

        # A ticket that is written again by a second sending is no news to who waits behind it.
        return Watch(
            self._streams, (key, b""), revision, translate, deletes_only=target.ticket is not None
        )

    def guard(self, name: str, uuid: str) -> Guard:
        """See `MutexStore.guard`."""
        return Guard(self._keyspace.keys_of(name).uuid, uuid.encode())

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """See `MutexStore.has_ticket_lease`."""
        lease = self._lease_of(waiters)
        return lease is not None and lease.usable()

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """See `MutexStore.keep_tickets`."""
        lease = self._lease_of(waiters)
        try:
            return lease is not None and lease.keep(deadline)
        except FaultError as error:
            raise error.said from error.error

    def _lease_of(self, waiters: Hashable) -> Lease | None:
        if waiters is None:
            return self._tickets
        channels = self._loops.get(waiters)
        return None if channels is None else channels.tickets

    # ------------------------------------------------------------ ServiceStore

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        """See `ServiceStore.load`."""
        revision = 0
        for kind in kinds:
            pages = Pages(self._keyspace.kind(kind))
            going_on = True
            while going_on:
                page = wire.Range(
                    key=pages.key, range_end=pages.range_end, limit=_PAGE, revision=revision
                )
                answer = self._call(RANGE, page, deadline)
                revision = revision or answer.header.revision
                yield Batch(self._changes((kv, wire.WatchEvent.PUT) for kv in answer.kvs), revision)
                going_on = pages.read(answer.kvs[-1].key if answer.more else b"", more=answer.more)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Watch:
        """See `ServiceStore.follow`."""

        def translate(events: News) -> None:
            if isinstance(events, Missed):
                notify(Batch((), 0, missed=True, refused=events.refused))
                return
            if isinstance(events, Started):
                notify(Batch((), events.revision))
                return
            changes = self._changes((event.kv, event.kind) for event in events)
            notify(Batch(changes, events[-1].kv.mod_revision))

        # By one stream: all that a service follows would cost it twice as much by two.
        return Watch(
            self._streams[:1], self._keyspace.everything, revision, translate, tell_start=True
        )

    def _changes(self, found: Iterable[tuple[Any, int]]) -> tuple[Change, ...]:
        """Return what these keys and values say, each with what happened to it."""
        parse, deleted = self._keyspace.parse, wire.WatchEvent.DELETE
        return tuple(
            Change(
                *parsed,
                None if event == deleted else kv.value,
                kv.mod_revision,
                kv.create_revision,
            )
            for kv, event in found
            if (parsed := parse(kv.key)) is not None
        )

    def connected(self) -> bool:
        """See `ServiceStore.connected`."""
        return self._streams[0].connected()

    def watch_restarts(self) -> int:
        """See `ServiceStore.watch_restarts`."""
        return self._streams[0].restarts

    def clock_offsets(self, timeout: float) -> list[float]:
        """See `ServiceStore.clock_offsets`."""
        from lockclient.etcd import clocks  # only unlockers need it, and all that it imports

        return clocks.offsets(self.settings, timeout)

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> None:
        """See `ServiceStore.announce`."""
        lease = self._announced.setdefault(unlocker, Lease(self._channels, ttl, 0))
        kept = False
        try:
            # By its lease first: that goes on in an etcd that is out of space for the value.
            kept = lease.keep(deadline)
            key = self._keyspace.unlocker(unlocker)
            put = wire.Put(key=key, value=value.encode(), lease=lease.get(deadline))
            self._channels.call(TXN, wire.Txn(success=[wire.Operation(put=put)]), deadline)
        except FaultError as error:
            if not (kept and error.fault is Fault.NO_SPACE):
                raise error.said from error.error

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """See `ServiceStore.withdraw_announcement`."""
        if lease := self._announced.pop(unlocker, None):
            try:
                lease.revoke(deadline)
            except FaultError as error:
                raise error.said from error.error

    def _call(self, method: Any, request: Any, deadline: Deadline) -> Any:
        try:
            return self.background.away(lambda: self._channels.call(method, request, deadline))
        except FaultError as error:
            raise error.said from error.error

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        """See `ServiceStore.names`."""
        pages = Pages(self._keyspace.locks_from(prefix))
        found: list[str] = []
        going_on = True
        while going_on and len(found) < limit:
            page = wire.Range(
                key=pages.key, range_end=pages.range_end, limit=_NAMES_PAGE, keys_only=True
            )
            answer = self._call(RANGE, page, deadline)
            parsed = (self._keyspace.parse(kv.key) for kv in answer.kvs)
            found += [each[1] for each in parsed if each is not None and each[2] == "uuid"]
            going_on = pages.read(answer.kvs[-1].key if answer.more else b"", more=answer.more)
        return found[:limit]

    def members(self, timeout: float) -> list[Member]:
        """See `ServiceStore.members`."""
        from lockclient.etcd import health  # only a doctor needs it, and all that it imports

        return health.members(self.settings, timeout)

    def rights(self, deadline: Deadline) -> Mapping[str, bool]:
        """See `ServiceStore.rights`."""
        from lockclient.etcd import health

        return health.rights(self._channels.call, self.settings.root, deadline)

    def endpoints(self) -> tuple[str, ...]:
        """See `ServiceStore.endpoints`."""
        return self.settings.endpoints

    def close(self) -> None:
        """See `ServiceStore.close`."""
        _beside(self._close, 1.0)

    def _close(self) -> None:
        self._closing = True
        self.background.close(CLOSING)
        limit = Deadline.after(CLOSING / 2)
        for lease in (self._tickets, *(each.tickets for each in self._loops.values())):
            with suppress(ClusterMutexError, FaultError):  # else they go by themselves
                lease.revoke(limit)
        self._end_streams()
        self._channels.close()
        self._loops.clear()

    def _end_streams(self) -> None:
        for each in self._streams:
            each.close()
        self._channels.close_streams()


def _beside(work: Callable[[], object], seconds: float) -> None:
    """Do it in another thread, and wait for it so long: an interrupt must not land in gRPC."""
    ended: SimpleQueue[None] = SimpleQueue()

    def do() -> None:
        work()
        ended.put(None)

    crew = Crew("closing", 1)
    crew.do(do)
    with suppress(Empty):
        ended.get(timeout=seconds)
    crew.close()


def _otherwise(
    error: FaultError, sending: Sending, lease: Lease | None, number: int
) -> tuple[Lease | None, int]:
    """Change the sending to what can be asked instead; return with which lease.

    Raises:
        StoreError: there is nothing else to ask.
    """
    request = sending.request
    if error.fault is Fault.NO_LEASE and lease is not None:
        lease.forget(number)
    elif error.fault is Fault.COMPACTED and isinstance(request, Look):
        sending.request = replace(request, predecessor=None, left_at=None)
    elif error.fault is Fault.NO_SPACE and isinstance(request, Remove) and lease:
        # Deletes still work. The record that can't be written goes into the log.
        log.warning("etcd is out of space for the record: %s", request.removal.value())
        return None, 0
    else:
        raise error.said from error.error
    return lease, number


_stores: WeakSet[EtcdStore] = WeakSet()
_inherited: list[Any] = []


def _start_afresh() -> None:
    """After fork: connect anew, in the child only.

    The parent's channels are neither used nor closed nor collected here: gRPC's threads did not
    come along, so that even destroying a channel can hang.
    """
    for store in list(_stores):
        _inherited.append((store._channels, store._streams, store.background, dict(store._loops)))
        store._connect()


def _at_exit() -> None:
    """Give what is to be cleaned up a moment, and end all streams while threads still run.

    Left to the interpreter's own end, what ends a stream can wait for ever for a lock that one of
    gRPC's threads held, or for one of those threads itself, when all daemon threads were stopped.
    """
    until = Deadline.after(AT_EXIT)
    for store in list(_stores):
        store.background.settle(until.remaining())
    for store in list(_stores):
        store._end_streams()  # here: from Python 3.12 on no thread can be started any more


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_at_exit)
