"""All waiters and deadlocks: read from the store when a queue has changed, and kept.

The table knows how long each line is, and not who stands in it. So that a line is read once for all
viewers, and a deadlock is noticed while nobody looks, one thread does it here.
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
from lockclient.overview.queue_reader import WaitQueues
from lockclient.overview.table import Table
from lockclient.service.supervision import Loop
from lockclient.stores.service_protocol import ServiceStore
from mutexdash.data.query import Page, Query

_POLL_INTERVAL_S, _REQUEST_TIMEOUT_S = 2.0, 5.0


class WaiterRow(NamedTuple):
    """A waiter, and the holder that it waits for: None where the lock is free just now."""

    ticket: Ticket
    holder: Holder | None
    deadlock: bool


@dataclass(frozen=True)
class Waits:
    """All that waits, the longest first, and who waits for each other; of `total` waiters.

    `heads` and `unread` are those of `WaitQueues`.
    """

    waits: Sequence[WaiterRow] = ()
    deadlocks: Sequence[Deadlock] = ()
    total: int = 0
    heads: Mapping[str, Ticket] = field(default_factory=dict)
    unread: int = 0

    @cached_property
    def by_lock(self) -> Mapping[str, Deadlock]:
        """The deadlock of each lock that is in one."""
        return by_lock(self.deadlocks)

    @classmethod
    def of(cls, lines: WaitQueues) -> Waits:
        """Put together who waits and who holds."""
        holders, tickets = lines.holders(), lines.tickets
        found = deadlocks(holders, tickets)
        stuck = {ticket.uuid for deadlock in found for ticket in deadlock.waits}
        # By the store's order: it is longest ago that the first ticket was written, whatever the
        # waiters' clocks say.
        waits = [
            WaiterRow(ticket, holders.get(ticket.name), ticket.uuid in stuck)
            for ticket in sorted(tickets, key=attrgetter("revision"))
        ]
        return cls(waits, found, lines.total, lines.heads, lines.unread)

    def select(self, query: Query) -> Page:
        """Return a page of the waits that a search finds, by the waiter and its lock."""
        search = query.search
        return query.page_of([wait for wait in self.waits if search.finds_ticket(wait.ticket)])

    def on_host(self, hostname: str) -> Sequence[WaiterRow]:
        """Return what a host waits for."""
        return [wait for wait in self.waits if wait.ticket.hostname == hostname]


NO_WAITS: Final = Waits()


class WaiterPoller(Loop):
    """Knows who waits, as of a few seconds ago.

    Args:
        table: which lines there are, and whether they have changed.
        store: asked who stands in them.
    """

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._lines = WaitQueues(table, store)
        self._waits = Waits()
        super().__init__("reading of who waits", _POLL_INTERVAL_S, self.poll)

    def waits(self) -> Waits:
        """Return the waiters of the last poll; the same object until something changes."""
        return self._waits

    def poll(self) -> None:
        """Read who waits, if anything about it has changed."""
        if self._table.ready():
            with suppress(ClusterMutexError):  # shown as it was, and tried again
                self._lines.poll(_REQUEST_TIMEOUT_S)
            waits = Waits.of(self._lines)  # a holder may have changed without its queue
            self._waits = self._waits if waits == self._waits else waits
