"""The contents of a store that a table keeps: locks, queue lengths, unlockers, removals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from lockclient.model.clocks import monotonic
from lockclient.model.holder import SUBKEYS, Found
from lockclient.model.removal import Removal, removed_at
from lockclient.overview.rows import Row, remembering, updated, went_back
from lockclient.stores.service_store import Batch, Change

_MAX_UNLOCKERS = 1000
_MAX_ANNOUNCEMENT_BYTES = 2000


class QueueLength(NamedTuple):
    """The number of waiters for a lock, since the change at `revision`."""

    waiting: int
    revision: int

    def after(self, change: Change) -> QueueLength:
        """Return the length after a ticket's write or deletion; only a first write counts."""
        more = -1 if change.value is None else change.created == change.revision
        return QueueLength(max(0, self.waiting + more), change.revision)


NOBODY = QueueLength(0, 0)


class NewestRemovals:
    """The newest removal records, at most `most`, in the store's order.

    With `by_time` they are ordered by `removed_at`: a polled store shows no order of writes.
    """

    def __init__(self, most: int = 0, *, by_time: bool = False) -> None:
        self._most = most
        self._by_time = by_time
        self._kept: dict[tuple[str, str], tuple[float, Removal]] = {}
        self._least = -math.inf if most else math.inf

    def add(self, change: Change) -> Removal | None:
        """Add a record; return its removal, or None if it is older than all that are kept."""
        name, part, value = change.name, change.part, change.value or b""
        order = (removed_at(value) or 0.0) if self._by_time else change.created
        if order < self._least:
            return None
        removal = Removal.listed(name, part, value)
        self._kept[name, part] = order, removal
        # Drop the oldest only when a quarter too many are kept: so the cost of sorting is small for
        # each record.
        if len(self._kept) > self._most * 5 // 4:
            kept = sorted(self._kept.items(), key=lambda item: item[1][0])[-self._most :]
            self._kept, self._least = dict(kept), kept[0][1][0]
        return removal

    def forget(self, name: str, part: str) -> None:
        self._kept.pop((name, part), None)

    def oldest_first(self) -> list[tuple[float, Removal]]:
        return sorted(self._kept.values(), key=itemgetter(0))[-self._most :]


class Contents:
    """Filled from the pages of one reading, then changed by the watch.

    Args:
        removals: filled with the records.
        known: the rows before this reading.
        since: the revision that the table showed before this reading; None: the first reading.
    """

    def __init__(
        self, removals: NewestRemovals, known: Mapping[str, Row], since: int | None = None
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.queues: dict[str, QueueLength] = {}
        self.unlockers: dict[str, str] = {}
        self.recorded = 0
        self.went_back = False
        """A lock has an earlier revision than before this reading."""
        self.revision = self.term = 0
        self.known_at = -math.inf
        self.removals = removals
        self._known = known
        self._since = since
        self._new_removals: list[tuple[float, Removal]] = []
        self._arrived = 0.0
        self._lock = ""
        self._values: dict[str, Found] = {}  # of the last lock; the next page may have more

    # ------------------------------------------------------------ the reading

    def add(self, batch: Batch) -> None:
        """Add a page of the reading."""
        self.revision, self.term, self.known_at = batch.revision, batch.term, batch.known_at
        self._arrived = monotonic()
        if batch.changes and batch.changes[0].kind != "locks":  # a page has one kind
            self._end_lock()
        for change in batch.changes:
            kind, name, part, value, revision, _, version = change
            if kind == "locks":
                if name != self._lock:
                    self._end_lock()
                    self._lock = name
                if part in SUBKEYS:
                    self._values[part] = value, version or revision
            elif kind == "queue":
                known = self.queues.get(name, NOBODY)
                self.queues[name] = QueueLength(known.waiting + 1, max(known.revision, revision))
            elif kind == "unlockers":
                self._announced(name, value)
            elif kind == "removed":
                is_new = self._since is not None and change.created > self._since
                self._removed(change, is_new=is_new)
                self.recorded += 1

    def finish(self) -> None:
        """End the reading. After the first one, all removals that are kept count as new."""
        self._end_lock()
        self._known = {}
        if self._since is None:
            self._new_removals = self.removals.oldest_first()

    def _end_lock(self) -> None:
        """Add the last lock's row, as its last page has arrived."""
        name, values, self._values = self._lock, self._values, {}
        if not values:
            return
        # `seen_at` is the arrival of the lock's last page or the next one, not the time of the
        # request: everything on the page was written before it arrived.
        row = updated(None, name, values, self._arrived, found=self._since is None)
        if row is not None:
            self.rows[name] = self._kept(row)

    def _kept(self, row: Row) -> Row:
        known = self._known.get(row.holder.name)
        if known is None:
            return row
        if known.holder == row.holder:
            return known
        self.went_back |= went_back(known.holder, row.holder)
        return replace(row, holder=remembering(row.holder, known.holder))

    # ------------------------------------------------------------ the watch

    def change(self, change: Change) -> None:
        """Apply a change of a ticket, an announcement or a removal record."""
        name, part, value = change.name, change.part, change.value
        if change.kind == "queue":
            queue = self.queues.get(name, NOBODY).after(change)
            if queue.waiting:
                self.queues[name] = queue
            else:
                self.queues.pop(name, None)
        elif change.kind == "unlockers":
            self._announced(name, value)
        elif change.kind == "removed" and value is None:
            self.removals.forget(name, part)
            self.recorded -= 1
        elif change.kind == "removed":
            is_new = change.created == change.revision
            self._removed(change, is_new=is_new)
            self.recorded += is_new

    def take_new_removals(self) -> list[Removal]:
        """Return the new removals, each once, the oldest first."""
        new, self._new_removals = self._new_removals, []
        return [removal for _, removal in sorted(new, key=itemgetter(0))]

    # ------------------------------------------------------------ both

    def _announced(self, unlocker: str, value: bytes | None) -> None:
        if value is None:
            self.unlockers.pop(unlocker, None)
        elif unlocker in self.unlockers or len(self.unlockers) < _MAX_UNLOCKERS:
            text = value[:_MAX_ANNOUNCEMENT_BYTES].decode(errors="replace")
            self.unlockers[unlocker] = text

    def _removed(self, change: Change, *, is_new: bool) -> None:
        removal = self.removals.add(change)
        if is_new:
            removal = removal or Removal.listed(change.name, change.part, change.value or b"")
            self._new_removals.append((change.created, removal))
