"""What a store holds, as far as a table keeps it: locks, queue lengths, unlockers, removals."""

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
from lockclient.stores.service_protocol import Batch, Change

_MAX_UNLOCKERS = 1000
_MAX_ANNOUNCEMENT_BYTES = 2000


class QueueLength(NamedTuple):
    """The number of waiters for a lock, since the change at `revision`."""

    waiting: int
    revision: int

    def after(self, change: Change) -> QueueLength:
        """Return the length after a ticket's write or deletion; a second write counts nothing."""
        more = -1 if change.value is None else change.created == change.revision
        return QueueLength(max(0, self.waiting + more), change.revision)


NOBODY = QueueLength(0, 0)


class NewestRemovals:
    """The newest records of removals, at most `most`, in the store's order.

    `by_time`: by when the locks were removed, as a polled store shows no order.
    """

    def __init__(self, most: int = 0, *, by_time: bool = False) -> None:
        self._most = most
        self._by_time = by_time
        self._kept: dict[tuple[str, str], tuple[float, Removal]] = {}
        self._least = -math.inf if most else math.inf

    def add(self, change: Change) -> Removal | None:
        """Take a record in; return what it says, or None if it is older than all that are kept."""
        name, part, value = change.name, change.part, change.value or b""
        order = (removed_at(value) or 0.0) if self._by_time else change.created
        if order < self._least:
            return None
        removal = Removal.listed(name, part, value)
        self._kept[name, part] = order, removal
        # The oldest go together, once they are a quarter too many: sorting then costs little for
        # each record, in whatever order they come.
        if len(self._kept) > self._most * 5 // 4:
            kept = sorted(self._kept.items(), key=lambda item: item[1][0])[-self._most :]
            self._kept, self._least = dict(kept), kept[0][1][0]
        return removal

    def forget(self, name: str, part: str) -> None:
        self._kept.pop((name, part), None)

    def oldest_first(self) -> list[tuple[float, Removal]]:
        return sorted(self._kept.values(), key=itemgetter(0))[-self._most :]


class Contents:
    """Read from the pages of one reading, then changed by what the watch brings.

    Args:
        known: the rows that there were before.
        since: the revision that was shown before; None: nothing was read before.
    """

    def __init__(
        self, removals: NewestRemovals, known: Mapping[str, Row], since: int | None = None
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.queues: dict[str, QueueLength] = {}
        self.unlockers: dict[str, str] = {}
        self.recorded = 0
        self.went_back = False
        """A lock stands at an earlier revision than before."""
        self.revision = self.term = 0
        self.known_at = -math.inf
        self.removals = removals
        self._known = known
        self._since = since
        self._new_removals: list[tuple[float, Removal]] = []
        self._arrived = 0.0
        self._lock = ""
        self._values: dict[str, Found] = {}  # of the last lock: more may be on the next page

    # ------------------------------------------------------------ the reading

    def add(self, batch: Batch) -> None:
        """Take a page in; nothing else of it is kept."""
        self.revision, self.term, self.known_at = batch.revision, batch.term, batch.known_at
        self._arrived = monotonic()
        if batch.changes and batch.changes[0].kind != "locks":  # a page is of one kind
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
        """End the reading; of a first one the removals that are kept are new."""
        self._end_lock()
        self._known = {}
        if self._since is None:
            self._new_removals = self.removals.oldest_first()

    def _end_lock(self) -> None:
        """Finish the last lock: its last page has arrived."""
        name, values, self._values = self._lock, self._values, {}
        if not values:
            return
        # When its last page has arrived, or the one after it, and not when that was asked for:
        # nothing on it was written later.
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
        """Take in a change of anything but a lock."""
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
