"""All waiters and deadlocks: one thread reads them when a queue has changed.

The table has only the queues' lengths. One reading serves all viewers, and a deadlock is counted
also while there is no viewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from lockclient.errors import ClusterMutexError
from lockclient.model.deadlocks import Deadlock, by_lock, deadlocks
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.overview.live_table import Table
from lockclient.overview.queue_reader import WaitQueues
from lockclient.service.supervision import Loop
from lockclient.stores.service_store import ServiceStore
from mutexdash.data.list_parameters import Page, Query

_POLL_INTERVAL_S, _REQUEST_TIMEOUT_S = 2.0, 5.0


class WaiterRow(NamedTuple):
    """A waiter, and the holder that it waits for; None: the lock is free right now."""

    ticket: Ticket
    holder: Holder | None
    deadlock: bool


@dataclass(frozen=True)
class Waits:
    """The waiters that were read, the longest wait first, of `total`; and the deadlocks.

    `heads` and `unread` are those of `WaitQueues`.
    """

    waits: Sequence[WaiterRow] = ()
    deadlocks: Sequence[Deadlock] = ()
    total: int = 0
    heads: Mapping[str, Ticket] = field(default_factory=dict)
    unread: int = 0

    @cached_property
    def by_lock(self) -> Mapping[str, Deadlock]:
        return by_lock(self.deadlocks)

    @classmethod
    def of(cls, queues: WaitQueues) -> Waits:
        holders, tickets = queues.holders(), queues.tickets
        found = deadlocks(holders, tickets)
        stuck = {ticket.uuid for deadlock in found for ticket in deadlock.waits}
        # By the store's order of tickets, which no waiter's clock moves.
        waits = [
            WaiterRow(ticket, holders.get(ticket.name), ticket.uuid in stuck)
            for ticket in sorted(tickets, key=attrgetter("revision"))
        ]
        return cls(waits, found, queues.total, queues.heads, queues.unread)

    def select(self, query: Query) -> Page:
        search = query.search
        return query.page_of([wait for wait in self.waits if search.finds_ticket(wait.ticket)])

    def on_host(self, hostname: str) -> Sequence[WaiterRow]:
        return [wait for wait in self.waits if wait.ticket.hostname == hostname]


NO_WAITS: Final = Waits()


class WaiterPoller(Loop):
    """Reads the waiters of a table's locks every two seconds, if a queue has changed."""

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._queues = WaitQueues(table, store)
        self._waits = Waits()
        super().__init__("reading of the waiters", _POLL_INTERVAL_S, self.poll)

    def waits(self) -> Waits:
        """Return the waiters of the last poll; the same object until something changes."""
        return self._waits

    def poll(self) -> None:
        if self._table.ready():
            with suppress(ClusterMutexError):  # the last reading stays
                self._queues.poll(_REQUEST_TIMEOUT_S)
            waits = Waits.of(self._queues)  # a holder may have changed without its queue
            self._waits = self._waits if waits == self._waits else waits
