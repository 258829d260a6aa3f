"""Deletes what is over: records of removals, and tombstones (marks) of uuids that are used up.

All are bound to leases, but etcd gives all leases their whole time anew at each change of its
leader (etcd-io/etcd #9888): where that happens once a week, what has a lease of a week stays for
ever. So each unlocker looks once an hour for what is over, and deletes it in small steps.

- A record goes when its `removed_at` is `RECORD_RETENTION_S` ago, and when there are more than
  `--keep-removals`, the oldest first. `removed_at` is some remover's wall clock and is compared
  with ours: if one of them is wrong, a record goes early, or late, and nothing else; no lock hangs
  on it. But whose lock it was is to learn from it who took that: so no record goes in the first ten
  minutes, and no wall clock is in these.
- A mark goes when it was written more than a day ago. It makes a take do nothing that arrives late,
  so that none may go which such a take could still meet (see `TOMBSTONE_TTL_S` in
  `lockclient/stores/etcd/store.py` for how long that is). No wall clock is in that, either: the
  store's revisions are its own time.
  Each minute we note which revision the table shows. What was written up to it is at least as old
  as the note, whoever wrote it and whatever the clocks said. Whoever starts again has no notes, and
  takes marks away a day later; until then there are the leases.
- A backtrace that stands apart (`Removal.apart`) goes when no record speaks of it. Each removal
  writes it again in the same transaction, so its revision is that of the newest record of it: when
  it is lower than those of all records, there is none. A removal that comes after we looked gives
  it a new one, which the deletion compares.
- Of a bucket the marks are the traces that stand in the place of locks, and revisions are its own
  time. A trace has to stand until a day after it was written, if not for less; one that was taken
  over meanwhile is another object, which the deletion compares.
- Where the store's revision is lower than one that was noted, it is another store, restored from a
  backup, and all notes are void. That may be seen as late as the next reading of everything
  (`RESYNC`), which is why an hour is added to the day.

A deletion compares the revision: what was written again stays. So it does not matter how many
unlockers do this at a time, nor whether one ends in between: the next look finds the rest.
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
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import Change, Kind, ServiceStore

log = logging.getLogger(__name__)

STEP_INTERVAL_S = 60.0
SCAN_INTERVAL_S = 3600.0
"""Seconds between two steps, and between two scans of everything."""
MAX_DELETIONS_PER_STEP = 500
"""Deletions of a step: each is a revision of the store, and an event for whoever follows it."""
TOMBSTONE_RETENTION_S = 86400.0 + 3600.0
MIN_RECORD_AGE_S = 600.0
"""Seconds that a tombstone is kept, and any record at least."""
MAX_RECORDS = 10_000
"""Records that are kept if nobody says otherwise."""
_MAX_PLANNED = 5000
"""Deletions that are planned by one look; if there is more to do the next follows at once."""
_REQUEST_TIMEOUT_S = 2.0
_STEP_BUDGET_S = 60.0
"""Seconds for one deletion, and for one step with its scan: a job that takes much longer than its
interval counts as hanging."""


class RevisionAges:
    """Which revision the store had when: how old is what was written up to it, at least."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, now: float, revision: int) -> None:
        """Take down the revision that is seen at the monotonic moment `now`."""
        if self._notes and revision < self._notes[-1][1]:
            self._notes.clear()
        self._notes.append((now, revision))
        # Of the notes that are old enough for everything the last one says most.
        old = now - max(TOMBSTONE_RETENTION_S, MIN_RECORD_AGE_S)
        while len(self._notes) > 1 and self._notes[1][0] <= old:
            self._notes.popleft()

    def written_before(self, moment: float) -> int:
        """Return up to which revision all was written before that moment; 0: nobody knows."""
        return max((revision for at, revision in self._notes if at <= moment), default=0)


@dataclass(eq=False)
class RecordCleanup:
    """Finds what is over, and deletes it. `run` is for one thread, every `STEP_INTERVAL_S`.

    Attributes:
        store: where the records are.
        table: knows the store's revision.
        max_records: how many are kept, the newest; None: as many as there are.
        ending: when set, nothing further is begun.
        read_clocks: both clocks, by which things are old.
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
    _refused = False
    _oldest_record = 0  # the revision at which it came to be, or else what is settled

    def run(self) -> None:
        """Note the time, look if it is time to, and delete some of what is over."""
        if not self.table.connected():
            return
        try:
            self._run(self.read_clocks())
        except StoreUnavailable:
            return  # the store itself logs that; what is left is done in a minute
        except ClusterMutexError as error:
            if not self._refused:
                log.warning("Expired records can't be deleted; retrying: %s", error)
            self._refused = True
        else:
            self._refused = False

    def _run(self, clocks: Now) -> None:
        now = clocks.monotonic
        self._budget = Deadline.after(_STEP_BUDGET_S)
        if self._restarts != (restarts := self.table.restarts):
            # Revisions may have gone back, and grown past the last note since.
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
        """Yield the records that are over and were written up to the revision `settled`."""
        since, count, self._oldest_record = wall - RECORD_RETENTION_S, 0, settled + 1

        def places() -> Iterator[tuple[bool, int, Change]]:
            nonlocal count
            for record in self._load("removed"):
                count += 1
                self._oldest_record = min(self._oldest_record, record.created)
                at = removed_at(record.value or b"")
                yield at is None or at > since, record.created, record._replace(value=None)

        first = nsmallest(_MAX_PLANNED, places())  # those that are over, then the oldest
        excess = 0 if self.max_records is None else count - self.max_records
        for place, (in_time, _, record) in enumerate(first):
            if record.revision <= settled and (place < excess or not in_time):
                yield record

    def _orphaned_backtraces(self) -> Iterator[Change]:
        """Yield the backtraces of which no record spoke when the records were read."""
        for backtrace in self._load("code"):
            if backtrace.revision < self._oldest_record:  # which is not after `settled`
                yield backtrace._replace(value=None)

    def _expired_tombstones(self, now: float) -> Iterator[Change]:
        """Yield the tombstones that nothing can meet any more."""
        old = self._ages.written_before(now - TOMBSTONE_RETENTION_S)
        if old:
            marks = (mark for mark in self._load("withdrawn") if mark.revision <= old)
            yield from islice(marks, _MAX_PLANNED)

    def _load(self, kind: Kind) -> Iterator[Change]:
        for batch in self.store.load((kind,), self._budget):
            yield from batch.changes
