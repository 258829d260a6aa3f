"""Deletes expired removal records and tombstones.

Both are bound to leases, but etcd gives all leases their full time again at each change of its
leader (etcd-io/etcd #9888). With one change a week, a key with a lease of a week would stay for
ever. So once an hour each unlocker scans for expired keys and deletes them in small steps.

Removal records. A record expires `RECORD_RETENTION_S` after its `removed_at`. If there are more
than `--keep-removals`, the oldest go first. `removed_at` comes from another host's wall clock and
is compared with ours: if one of them is wrong, a record goes early or late, and no lock depends on
it. But an owner that lost its lock reads its record. So no record goes within ten minutes of its
writing, and those are counted without a wall clock.

Tombstones. A tombstone makes a take that arrives late do nothing, so it must stay as long as such a
take may arrive: a day (`TOMBSTONE_TTL_S` in `lockclient/stores/etcd/store.py`). Its age is counted
in revisions of the store: each minute we note the table's revision (`RevisionAges`). A key that was
written up to a noted revision is at least as old as the note, whatever any wall clock says. After a
start there are no notes, and tombstones are deleted a day later. In a bucket, a tombstone stands in
the place of the lock. If the lock was taken meanwhile, it is another object, and the deletion's
comparison fails.

Backtraces. A backtrace with a key of its own (`Removal.apart`) expires when no record refers to it.
Each removal writes the backtrace again in its transaction. So the backtrace's revision is that of
the newest record that refers to it, and if it is lower than those of all records, there is none. A
later removal gives it a new revision, and the deletion's comparison fails.

If the store's revision falls below a noted one, the store was restored from a backup, and all notes
are void. We may see that only at the next complete reading (`RESYNC_INTERVAL_S`), so a tombstone
stays for a day and an hour.

A deletion compares the key's revision, so a key that was written again stays. Therefore several
unlockers may do this at the same time, and one that dies leaves the rest to the next scan.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, Now
from lockclient.model.removal import removed_at
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.overview.live_table import Table
from lockclient.service.outage import Outage
from lockclient.stores.service_store import Change, Kind, ServiceStore

log = logging.getLogger(__name__)

STEP_INTERVAL_S = 60.0
SCAN_INTERVAL_S = 3600.0
"""Seconds between two steps, and between two scans of everything."""
MAX_DELETIONS_PER_STEP = 500
"""Deletions in one step: each is a revision of the store and an event for all its watchers."""
TOMBSTONE_RETENTION_S = 86400.0 + 3600.0
MIN_RECORD_AGE_S = 600.0
"""Seconds for which a tombstone is kept, and for which each record is kept at least."""
MAX_RECORDS = 10_000
"""Default of `--keep-removals`."""
_MAX_PLANNED = 5000
"""Deletions planned by one scan; if there are more, the next scan follows at once."""
_REQUEST_TIMEOUT_S = 2.0
_STEP_BUDGET_S = 60.0
"""Seconds for one deletion, and for one step with its scan. A job that takes much longer than its
interval counts as hanging."""


class RevisionAges:
    """Notes of the store's revision over time; they give the least age of a revision."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, now: float, revision: int) -> None:
        """Note the store's revision at the monotonic time `now`."""
        if self._notes and revision < self._notes[-1][1]:
            self._notes.clear()
        self._notes.append((now, revision))
        # Of the notes older than any age that is asked for, only the newest is needed.
        old = now - max(TOMBSTONE_RETENTION_S, MIN_RECORD_AGE_S)
        while len(self._notes) > 1 and self._notes[1][0] <= old:
            self._notes.popleft()

    def written_before(self, moment: float) -> int:
        """Return the newest revision known to be written before that moment; 0: unknown."""
        return max((revision for at, revision in self._notes if at <= moment), default=0)


@dataclass(eq=False)
class RecordCleanup:
    """Finds and deletes expired keys. One thread calls `run` every `STEP_INTERVAL_S`.

    Attributes:
        store: has the records.
        table: has the store's revision.
        max_records: number of newest records to keep; None: no limit.
        ending: when set, no further deletion begins.
        read_clocks: returns both clocks.
    """

    store: ServiceStore
    table: Table
    max_records: int | None
    ending: threading.Event
    read_clocks: Callable[[], Now] = Now.read
    _ages: RevisionAges = field(default_factory=RevisionAges)
    _restarts = 0
    _budget: Deadline = field(default_factory=lambda: Deadline.after(_STEP_BUDGET_S))
    _to_delete: deque[Change] = field(default_factory=deque)
    _next_scan_at = 0.0
    _outage: Outage = field(
        default_factory=lambda: Outage(log, "Expired records can be deleted again.")
    )
    _oldest_record = 0  # the lowest creation revision of the records in the last scan

    def run(self) -> None:
        """Note the revision, scan if an hour has passed, and delete some of the expired keys."""
        if not self.table.connected():
            return
        try:
            self._run(self.read_clocks())
        except StoreUnavailable:
            return  # the store logs its outages; the next step does the rest
        except ClusterMutexError as error:
            self._outage.failed("Expired records can't be deleted; retrying: %s", error)
        else:
            self._outage.succeeded()

    def _run(self, clocks: Now) -> None:
        now = clocks.monotonic
        self._budget = Deadline.after(_STEP_BUDGET_S)
        if self._restarts != (restarts := self.table.restarts):
            # After a restore, revisions may have gone back and then grown past the last note.
            self._ages, self._restarts = RevisionAges(), restarts
        self._ages.note(now, self.table.revision)
        settled = self._ages.written_before(now - MIN_RECORD_AGE_S)
        if settled and not self._to_delete and now >= self._next_scan_at:
            self._to_delete.extend(self._expired_records(settled, clocks.wall))
            self._to_delete.extend(self._orphaned_backtraces())
            self._to_delete.extend(self._expired_tombstones(now))
            is_all = len(self._to_delete) < _MAX_PLANNED
            self._next_scan_at = now + SCAN_INTERVAL_S if is_all else now
        for _ in range(min(MAX_DELETIONS_PER_STEP, len(self._to_delete))):
            if self.ending.is_set() or self._budget.expired():
                return
            self.store.forget(self._to_delete[0], Deadline.after(_REQUEST_TIMEOUT_S))
            self._to_delete.popleft()

    def _expired_records(self, settled: int, wall: float) -> Iterator[Change]:
        """Yield the expired records that were written up to the revision `settled`."""
        since, count, self._oldest_record = wall - RECORD_RETENTION_S, 0, settled + 1

        def ranked() -> Iterator[tuple[bool, int, Change]]:
            nonlocal count
            for record in self._load("removed"):
                count += 1
                self._oldest_record = min(self._oldest_record, record.created)
                at = removed_at(record.value or b"")
                yield at is None or at > since, record.created, record._replace(value=None)

        first = nsmallest(_MAX_PLANNED, ranked())  # the expired ones, then the oldest
        excess = 0 if self.max_records is None else count - self.max_records
        for place, (in_time, _, record) in enumerate(first):
            if record.revision <= settled and (place < excess or not in_time):
                yield record

    def _orphaned_backtraces(self) -> Iterator[Change]:
        """Yield the backtraces to which no record referred when the records were read."""
        for backtrace in self._load("code"):
            if backtrace.revision < self._oldest_record:
                yield backtrace._replace(value=None)

    def _expired_tombstones(self, now: float) -> Iterator[Change]:
        """Yield the tombstones that are older than any take that may still arrive."""
        old = self._ages.written_before(now - TOMBSTONE_RETENTION_S)
        if old:
            marks = (mark for mark in self._load("withdrawn") if mark.revision <= old)
            yield from islice(marks, _MAX_PLANNED)

    def _load(self, kind: Kind) -> Iterator[Change]:
        for batch in self.store.load((kind,), self._budget):
            yield from batch.changes
