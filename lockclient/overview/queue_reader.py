"""The waiters in all queues, read from the store again when a queue has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock, deadlocks
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.overview.contents import NOBODY, QueueLength
from lockclient.overview.live_table import Table
from lockclient.stores.service_store import ServiceStore, Tickets

MOST: Final = 2000
"""Waiters that are read, in addition to all that may be in a deadlock."""


class WaitQueues:
    """The waiters of a table's locks as of the last poll.

    Attributes:
        total: the number of waiters, read or not.
        unread: the number of tickets that were too many to read: a deadlock among them is missed.
        heads: the first ticket of each queue that was read whole; the same object until a change.
    """

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._read: tuple[Mapping[str, QueueLength], frozenset[str]] = {}, frozenset()
        self.tickets: Sequence[Ticket] = ()
        self.total = self.unread = 0
        self.heads: Mapping[str, Ticket] = {}

    def poll(self, patience: float) -> None:
        """Read the waiters if a queue or its holder has changed; an error leaves all as it was.

        Each actor in a circle holds a lock that has waiters: others matter for no deadlock.
        """
        lengths = {name: self._table.queue_length(name) for name in self._table.waiters()}
        actors = frozenset(holder.actor for holder in self._held(lengths).values() if holder.actor)
        if (lengths, actors) == self._read:
            return
        # The lengths of before the request are kept: what changes meanwhile is read next time.
        answer = (
            self._store.tickets(MOST, Deadline.after(patience), actors) if lengths else Tickets()
        )
        total, tickets = sum(length.waiting for length in lengths.values()), answer.found
        self._read, self.tickets, self.total = (lengths, actors), tickets, max(total, len(tickets))
        self.unread = max(0, total - answer.looked_at)
        read = Counter(ticket.name for ticket in tickets)
        whole = {name for name in read if read[name] >= lengths.get(name, NOBODY).waiting}
        newest_first = sorted(tickets, key=lambda ticket: -ticket.revision)
        self.heads = {ticket.name: ticket for ticket in newest_first if ticket.name in whole}

    def holders(self) -> dict[str, Holder]:
        return self._held({ticket.name for ticket in self.tickets})

    def _held(self, names: Iterable[str]) -> dict[str, Holder]:
        rows = ((name, self._table.row(name)) for name in names)
        return {name: row.holder for name, row in rows if row is not None and row.held}

    def deadlocks(self) -> list[Deadlock]:
        return deadlocks(self.holders(), self.tickets)
