"""Takes away what is over: records of removals, and marks of uuids that are used up.

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
import time
from collections import deque
from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.removal import removed_at
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.overview.table import Table
from lockclient.stores.service_protocol import Change, Kind, ServiceStore

log = logging.getLogger(__name__)

EVERY, LOOK = 60.0, 3600.0
"""Seconds between two steps, and between two looks at everything."""
STEP = 500
"""Deletions of a step: each is a revision of the store, and an event for whoever follows it."""
MARKS, SETTLED = 86400.0 + 3600.0, 600.0
"""Seconds that a mark is kept, and any record at least."""
KEEP_REMOVALS = 10_000
"""Records that are kept if nobody says otherwise."""
_MOST = 5000
"""Deletions that are planned by one look; if there is more to do the next follows at once."""
_PATIENCE, _BUDGET = 2.0, 60.0
"""Seconds for one deletion, and for one step with its look: a job that takes much longer than its
interval counts as hanging."""


class Ages:
    """Which revision the store had when: how old is what was written up to it, at least."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, now: float, revision: int) -> None:
        """Take down the revision that is seen at the monotonic moment `now`."""
        if self._notes and revision < self._notes[-1][1]:
            self._notes.clear()
        self._notes.append((now, revision))
        # Of the notes that are old enough for everything the last one says most.
        while len(self._notes) > 1 and self._notes[1][0] <= now - max(MARKS, SETTLED):
            self._notes.popleft()

    def written_before(self, moment: float) -> int:
        """Return up to which revision all was written before that moment; 0: nobody knows."""
        return max((revision for at, revision in self._notes if at <= moment), default=0)


class Retention:
    """What is over, and its going. `run` is for one thread, every `EVERY` seconds.

    Args:
        store: where the records are.
        table: knows the store's revision.
        keep: how many records are kept, the newest; None: as many as there are.
        ending: when set, nothing further is begun.
    """

    def __init__(
        self, store: ServiceStore, table: Table, keep: int | None, ending: threading.Event
    ) -> None:
        self._store = store
        self._table = table
        self._keep = keep
        self._ending = ending
        self._ages = Ages()
        self._budget = Deadline.after(_BUDGET)
        self._over: deque[Change] = deque()
        self._look_at = 0.0
        self._refused = False
        self._first = 0  # at which the oldest record came to be, or else what is settled

    def run(self) -> None:
        """Note the time, look if it is time to, and delete some of what is over."""
        if not self._table.connected():
            return
        try:
            self._run(monotonic())
        except StoreUnavailable:
            return  # the store itself logs that; what is left is done in a minute
        except ClusterMutexError as error:
            if not self._refused:
                log.warning("Records that are over can't be deleted, trying on: %s", error)
            self._refused = True
        else:
            self._refused = False

    def _run(self, now: float) -> None:
        self._budget = Deadline.after(_BUDGET)
        self._ages.note(now, self._table.revision)
        settled = self._ages.written_before(now - SETTLED)
        if settled and not self._over and now >= self._look_at:
            self._over.extend(self._records(settled))
            self._over.extend(self._codes())
            self._over.extend(self._marks(now))
            self._look_at = now + (LOOK if len(self._over) < _MOST else 0.0)
        for _ in range(min(STEP, len(self._over))):
            if self._ending.is_set() or self._budget.expired():
                return
            self._store.forget(self._over[0], Deadline.after(_PATIENCE))
            self._over.popleft()

    def _records(self, settled: int) -> Iterator[Change]:
        """Yield the records that are over and were written up to the revision `settled`."""
        since, count, self._first = time.time() - RECORD_RETENTION_S, 0, settled + 1

        def places() -> Iterator[tuple[bool, int, Change]]:
            nonlocal count
            for each in self._all("removed"):
                count += 1
                self._first = min(self._first, each.created)
                at = removed_at(each.value or b"")
                yield at is None or at > since, each.created, each._replace(value=None)

        first = nsmallest(_MOST, places())  # those that are over, then the oldest
        excess = 0 if self._keep is None else count - self._keep
        for place, (in_time, _, each) in enumerate(first):
            if each.revision <= settled and (place < excess or not in_time):
                yield each

    def _codes(self) -> Iterator[Change]:
        """Yield the backtraces of which no record spoke when the records were read."""
        for each in self._all("code"):
            if each.revision < self._first:  # which is not after `settled`
                yield each._replace(value=None)

    def _marks(self, now: float) -> Iterator[Change]:
        """Yield the marks that nothing can meet any more."""
        old = self._ages.written_before(now - MARKS)
        if old:
            yield from islice((x for x in self._all("withdrawn") if x.revision <= old), _MOST)

    def _all(self, kind: Kind) -> Iterator[Change]:
        for batch in self._store.load((kind,), self._budget):
            yield from batch.changes
