"""The store on etcd, as a mutex needs it: requests are transactions, watches share one stream."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores import requests
from lockclient.stores.common.background import Background
from lockclient.stores.common.lifecycle import CLEAN_UP_TIMEOUT_S
from lockclient.stores.diagnosis_protocol import Clock, Finding
from lockclient.stores.etcd.answers import outcome_of
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.requests import Transactions
from lockclient.stores.etcd.service_store import EtcdServiceStore
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.async_channels import AioChannels
from lockclient.stores.etcd.wire.etcd3_client import Borrowed, endpoint_of
from lockclient.stores.etcd.wire.failover import WireError, as_store_error
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.etcd.wire.watch_state import Missed, News, Started
from lockclient.stores.etcd.wire.watch_stream import Watch
from lockclient.stores.outcomes import Outcome, ReadResult
from lockclient.stores.protocol import TICKET_TTL_S, Capabilities, Guard, WatchEvent, WatchTarget
from lockclient.threads.pool import WorkerPool

log = logging.getLogger(__name__)

LEASE_REUSE_S = 3600
TOMBSTONE_TTL_S = 86400
"""Seconds for which an acquisition that was given up stays marked: a take of it that is still under
way somewhere does nothing when it arrives."""


class EtcdStore(EtcdServiceStore):
    """A `ServiceStore` on an etcd cluster. Nothing is sent before it is first asked.

    Args:
        location: where the cluster is.
        client: an `etcd3` client whose connection is used instead of one of our own.

    Raises:
        ClusterMutexError: the process's threads were replaced by green ones.
    """

    can = Capabilities("etcd")

    def __init__(self, location: EtcdLocation, client: Any = None) -> None:
        fork_safety.require_real_threads()
        self._borrowed = None if client is None else Borrowed(client)
        if client is not None:
            location = replace(location, endpoints=(endpoint_of(client),))
        self._keyspace = Keys(location.root)
        self._transactions = Transactions(self._keyspace)
        super().__init__(location)

    def _connect(self) -> None:
        super()._connect()
        self.background = Background(self)
        self._tickets = self._ticket_lease()
        # One lease for all removals of an hour, so that each costs one request and not two.
        self._records = Lease(
            self._channels, RECORD_RETENTION_S + LEASE_REUSE_S, RECORD_RETENTION_S
        )
        self._marks = Lease(self._channels, 2 * TOMBSTONE_TTL_S, TOMBSTONE_TTL_S)
        self._loops: dict[Hashable, AioChannels] = {}

    def _ticket_lease(self) -> Lease:
        return Lease(self._channels, TICKET_TTL_S, TICKET_TTL_S / 2, renewed=True)

    # ------------------------------------------------------------ MutexStore

    def send(self, sending: requests.RequestState, deadline: Deadline) -> Outcome:
        lease, number = self._lease_for(sending.request, self._tickets), 0
        while True:
            try:
                if lease is not None:
                    number = lease.get(deadline)
                txn = self._transactions.build(sending.request, number)
                answer = self._channels.call(TXN, txn, deadline, sending)
                outcome = outcome_of(sending.request, answer, resent=sending.ambiguous)
                if isinstance(outcome, ReadResult):
                    outcome = self._with_code(outcome, deadline)
                return outcome
            except WireError as error:
                lease, number = _otherwise(error, sending, lease, number)

    async def send_async(self, sending: requests.RequestState, deadline: Deadline) -> Outcome:
        channels = self._on_this_loop()
        lease, number = self._lease_for(sending.request, channels.tickets), 0
        while True:
            try:
                if lease is not None:
                    number = await channels.lease_id(lease, deadline)
                txn = self._transactions.build(sending.request, number)
                answer = await channels.call(TXN, txn, deadline, sending)
                return outcome_of(sending.request, answer, resent=sending.ambiguous)
            except WireError as error:
                lease, number = _otherwise(error, sending, lease, number)

    def _on_this_loop(self) -> AioChannels:
        """Return the channels of the running event loop: grpc.aio's belong to one."""
        loop = asyncio.get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            # Those of loops that are over go now. (They hold their loop: no weak reference helps.)
            for other, old in list(self._loops.items()):
                if old.loop.is_closed():
                    self._loops.pop(other, None)
            channels = AioChannels(self._channels, self.background, self._ticket_lease())
            self._loops[loop] = channels
        return channels

    def _lease_for(self, request: requests.Request, tickets: Lease) -> Lease | None:
        self._check_open(request)
        if isinstance(request, requests.TakeOrQueue):
            return tickets
        if isinstance(request, requests.Withdraw):
            return self._marks if request.tombstone else None
        recorded = isinstance(request, requests.Remove) and request.recorded
        return self._records if recorded else None

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
        with as_store_error():
            return lease is not None and lease.keep(deadline)

    def _lease_of(self, waiters: Hashable) -> Lease | None:
        if waiters is None:
            return self._tickets
        channels = self._loops.get(waiters)
        return None if channels is None else channels.tickets

    def examine(self) -> Iterator[Finding | Clock]:
        from lockclient.stores.etcd.diagnosis import examine  # for a doctor alone

        return examine(self, self.location.user)

    # ------------------------------------------------------------ its end

    def close(self) -> None:
        _beside(super().close, 1.0)

    def _disconnect(self) -> None:
        limit = Deadline.after(CLEAN_UP_TIMEOUT_S / 2)
        for lease in (self._tickets, *(channels.tickets for channels in self._loops.values())):
            with suppress(ClusterMutexError, WireError):  # else they go by themselves
                lease.revoke(limit)
        self._let_go()
        self._channels.close()
        self._loops.clear()

    def _let_go(self) -> None:
        # Left to the interpreter's own end, what ends a stream can wait for ever for a lock that
        # one of gRPC's threads held, or for one of those threads itself, when all daemon threads
        # were stopped.
        for stream in self._streams:
            stream.close()
        self._channels.close_streams()


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
    error: WireError, sending: requests.RequestState, lease: Lease | None, number: int
) -> tuple[Lease | None, int]:
    """Change the sending to what can be asked instead; return with which lease.

    Raises:
        StoreError: there is nothing else to ask.
    """
    request = sending.request
    if error.fault is ErrorKind.NO_LEASE and lease is not None:
        lease.forget(number)
    elif error.fault is ErrorKind.COMPACTED and isinstance(request, requests.GetPosition):
        sending.request = replace(request, predecessor=None, left_at=None)
    else:
        raise error.said from error.error
    return lease, number
