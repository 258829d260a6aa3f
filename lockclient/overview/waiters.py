"""Who stands in all lines: read from the store, and again when one of them has changed.

A table knows how long each line is, and not who stands in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock, deadlocks
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.overview.rows import NOBODY, QueueLength
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import ServiceStore, Tickets

MOST: Final = 2000
"""Waiters that are told of, besides all those that may be in a deadlock."""


class WaitQueues:
    """The waiters of a table's locks as of the last look.

    Attributes:
        tickets: who waits.
        total: how many are in line, read or not.
        unread: at how many of them nobody looked, as their tickets are too much to be read: a
            deadlock among them is not noticed.
        heads: of each line that was read as a whole its first ticket; the same object as long as
            no line changes.
    """

    def __init__(self, table: Table, store: ServiceStore) -> None:
        self._table = table
        self._store = store
        self._read: tuple[Mapping[str, QueueLength], frozenset[str]] = {}, frozenset()
        self.tickets: Sequence[Ticket] = ()
        self.total = self.unread = 0
        self.heads: Mapping[str, Ticket] = {}

    def look(self, patience: float) -> None:
        """Read who waits, if any line or its holder has changed since the last look.

        In a circle everybody holds a lock for which somebody waits: so of all the others, however
        many, none matters for it.

        Raises:
            StoreUnavailable, StoreError: the store does not say; all is as it was then.
        """
        lines = {name: self._table.line(name) for name in self._table.waiters()}
        actors = frozenset(holder.actor for holder in self._held(lines).values() if holder.actor)
        if (lines, actors) == self._read:
            return
        # What they were is noted as it was before: what changes meanwhile is read next time.
        answer = self._store.tickets(MOST, Deadline.after(patience), actors) if lines else Tickets()
        total, tickets = sum(line.waiting for line in lines.values()), answer.found
        self._read, self.tickets, self.total = (lines, actors), tickets, max(total, len(tickets))
        self.unread = max(0, total - answer.looked_at)
        read = Counter(ticket.name for ticket in tickets)
        whole = {name for name in read if read[name] >= lines.get(name, NOBODY).waiting}
        newest_first = sorted(tickets, key=lambda ticket: -ticket.revision)
        self.heads = {ticket.name: ticket for ticket in newest_first if ticket.name in whole}

    def holders(self) -> dict[str, Holder]:
        """Return who holds, now, the locks that somebody waits for."""
        return self._held({ticket.name for ticket in self.tickets})

    def _held(self, names: Iterable[str]) -> dict[str, Holder]:
        rows = ((name, self._table.row(name)) for name in names)
        return {name: row.holder for name, row in rows if row is not None and row.held}

    def deadlocks(self) -> list[Deadlock]:
        """Return who waits for each other."""
        return deadlocks(self.holders(), self.tickets)
