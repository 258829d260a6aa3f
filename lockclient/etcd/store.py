"""The store on etcd: requests go through transactions over channels, watches share one stream."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.aio import AioChannels
from lockclient.etcd.borrowed import Borrowed, endpoint_of
from lockclient.etcd.channels import Channels
from lockclient.etcd.failover import Refusal
from lockclient.etcd.faults import Fault
from lockclient.etcd.keyspace import Keyspace
from lockclient.etcd.lease import Lease
from lockclient.etcd.methods import RANGE, TXN
from lockclient.etcd.paging import Pages
from lockclient.etcd.transactions import Transactions
from lockclient.etcd.watch import Missed, News, Started, Watch, Watcher
from lockclient.settings import Settings
from lockclient.store import (
    LINE_TTL,
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
    TakeOrQueue,
    Target,
    Withdraw,
)
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

RETENTION = 7 * 86400
"""Seconds for which the record of a removal is kept."""
_RETENTION_REUSE = 3600
MARKED = 86400
"""Seconds for which an acquisition that was given up stays marked: a take of it that is still under
way somewhere does nothing when it arrives."""
_PAGE = 10_000
"""Keys of a page: of a thousand locks or less, some 2 MB."""
_NAMES_PAGE = 1000
"""Keys of a page without values: of some eighty locks."""


class EtcdStore:
    """A `ServiceStore` on an etcd cluster. Nothing is sent before it is first asked.

    Args:
        settings: where the cluster is.
        client: an `etcd3` client whose connection is used instead of one of our own.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        self._borrowed = None if client is None else Borrowed(client)
        if client is not None:
            settings = replace(settings, endpoints=(endpoint_of(client),))
        self.settings = settings
        self._keyspace = Keyspace(settings.root)
        self._transactions = Transactions(self._keyspace)
        self._connect()
        _stores.add(self)

    def _connect(self) -> None:
        self._channels = Channels(self.settings, self._borrowed)
        self._watcher = Watcher(self._channels)
        self._line = Lease(self._channels, LINE_TTL, LINE_TTL / 2)
        # One lease for all removals of an hour, so that each costs one request and not two.
        self._retention = Lease(self._channels, RETENTION + _RETENTION_REUSE, RETENTION)
        self._marks = Lease(self._channels, 2 * MARKED, MARKED)
        self._announced: dict[str, Lease] = {}
        self._loops: dict[asyncio.AbstractEventLoop, AioChannels] = {}

    # ------------------------------------------------------------ MutexStore

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """See `MutexStore.ask`."""
        lease = self._lease_for(request)
        number = 0
        while True:
            try:
                if lease is not None:
                    number = lease.get(deadline)
                return self._ask(request, number, deadline)
            except Refusal as refusal:
                request, lease, number = _otherwise(refusal, request, lease, number)

    async def ask_async(self, request: Request, deadline: Deadline) -> Outcome:
        """See `AsyncMutexStore.ask_async`."""
        channels = self._on_this_loop()
        lease = self._lease_for(request)
        number = 0
        while True:
            try:
                if lease is not None:
                    number = await channels.lease_id(lease, deadline)
                txn = self._transactions.build(request, number)
                answer, resent = await channels.call(TXN, txn, deadline)
                return self._transactions.read(request, answer, resent=resent)
            except Refusal as refusal:
                request, lease, number = _otherwise(refusal, request, lease, number)

    def _on_this_loop(self) -> AioChannels:
        """Return the channels of the running event loop: grpc.aio's belong to one."""
        loop = asyncio.get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            # Those of loops that are over go now. (They hold their loop: no weak reference helps.)
            for each in [each for each in list(self._loops) if each.is_closed()]:
                self._loops.pop(each, None)
            channels = self._loops[loop] = AioChannels(self._channels)
        return channels

    def _lease_for(self, request: Request) -> Lease | None:
        if isinstance(request, TakeOrQueue):
            return self._line
        if isinstance(request, Withdraw):
            return self._marks if request.unsure else None
        return self._retention if isinstance(request, Remove) else None

    def _ask(self, request: Request, lease: int, deadline: Deadline) -> Outcome:
        txn = self._transactions.build(request, lease)
        answer, resent = self._channels.call(TXN, txn, deadline)
        return self._transactions.read(request, answer, resent=resent)

    def watch(self, target: Target, revision: int, notify: Callable[[Event], None]) -> Watch:
        """See `MutexStore.watch`."""
        keys = self._keyspace.keys_of(target.name)
        key = keys.uuid if target.ticket is None else keys.ticket(target.ticket)

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
        deletes_only = target.ticket is not None
        return self._watcher.add((key, b""), revision, translate, deletes_only=deletes_only)

    def guard(self, name: str, uuid: str) -> Guard:
        """See `MutexStore.guard`."""
        return Guard(self._keyspace.keys_of(name).uuid, uuid.encode())

    def has_line(self) -> bool:
        """See `MutexStore.has_line`."""
        return self._line.usable()

    def keep_line(self, deadline: Deadline) -> bool:
        """See `MutexStore.keep_line`."""
        try:
            return self._line.keep(deadline)
        except Refusal as refusal:
            raise refusal.said from refusal.error

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

        return self._watcher.add(self._keyspace.everything, revision, translate, tell_start=True)

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
        return self._watcher.connected()

    def watch_restarts(self) -> int:
        """See `ServiceStore.watch_restarts`."""
        return self._watcher.restarts

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
        except Refusal as refusal:
            if not (kept and refusal.fault is Fault.NO_SPACE):
                raise refusal.said from refusal.error

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """See `ServiceStore.withdraw_announcement`."""
        if lease := self._announced.pop(unlocker, None):
            try:
                lease.revoke(deadline)
            except Refusal as refusal:
                raise refusal.said from refusal.error

    def _call(self, method: Any, request: Any, deadline: Deadline) -> Any:
        try:
            return self._channels.call(method, request, deadline)[0]
        except Refusal as refusal:
            raise refusal.said from refusal.error

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
        self._watcher.close()
        self._channels.close()


def _otherwise(
    refusal: Refusal, request: Request, lease: Lease | None, number: int
) -> tuple[Request, Lease | None, int]:
    """Return what to ask instead, with which lease, and the number of that if it is known.

    Raises:
        StoreError: there is nothing else to ask.
    """
    if refusal.fault is Fault.NO_LEASE and lease is not None:
        lease.forget(number)
    elif refusal.fault is Fault.COMPACTED and isinstance(request, Look):
        request = replace(request, left_at=None)
    elif refusal.fault is Fault.NO_SPACE and isinstance(request, Remove) and lease:
        # Deletes still work. The record that can't be written goes into the log.
        log.warning("etcd is out of space for the record: %s", request.removal.value())
        return request, None, 0
    elif refusal.fault is Fault.NO_SPACE and isinstance(request, Withdraw) and request.unsure:
        return replace(request, unsure=False), None, 0  # what is full takes no locks either
    else:
        raise refusal.said from refusal.error
    return request, lease, number


_stores: WeakSet[EtcdStore] = WeakSet()
_inherited: list[Any] = []


def _start_afresh() -> None:
    """After fork: connect anew, in the child only.

    The parent's channels are neither used nor closed nor collected here: gRPC's threads did not
    come along, so that even destroying a channel can hang.
    """
    for store in list(_stores):
        _inherited.append((store._channels, store._watcher, store._line, dict(store._loops)))
        store._connect()


def _at_exit() -> None:
    """End the watch streams while threads still run.

    Left to the interpreter's own end, the `__del__` of a stream can wait for ever for a lock that
    one of gRPC's threads held when all daemon threads were stopped.
    """
    for store in list(_stores):
        store._watcher.close()


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(_at_exit)
