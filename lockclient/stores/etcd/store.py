"""The store on etcd: requests are transactions, watches share one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores import request_types
from lockclient.stores.common.async_bridge import by_thread
from lockclient.stores.common.background import Background
from lockclient.stores.common.ticket_leases import TICKET_TTL_S
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.listing import EtcdListing
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.requests import PLANS, Plan
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.async_channels import AioChannels
from lockclient.stores.etcd.wire.channels import Borrowed, Channels, endpoint_of
from lockclient.stores.etcd.wire.failover import WireError, as_store_error
from lockclient.stores.etcd.wire.rpc_methods import RANGE, TXN
from lockclient.stores.etcd.wire.watch_state import News, Started, Watch, WatchEnded
from lockclient.stores.etcd.wire.watch_stream import WatchStream
from lockclient.stores.mutex_store import Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.stores.outcomes import Outcome, ReadResult
from lockclient.stores.service_store import (
    MAX_DOCUMENT_BYTES,
    MAX_DOCUMENTS,
    Batch,
    Change,
    Document,
)
from lockclient.threads import ending

if TYPE_CHECKING:
    from lockclient.stores.findings import Clock, Finding

LEASE_REUSE_S = 3600
REVOKE_TIMEOUT_S = 2.0
"""Seconds for the answer to the end of a lease."""
TOMBSTONE_TTL_S = 86400
"""Lifetime of a tombstone: while it exists, a late take of the withdrawn acquisition fails."""


class EtcdStore(EtcdListing):
    """A `ServiceStore` on an etcd cluster. Nothing is sent before it is first asked.

    Args:
        location: the cluster's endpoints, root and credentials.
        client: an `etcd3` client whose connection is used.

    Raises:
        ClusterMutexError: gevent or eventlet has patched `threading`.
    """

    can = Capabilities("etcd")
    location: EtcdLocation
    poll = 0.0

    def __init__(self, location: EtcdLocation, client: Any = None) -> None:
        fork_safety.require_real_threads()
        self._borrowed = None if client is None else Borrowed(client)
        if client is not None:
            location = replace(location, endpoints=(endpoint_of(client),))
        self._keyspace = Keys(location.root)
        super().__init__(location)

    def _connect(self) -> None:
        super()._connect()
        self.background = Background(self)
        self._channels = Channels(self.location, self._borrowed)
        self._stream = WatchStream(self._channels, self._keyspace.everything[0])
        self._announced: dict[str, Lease] = {}
        self._tickets = self._ticket_lease()
        # Leases of the process by `Plan.lease`; tickets have one for threads and one for each loop.
        self._shared_leases = {
            # All removals of an hour share a lease, so each is one request and not two.
            "records": Lease(
                self._channels, ttl=RECORD_RETENTION_S + LEASE_REUSE_S, min_left=RECORD_RETENTION_S
            ),
            "tombstones": Lease(self._channels, ttl=2 * TOMBSTONE_TTL_S, min_left=TOMBSTONE_TTL_S),
        }
        self._loops: dict[Hashable, AioChannels] = {}

    def _ticket_lease(self) -> Lease:
        return Lease(self._channels, ttl=TICKET_TTL_S, min_left=TICKET_TTL_S / 2, renewed=True)

    # ------------------------------------------------------------ MutexStore

    def send(self, request: request_types.Request, deadline: Deadline) -> Outcome:
        delivery = request_types.delivery_of(request)
        if self._closing:
            self._check_open(request)
        while True:
            plan = PLANS[type(request)](self._keyspace, request)
            lease = self._lease_for(plan.lease, self._tickets) if plan.lease else None
            try:
                if lease is not None:
                    plan.bind(lease.get(deadline))
                answer = self._channels.call(TXN, plan.txn, deadline, delivery)
                outcome = plan.read(answer, delivery.is_unknown)
                if isinstance(outcome, ReadResult):
                    outcome = self._with_backtrace(outcome, deadline)
                return outcome
            except WireError as error:
                request = _for_retry(error, request, plan, lease)

    async def send_async(self, request: request_types.Request, deadline: Deadline) -> Outcome:
        if not ending.state.can_start_threads():  # grpc.aio needs one
            return await by_thread(
                self.background.urgent.submit, partial(self.send, request, deadline)
            )
        channels, delivery = self._on_this_loop(), request_types.delivery_of(request)
        is_priority = isinstance(request, request_types.PRIORITY)
        if self._closing:
            self._check_open(request)
        while True:
            plan = PLANS[type(request)](self._keyspace, request)
            lease = self._lease_for(plan.lease, channels.tickets) if plan.lease else None
            try:
                if lease is not None:
                    plan.bind(await channels.lease_id(lease, deadline))
                answer = await channels.call(
                    TXN, plan.txn, deadline, delivery, is_priority=is_priority
                )
                return plan.read(answer, delivery.is_unknown)
            except WireError as error:
                request = _for_retry(error, request, plan, lease)

    def _lease_for(self, kind: str, tickets: Lease) -> Lease:
        """Return the lease for `Plan.lease`: a shared one, or the caller's own for its tickets."""
        return tickets if kind == "tickets" else self._shared_leases[kind]

    def _on_this_loop(self) -> AioChannels:
        """Return the channels of the running event loop: a channel of grpc.aio belongs to one."""
        loop = asyncio.get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            # Forget those of closed loops. (They refer to their loop, so no weak reference helps.)
            for other, old in list(self._loops.items()):
                if old.loop.is_closed():
                    self._loops.pop(other, None)
            channels = AioChannels(self._channels, self.background, self._ticket_lease())
            self._loops[loop] = channels
        return channels

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Watch:
        keys = self._keyspace.keys_of(target.name)
        key = keys.uuid if target.ticket is None else keys.ticket_as_read(target.ticket)

        def translate(events: News) -> None:
            if isinstance(events, WatchEnded):
                notify(WatchEvent(0, gap=True))
                return
            if isinstance(events, Started):
                notify(WatchEvent(events.revision, started=True))
                return
            for event in events:
                is_deletion = event.kind == wire.WatchEvent.DELETE
                uuid = None if is_deletion else event.kv.value.decode(errors="replace")
                notify(WatchEvent(event.kv.mod_revision, uuid))

        # If a ticket is written twice, the waiter behind it must not wake up.
        has_deletes_only = target.ticket is not None
        return self._stream.watch((key, b""), revision, translate, deletes_only=has_deletes_only)

    def guard(self, name: str, uuid: str) -> Guard:
        return Guard(self._keyspace.keys_of(name).uuid, uuid.encode())

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        lease = self._tickets if waiters is None else self._lease_of(waiters)
        return lease is not None and monotonic() <= lease.granted[1]

    def extend_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        lease = self._lease_of(waiters)
        with as_store_error():
            return lease is not None and lease.extend(deadline)

    def _lease_of(self, waiters: Hashable) -> Lease | None:
        if waiters is None:
            return self._tickets
        channels = self._loops.get(waiters)
        return None if channels is None else channels.tickets

    # ------------------------------------------------------------ ServiceStore

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Watch:

        def translate(events: News) -> None:
            if isinstance(events, WatchEnded):
                notify(Batch((), 0, gap=True, missed=not events.refused, refused=events.refused))
                return
            if isinstance(events, Started):
                notify(Batch((), events.revision, started=True))
                return
            changes = self._changes((event.kv, event.kind) for event in events)
            notify(Batch(changes, events[-1].kv.mod_revision))

        return self._stream.watch(self._keyspace.everything, revision, translate, tell_start=True)

    def connected(self) -> bool:
        return self._stream.connected

    def watch_restarts(self) -> int:
        return self._stream.restarts

    def clock_offsets(self, timeout: float) -> list[float]:
        from lockclient.stores.etcd.members import clock_offsets  # only unlockers need it

        return clock_offsets(self.location, timeout)

    def reopen_watch(self) -> None:
        self._stream.reopen()

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        lease = self._announced.setdefault(unlocker, Lease(self._channels, ttl=ttl, min_left=0))
        with as_store_error():
            # The lease first: an etcd that is out of space extends it, and refuses the value.
            lease.extend(deadline)
            key = self._keyspace.unlocker(unlocker)
            put = wire.Put(key=key, value=value.encode(), lease=lease.get(deadline))
            txn = wire.Txn(success=[wire.Operation(put=put)])
            return int(self._channels.call(TXN, txn, deadline).header.revision)

    def newest_announcement(self, deadline: Deadline) -> int:
        # One key without its value: other clients may have written any number of them.
        key, range_end = self._keyspace.kind("unlockers")
        newest = wire.Range(key=key, range_end=range_end, limit=1, keys_only=True)
        newest.sort_order, newest.sort_target = wire.Range.DESCEND, wire.Range.MOD
        found = self._call(RANGE, newest, deadline).kvs
        return int(found[0].mod_revision) if found else 0

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        if lease := self._announced.pop(unlocker, None):
            with as_store_error():
                lease.revoke(deadline)

    def read_document(self, name: str, deadline: Deadline) -> Document:
        key = self._keyspace.documents[0] + name.encode()
        kvs = self._call(RANGE, wire.Range(key=key), deadline).kvs
        if not kvs:
            return Document(b"", 0)
        value = kvs[0].value if len(kvs[0].value) <= MAX_DOCUMENT_BYTES else None
        return Document(value, kvs[0].mod_revision)

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        key = self._keyspace.documents[0] + name.encode()
        put, delete = wire.Put(key=key, value=value), wire.Delete(key=key)
        change = wire.Operation(put=put) if value else wire.Operation(delete=delete)
        answer = self._call(TXN, _if_at(key, seen.version, change), deadline)
        version = answer.header.revision if value else 0
        return Document(value, version) if answer.succeeded else None

    def document_names(self, deadline: Deadline) -> list[str]:
        prefix, end = self._keyspace.documents
        page = wire.Range(key=prefix, range_end=end, limit=MAX_DOCUMENTS, keys_only=True)
        kvs = self._call(RANGE, page, deadline).kvs
        return [kv.key[len(prefix) :].decode(errors="replace") for kv in kvs]

    def forget(self, change: Change, deadline: Deadline) -> bool:
        if change.kind == "code":
            key = self._keyspace.code(change.name)
        else:
            keys = self._keyspace.keys_of(change.name)
            key = {"removed": keys.removal, "withdrawn": keys.tombstone}[change.kind](change.part)
        txn = _if_at(key, change.revision, wire.Operation(delete=wire.Delete(key=key)))
        return bool(self._call(TXN, txn, deadline).succeeded)

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        with as_store_error():
            return self.background.run_shielded(lambda: self._backtrace(code, deadline))

    def _backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        page = wire.Range(key=self._keyspace.code(code))
        kvs = self._channels.call(RANGE, page, deadline).kvs
        return kvs[0].value if kvs and len(kvs[0].value) <= MAX_VALUE_BYTES else None

    def _with_backtrace(self, seen: ReadResult, deadline: Deadline) -> ReadResult:
        """Return the result with the backtrace of its removal, which may have a key of its own."""
        if seen.removal is None or not seen.removal.code:
            return seen
        backtrace = self._backtrace(seen.removal.code, deadline)
        return replace(seen, removal=seen.removal.with_backtrace(backtrace))

    def endpoints(self) -> tuple[str, ...]:
        return self.location.endpoints

    def examine(self) -> Iterator[Finding | Clock]:
        from lockclient.stores.etcd.diagnosis import examine  # only `doctor` needs it

        return examine(self, self.location, self._channels.call)

    # ------------------------------------------------------------ the end

    def revoke_tickets(self) -> None:
        leases: dict[Hashable, Lease] = {None: self._tickets}
        self._tickets = self._ticket_lease()
        for loop, channels in list(self._loops.items()):
            leases[loop], channels.tickets = channels.tickets, self._ticket_lease()
        groups = self.background.tickets.groups()
        for waiters, lease in leases.items():
            lease.end()  # also one that is being granted
            if waiters in groups or self._closing:  # a closed store's waiters have left by now
                self.background.run(partial(self._revoke, lease))

    def _revoke(self, lease: Lease) -> None:
        with suppress(ClusterMutexError, WireError):  # then it expires
            lease.revoke(ending.state.within(REVOKE_TIMEOUT_S))

    def _disconnect(self) -> None:
        self.close_streams()
        self._channels.close()
        self._loops.clear()

    def close_streams(self) -> None:
        # Called while daemon threads run. After the interpreter has stopped them, closing a stream
        # could wait for ever for one of gRPC's threads, or for a lock that such a thread held.
        self._stream.close()
        self._channels.close_streams()


def _if_at(key: bytes, revision: int, operation: wire.Operation) -> wire.Txn:
    """Return a transaction: `operation`, if the key's revision is this one (0: no such key)."""
    compare = wire.Compare(target=wire.Compare.MOD, key=key, mod_revision=revision)
    return wire.Txn(compare=[compare], success=[operation])


def _for_retry(
    error: WireError, request: request_types.Request, plan: Plan, lease: Lease | None
) -> request_types.Request:
    """Return the request to send now, after forgetting a lease that is gone.

    Raises:
        StoreError: a retry would get the same answer.
    """
    if error.fault is ErrorKind.NO_LEASE and lease is not None:
        lease.forget(plan.bound[0].lease)
        return request
    if error.fault is ErrorKind.COMPACTED and isinstance(request, request_types.GetPosition):
        return replace(request, predecessor=None, predecessor_deleted_at=None)
    raise error.store_error from error.error
