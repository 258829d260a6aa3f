"""The store on etcd: requests go through transactions over channels, watches share one stream."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import nsmallest
from itertools import chain
from typing import Any
from urllib.parse import unquote

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.model.ticket import Ticket
from lockclient.settings import Settings
from lockclient.stores.common.background import Background
from lockclient.stores.common.lifecycle import OpenedStore
from lockclient.stores.diagnosis_protocol import History, Member
from lockclient.stores.etcd.errors import ErrorKind, was_closed
from lockclient.stores.etcd.keys import Keys, segment_of
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.requests import Transactions
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.async_channels import AioChannels
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.etcd3_client import Borrowed, endpoint_of
from lockclient.stores.etcd.wire.failover import FIRST_TRY, WireError
from lockclient.stores.etcd.wire.paging import SURE, UNSEEN, Pages
from lockclient.stores.etcd.wire.rpc_methods import RANGE, TXN
from lockclient.stores.etcd.wire.watch_state import Missed, News, Started
from lockclient.stores.etcd.wire.watch_stream import Watch, WatchStream
from lockclient.stores.outcomes import Outcome, ReadResult
from lockclient.stores.protocol import TICKET_TTL_S, Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.stores.requests import (
    GetPosition,
    Remove,
    Request,
    RequestState,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from lockclient.stores.service_protocol import Batch, Change, Kind, WaitQueue
from lockclient.threads.pool import WorkerPool

log = logging.getLogger(__name__)

_RETENTION_REUSE_S = 3600
MARKED = 86400
"""Seconds for which an acquisition that was given up stays marked: a take of it that is still under
way somewhere does nothing when it arrives."""
CLOSING = 0.4
"""Seconds that closing waits for what is to be cleaned up; half of it for a lease."""
_LOOKED_AT = 5000
"""Tickets of one line among which the first ones are looked for: some twenty requests."""
_BRIEF = FIRST_TRY
"""Seconds for a page of more keys than are sure to fit: one try."""
_TICKETS = 4_000_000
"""Bytes of tickets that are read at a time: several times what ten thousand of ours would be, and
no more, whatever others have written into theirs."""
_PAGE_PATIENCE = 60.0
"""Seconds for a page: who reads very many is done when he is done, as long as it goes on."""


class EtcdStore(OpenedStore):
    """A `ServiceStore` on an etcd cluster. Nothing is sent before it is first asked.

    Args:
        settings: where the cluster is.
        client: an `etcd3` client whose connection is used instead of one of our own.

    Raises:
        ClusterMutexError: the process's threads were replaced by green ones.
    """

    can = Capabilities("etcd")
    poll = 0.0

    def __init__(self, settings: Settings, client: Any = None) -> None:
        fork_safety.require_real_threads()
        self._borrowed = None if client is None else Borrowed(client)
        if client is not None:
            settings = replace(settings, endpoints=(endpoint_of(client),))
        self.settings = settings
        self._keyspace = Keys(settings.root)
        self._transactions = Transactions(self._keyspace)
        super().__init__()

    def _connect(self) -> None:
        self._closing = False
        self._channels = Channels(self.settings, self._borrowed)
        self.background = Background(self)
        self._streams = [WatchStream(self._channels)]
        if len(self.settings.endpoints) > 1:
            self._streams.append(WatchStream(self._channels, self._streams[0]))
        self._tickets = self._ticket_lease()
        # One lease for all removals of an hour, so that each costs one request and not two.
        self._retention = Lease(
            self._channels, RECORD_RETENTION_S + _RETENTION_REUSE_S, RECORD_RETENTION_S
        )
        self._marks = Lease(self._channels, 2 * MARKED, MARKED)
        self._announced: dict[str, Lease] = {}
        self._loops: dict[Hashable, AioChannels] = {}

    def _ticket_lease(self) -> Lease:
        return Lease(self._channels, TICKET_TTL_S, TICKET_TTL_S / 2, renewed=True)

    # ------------------------------------------------------------ MutexStore

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        lease, number = None, 0
        if self._closing or type(sending.request) in _LEASED:
            lease = self._lease_for(sending.request, self._tickets)
        while True:
            try:
                if lease is not None:
                    number = lease.get(deadline)
                txn = self._transactions.build(sending.request, number)
                answer = self._channels.call(TXN, txn, deadline, sending)
                outcome = self._transactions.read(sending.request, answer, resent=sending.ambiguous)
                return (
                    self._with_code(outcome, deadline) if type(outcome) is ReadResult else outcome
                )
            except WireError as error:
                lease, number = _otherwise(error, sending, lease, number)

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        channels = self._on_this_loop()
        lease, number = self._lease_for(sending.request, channels.tickets), 0
        while True:
            try:
                if lease is not None:
                    number = await channels.lease_id(lease, deadline)
                txn = self._transactions.build(sending.request, number)
                answer = await channels.call(TXN, txn, deadline, sending)
                return self._transactions.read(sending.request, answer, resent=sending.ambiguous)
            except WireError as error:
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
            return self._marks if request.tombstone else None
        recorded = isinstance(request, Remove) and request.recorded
        return self._retention if recorded else None

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Watch:
        keys = self._keyspace.keys_of(target.name)
        key = keys.uuid if target.ticket is None else keys.ticket_as_read(target.ticket)

        def translate(events: News) -> None:
            if isinstance(events, Missed):
                notify(WatchEvent(0, gap=True))
                return
            if isinstance(events, Started):
                notify(WatchEvent(events.revision, started=True))
                return
            for event in events:
                gone = event.kind == wire.WatchEvent.DELETE
                uuid = None if gone else event.kv.value.decode(errors="replace")
                notify(WatchEvent(event.kv.mod_revision, uuid))

        # A ticket that is written again by a second sending is no news to who waits behind it.
        return Watch(
            self._streams, (key, b""), revision, translate, deletes_only=target.ticket is not None
        )

    def guard(self, name: str, uuid: str) -> Guard:
        return Guard(self._keyspace.keys_of(name).uuid, uuid.encode())

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        lease = self._tickets if waiters is None else self._lease_of(waiters)
        return lease is not None and lease.usable()

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        lease = self._lease_of(waiters)
        try:
            return lease is not None and lease.keep(deadline)
        except WireError as error:
            raise error.said from error.error

    def _lease_of(self, waiters: Hashable) -> Lease | None:
        if waiters is None:
            return self._tickets
        channels = self._loops.get(waiters)
        return None if channels is None else channels.tickets

    # ------------------------------------------------------------ ServiceStore

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        revision = 0
        for kind in kinds:
            how = {"keys_only": True} if kind in _BY_KEY else {}
            for answer in self._pages(self._keyspace.kind(kind), deadline, revision, **how):
                revision = revision or answer.header.revision
                changes = self._changes((kv, wire.WatchEvent.PUT) for kv in answer.kvs)
                yield Batch(changes, revision, term=answer.header.raft_term)

    def _pages(
        self, span: tuple[bytes, bytes], deadline: Deadline, revision: int = 0, **how: Any
    ) -> Iterator[wire.RangeAnswer]:
        """Read a range in pages, at a revision, or all at that of the first page."""
        pages, going_on = Pages(span, UNSEEN if how.get("keys_only") else None), True
        while going_on:
            page = wire.Range(
                key=pages.key,
                range_end=pages.range_end,
                limit=pages.limit,
                revision=revision,
                **how,
            )
            many = pages.limit > SURE
            patience = Deadline(min(deadline, Deadline.after(_BRIEF if many else _PAGE_PATIENCE)))
            try:
                answer = self._away(RANGE, page, patience)
            except StoreUnavailable:
                # It may be so large that etcd takes long to make it: each further try of it would
                # have etcd make it once more. Where etcd is away few are as good as many.
                if many and not deadline.expired() and pages.ask_for_fewer():
                    continue
                raise
            except WireError as error:
                if error.fault is ErrorKind.TOO_LARGE and pages.ask_for_fewer():
                    continue
                raise error.said from error.error
            revision = revision or answer.header.revision
            yield answer
            kvs = answer.kvs
            following = self._keyspace.following(kvs[-1].key) if answer.more else b""
            size = answer.ByteSize()
            going_on = pages.read(following, more=answer.more, keys=len(kvs), size=size)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Watch:

        def translate(events: News) -> None:
            if isinstance(events, Missed):
                notify(Batch((), 0, gap=True, refused=events.refused))
                return
            if isinstance(events, Started):
                notify(Batch((), events.revision, started=True))
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
        return self._streams[0].connected()

    def watch_restarts(self) -> int:
        return self._streams[0].restarts

    def clock_offsets(self, timeout: float) -> list[float]:
        from lockclient.stores.etcd.wire import (
            clocks,  # only unlockers need it, and all that it imports
        )

        return clocks.offsets(self.settings, timeout)

    def renew_watch(self) -> None:
        self._streams[0].renew()

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        lease = self._announced.setdefault(unlocker, Lease(self._channels, ttl, 0))
        try:
            # By its lease first: that goes on in an etcd that is out of space for the value.
            lease.keep(deadline)
            key = self._keyspace.unlocker(unlocker)
            put = wire.Put(key=key, value=value.encode(), lease=lease.get(deadline))
            txn = wire.Txn(success=[wire.Operation(put=put)])
            return int(self._channels.call(TXN, txn, deadline).header.revision)
        except WireError as error:
            raise error.said from error.error

    def announce_restored(self, value: str, deadline: Deadline) -> None:
        put = wire.Put(key=self._keyspace.restored, value=value.encode())
        self._call(TXN, wire.Txn(success=[wire.Operation(put=put)]), deadline)

    def newest_announcement(self, deadline: Deadline) -> int:
        # One key, and no value: there may be any number, written by anybody.
        key, range_end = self._keyspace.kind("unlockers")
        newest = wire.Range(key=key, range_end=range_end, limit=1, keys_only=True)
        newest.sort_order, newest.sort_target = wire.Range.DESCEND, wire.Range.MOD
        found = self._call(RANGE, newest, deadline).kvs
        return int(found[0].mod_revision) if found else 0

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        if lease := self._announced.pop(unlocker, None):
            try:
                lease.revoke(deadline)
            except WireError as error:
                raise error.said from error.error

    def forget(self, change: Change, deadline: Deadline) -> bool:
        return bool(self._call(TXN, self._transactions.forget(change), deadline).succeeded)

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        try:
            return self.background.run_shielded(lambda: self._code(code, deadline))
        except WireError as error:
            raise error.said from error.error

    def _code(self, code: str, deadline: Deadline) -> bytes | None:
        page = wire.Range(key=self._keyspace.code(code))
        kvs = self._channels.call(RANGE, page, deadline).kvs
        return kvs[0].value if kvs and len(kvs[0].value) <= MAX_VALUE else None

    def _with_code(self, seen: ReadResult, deadline: Deadline) -> ReadResult:
        """Return what was read with the backtrace of its removal, if that stands apart."""
        if seen.removal is None or not seen.removal.code:
            return seen
        backtrace = self._code(seen.removal.code, deadline)
        return replace(seen, removal=seen.removal.with_backtrace(backtrace))

    def _call(self, method: Any, request: Any, deadline: Deadline) -> Any:
        try:
            return self._away(method, request, deadline)
        except WireError as error:
            raise error.said from error.error

    def _away(self, method: Any, request: Any, deadline: Deadline) -> Any:
        return self.background.run_shielded(lambda: self._channels.call(method, request, deadline))

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        span = self._keyspace.keys_of(name).line
        counting = wire.Range(key=span[0], range_end=span[1], count_only=True)
        waiting = int(self._call(RANGE, counting, deadline).count)
        # By the keys alone, page by page: to have etcd put them in order would mean that it reads
        # them all, whatever stands in them, each time that somebody looks.
        found: list[tuple[int, bytes]] = []
        looked = 0
        for answer in self._pages(span, deadline, keys_only=True) if waiting else ():
            keys = ((kv.create_revision, kv.key) for kv in answer.kvs)
            found, looked = nsmallest(limit, chain(found, keys)), looked + len(answer.kvs)
            if looked >= _LOOKED_AT:
                break
        tickets = tuple(self._tickets_at(name, found, deadline))
        return WaitQueue(max(waiting, looked), tickets, ordered=looked < _LOOKED_AT)

    def tickets(self, limit: int, deadline: Deadline) -> Sequence[Ticket]:
        found: list[Ticket] = []
        read = 0
        for answer in self._pages(self._keyspace.kind("queue"), deadline):
            read += answer.ByteSize()
            for kv in answer.kvs[: limit - len(found)]:
                if (parsed := self._keyspace.parse(kv.key)) is None:
                    continue
                value = kv.value if len(kv.value) <= MAX_VALUE else b""
                ticket = Ticket.read(parsed[1], parsed[2], value, kv.create_revision)
                found.append(ticket.listed())
            if len(found) >= limit or read > _TICKETS:
                break
        return found

    def _tickets_at(
        self, name: str, places: Sequence[tuple[int, bytes]], deadline: Deadline
    ) -> Iterator[Ticket]:
        """Read these tickets, as far as they are there still; a few at a time, as pages are."""
        for start in range(0, len(places), SURE):
            txn = self._transactions.get(key for _, key in places[start : start + SURE])
            for answer in self._call(TXN, txn, deadline).responses:
                for kv in answer.range.kvs:
                    value = kv.value if len(kv.value) <= MAX_VALUE else b""
                    uuid = unquote(segment_of(kv.key))
                    yield Ticket.read(name, uuid, value, kv.create_revision)

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        found: list[str] = []
        for answer in self._pages(self._keyspace.locks_from(prefix), deadline, keys_only=True):
            parsed = (self._keyspace.parse(kv.key) for kv in answer.kvs)
            found += [each[1] for each in parsed if each is not None and each[2] == "uuid"]
            if len(found) >= limit:
                break
        return sorted(found[:limit])

    def votes(self) -> Mapping[str, str]:
        """See `ServiceStore.votes`: the cluster votes among itself."""
        return {}

    def warnings_for_display(self) -> Sequence[str]:
        """See `ServiceStore.warnings_for_display`: the cluster speaks with one voice."""
        return ()

    def members(self, timeout: float) -> list[Member]:
        from lockclient.stores.etcd import (
            diagnosis,  # only a doctor needs it, and all that it imports
        )

        return diagnosis.members(self.settings, timeout)

    def history(self, deadline: Deadline) -> History:
        from lockclient.stores.etcd import diagnosis

        return diagnosis.history(self._channels.call, self._keyspace.kind("unlockers"), deadline)

    def probe_permissions(self, deadline: Deadline) -> Mapping[str, bool]:
        from lockclient.stores.etcd import diagnosis

        return diagnosis.probe_permissions(self._channels.call, self.settings.root, deadline)

    def endpoints(self) -> tuple[str, ...]:
        return self.settings.endpoints

    def close(self) -> None:
        _beside(self._close, 1.0)

    def _close(self) -> None:
        self._closing = True
        self.background.close(CLOSING)
        limit = Deadline.after(CLOSING / 2)
        for lease in (self._tickets, *(each.tickets for each in self._loops.values())):
            with suppress(ClusterMutexError, WireError):  # else they go by themselves
                lease.revoke(limit)
        self._end_streams()
        self._channels.close()
        self._loops.clear()

    def _let_go(self) -> None:
        # Left to the interpreter's own end, what ends a stream can wait for ever for a lock that
        # one of gRPC's threads held, or for one of those threads itself, when all daemon threads
        # were stopped.
        self._end_streams()

    def _end_streams(self) -> None:
        for each in self._streams:
            each.close()
        self._channels.close_streams()


_BY_KEY: tuple[Kind, ...] = ("queue", "withdrawn", "code")
"""Of which the keys and revisions say all that a service wants of so many."""
_LEASED = (TakeOrQueue, Withdraw, Remove)
"""What may write something that is bound to a lease."""


def _beside(work: Callable[[], object], seconds: float) -> None:
    """Do it in another thread, and wait for it so long: an interrupt must not land in gRPC."""
    ended = threading.Event()

    def do() -> None:
        work()
        ended.set()

    crew = WorkerPool("closing", 1)
    crew.submit(do)
    ended.wait(seconds)
    crew.close()


def _otherwise(
    error: WireError, sending: RequestState, lease: Lease | None, number: int
) -> tuple[Lease | None, int]:
    """Change the sending to what can be asked instead; return with which lease.

    Raises:
        StoreError: there is nothing else to ask.
    """
    request = sending.request
    if error.fault is ErrorKind.NO_LEASE and lease is not None:
        lease.forget(number)
    elif error.fault is ErrorKind.COMPACTED and isinstance(request, GetPosition):
        sending.request = replace(request, predecessor=None, left_at=None)
    else:
        raise error.said from error.error
    return lease, number
