"""Listing: all keys of a kind, names, tickets and queues, read in pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain
from typing import Any
from urllib.parse import unquote

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import MAX_VALUE_BYTES
from lockclient.model.ticket import Ticket
from lockclient.stores.common.store_lifecycle import OpenedStore
from lockclient.stores.etcd.errors import ErrorKind
from lockclient.stores.etcd.keys import Keys, segment_of
from lockclient.stores.etcd.requests import reading
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import FIRST_TRY_S, WireError, as_store_error
from lockclient.stores.etcd.wire.paging import MAX_KEYS_UNSEEN, SAFE_KEYS, Pages
from lockclient.stores.etcd.wire.rpc_methods import RANGE, TXN, Method
from lockclient.stores.service_store import (
    NAMES_TO_SORT,
    Batch,
    Change,
    Kind,
    Tickets,
    WaitQueue,
)

MAX_QUEUE_KEYS = 5000
"""Tickets of one queue that are read to find the first ones, in some twenty requests."""
FULL_PAGE_TIMEOUT_S = FIRST_TRY_S
"""Seconds for a page of more than `SAFE_KEYS` keys: one try."""
MAX_TICKET_BYTES = 4_000_000
"""Bytes of tickets that are read at a time, more than ten thousand of our own have."""
PAGE_TIMEOUT_S = 60.0
"""Seconds for any other page, so that a long listing may take as long as it makes progress."""
KEYS_ONLY: tuple[Kind, ...] = ("queue", "withdrawn", "code")
"""Kinds whose keys and revisions are enough for services."""


class EtcdListing(OpenedStore):
    """The part of `EtcdStore` that reads many locks at once."""

    _channels: Channels
    _keyspace: Keys

    def _call(self, method: Method, request: Any, deadline: Deadline) -> Any:
        with as_store_error():
            return self._shielded(method, request, deadline)

    def _shielded(self, method: Method, request: Any, deadline: Deadline) -> Any:
        return self.background.run_shielded(self._channels.call, method, request, deadline)

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        revision = 0
        for kind in kinds:
            how = {"keys_only": True} if kind in KEYS_ONLY else {}
            for answer in self._pages(self._keyspace.kind(kind), deadline, revision, **how):
                revision = revision or answer.header.revision
                changes = self._changes((kv, wire.WatchEvent.PUT) for kv in answer.kvs)
                yield Batch(changes, revision, term=answer.header.raft_term)

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        found: list[str] = []
        for answer in self._pages(self._keyspace.locks_from(prefix), deadline, keys_only=True):
            parsed = (self._keyspace.parse(kv.key) for kv in answer.kvs)
            found += [key[1] for key in parsed if key is not None and key[2] == "uuid"]
            if len(found) >= max(limit, NAMES_TO_SORT):
                break
        return nsmallest(limit, found)

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        span = self._keyspace.keys_of(name).queue
        counting = wire.Range(key=span[0], range_end=span[1], count_only=True)
        waiting = int(self._call(RANGE, counting, deadline).count)
        # Keys alone, page by page: to sort them etcd would read all of them with their values.
        found: list[tuple[int, bytes]] = []
        read = 0
        for answer in self._pages(span, deadline, keys_only=True) if waiting else ():
            keys = ((kv.create_revision, kv.key) for kv in answer.kvs)
            found, read = nsmallest(limit, chain(found, keys)), read + len(answer.kvs)
            if read >= MAX_QUEUE_KEYS:
                break
        tickets = tuple(self._tickets_at(name, found, deadline))
        return WaitQueue(max(waiting, read), tickets, ordered=read < MAX_QUEUE_KEYS)

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        found: list[Ticket] = []
        read = looked_at = 0
        for answer in self._pages(self._keyspace.kind("queue"), deadline):
            read += answer.ByteSize()
            for kv in answer.kvs:
                if (parsed := self._keyspace.parse(kv.key)) is None:
                    continue
                readable = len(kv.value) <= MAX_VALUE_BYTES
                looked_at += readable
                value = kv.value if readable else b""
                ticket = Ticket.read(parsed[1], parsed[2], value, kv.create_revision)
                if len(found) < limit or ticket.actor in actors:
                    found.append(ticket.listed())
            if read > MAX_TICKET_BYTES or (not actors and looked_at >= limit):
                break
        return Tickets(found, looked_at)

    def _tickets_at(
        self, name: str, places: Sequence[tuple[int, bytes]], deadline: Deadline
    ) -> Iterator[Ticket]:
        """Read the tickets that still exist, `SAFE_KEYS` in each request."""
        for start in range(0, len(places), SAFE_KEYS):
            txn = reading(key for _, key in places[start : start + SAFE_KEYS])
            for answer in self._call(TXN, txn, deadline).responses:
                for kv in answer.range.kvs:
                    value = kv.value if len(kv.value) <= MAX_VALUE_BYTES else b""
                    uuid = unquote(segment_of(kv.key))
                    yield Ticket.read(name, uuid, value, kv.create_revision)

    def _changes(self, found: Iterable[tuple[Any, int]]) -> tuple[Change, ...]:
        """Return the changes of our keys; each comes with its event, a put or a deletion."""
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

    def _pages(
        self, span: tuple[bytes, bytes], deadline: Deadline, revision: int = 0, **how: Any
    ) -> Iterator[wire.RangeAnswer]:
        """Read a range in pages, at a revision, or at that of the first page."""
        pages, going_on = Pages(span, MAX_KEYS_UNSEEN if how.get("keys_only") else None), True
        while going_on:
            page = wire.Range(
                key=pages.key,
                range_end=pages.range_end,
                limit=pages.limit,
                revision=revision,
                **how,
            )
            many = pages.limit > SAFE_KEYS
            limit = deadline.within(0.0, FULL_PAGE_TIMEOUT_S if many else PAGE_TIMEOUT_S)
            try:
                answer = self._shielded(RANGE, page, limit)
            except StoreUnavailable:
                # It may be so large that etcd takes long to make it, and each try would have etcd
                # make it again. If etcd is unreachable, the limit does not matter.
                if many and not deadline.expired() and pages.ask_for_fewer():
                    continue
                raise
            except WireError as error:
                if error.fault is ErrorKind.TOO_LARGE and pages.ask_for_fewer():
                    continue
                raise error.store_error from error.error
            revision = revision or answer.header.revision
            yield answer
            kvs = answer.kvs
            following = self._keyspace.following(kvs[-1].key) if answer.more else b""
            size = answer.ByteSize()
            going_on = pages.read(following, more=answer.more, keys=len(kvs), size=size)
