"""The live table of all locks in one process: it loads everything once, then follows one watch.

One thread applies the watch's changes. Readers copy under a lock; rows are immutable. A reload
keeps the rows of unchanged locks with their `seen_at`, so an unlocker's silence timers continue.

A restore from a backup loses heartbeats. A row may then look unchanged, its revisions included,
although the lock got a heartbeat that is lost. At each sign of a restore, the table therefore
reads everything again and restarts the silence timer of every lock, as if it had first seen the
lock at this time:

- the watch ended by compaction (`Batch.missed`);
- a revision, of the store or of one lock, went back: only a restore does that;
- the raft term went back: a restored cluster counts its terms from the beginning. (Only terms from
  answers that went through the leader are used: a slow member may report an older one.);
- the watch delivered nothing for `max_silence` seconds; time in which this process was stopped
  counts. The caller makes sure that some key is written more often than that. So a restore that
  takes longer than `max_silence` is always noticed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.holder import Found
from lockclient.model.removal import Removal
from lockclient.overview.bounded_queue import BoundedQueue
from lockclient.overview.contents import NOBODY, Contents, NewestRemovals, QueueLength
from lockclient.overview.rows import Row, Transition, differences, updated
from lockclient.overview.table_troubles import FOLLOWED, READ, Troubles
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import Batch, Kind, ServiceStore
from lockclient.text.durations import duration
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentrancy import mark_thread

log = get_logger(__name__)

LOAD_TIMEOUT_S = 1800.0
"""Timeout of a full load. The store has its own, much shorter timeout for each page."""
MAX_TRANSITIONS_PER_CALL = 1000
"""Maximum number of a load's transitions that a listener gets in one call."""
STUCK_AFTER_S = 120.0
"""Time without a page after which a load counts as hanging; the store waits a minute for a page."""


class Table:
    """All locks, their queues and the unlockers, kept up to date until `stop()`.

    Args:
        store: the caller closes it.
        removals: number of newest removals to keep, without their backtraces.
        max_silence: seconds, see the top of this file; infinite: any silence is accepted.
        on_change: the table's thread calls it with each step's transitions.
        on_removal: the table's thread calls it before `on_change` with each step's new removals,
            each once, in the order of revisions; and with whether the first load found them.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        removals: int = 0,
        max_silence: float = math.inf,
        on_change: Callable[[list[Transition]], None] | None = None,
        on_removal: Callable[[list[Removal], bool], None] | None = None,
    ) -> None:
        self._store = store
        self._keep_removals = removals
        self._on_change = on_change
        self._on_removal = on_removal
        self._lock = threading.Lock()
        self._contents = Contents(NewestRemovals(), {})
        self._term = 0
        self.revision = 0
        """The store's revision that the table shows: it grows when anything changes."""
        self.followed = 0
        """The revision of the last change that came by the watch, not by a load."""
        self.known_at = -math.inf
        """For a store without a watch: the monotonic time when the table's last poll began. For
        others: -inf; ask `Freshness`."""
        self._max_silence = max_silence
        self._proven_at = -math.inf
        self.restored: Now | None = None
        """When a restore of the store was last detected."""
        """The time of the last restore that was noticed, Unix seconds; 0: none."""
        self.restarts = 0
        """The number of times that the table restarted all silence timers."""
        # True while a watch has reconnected and it is unknown whether the store was restored.
        self._checking = False
        self._missed = False
        """The watch missed changes, or the store was restored, and nothing was read again since."""
        self._loading = True
        self._page_at = math.inf
        self._ready = threading.Event()
        self._backlog = BoundedQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clustermutex-table", daemon=True)
        self._troubles = Troubles(self._stopping)
        self.loads = 0
        """The number of complete loads."""

    # ------------------------------------------------------------ life

    def start(self) -> None:
        self._thread.start()

    def read(self, deadline: Deadline) -> None:
        """Read everything once, instead of `start()`; raises as `ServiceStore.load`."""
        self._load(deadline)

    def wait_ready(self, timeout: float | None = None) -> bool:
        return self._ready.wait(timeout)

    def ready(self) -> bool:
        return self._ready.is_set()

    def connected(self) -> bool:
        """Return whether, as far as is known, the table is up to date."""
        unsure = self.trouble or self._checking or self._missed
        return self._ready.is_set() and not unsure and self._store.connected()

    def known_until(self) -> float:
        """Return the monotonic time up to which no heartbeat was missed.

        For a store without a watch, it is the time when its last poll began: otherwise a lock
        whose `expected_runtime` is shorter than the poll interval would look past its alert between
        polls.
        """
        return monotonic() if self.can.watch else self.known_at

    def judged_at(self, wall: float) -> float:
        """Return `known_until()` as a wall-clock time, if the wall clock shows `wall` now."""
        return wall - max(0.0, monotonic() - self.known_until())

    def loading(self) -> bool:
        return self._loading

    def down(self) -> str | None:
        """Return a sentence if the table's thread has ended or hangs, else None."""
        if self._thread.ident is not None and not self._thread.is_alive():
            return "The thread that follows the locks has ended."
        ago = monotonic() - self._page_at if self._loading else 0.0
        if ago > STUCK_AFTER_S:
            return f"The reading of all locks hangs: nothing has come for {duration(ago)}."
        return None

    @property
    def trouble(self) -> str:
        """Why nothing can be read or followed; empty while a stream is only being reopened."""
        return self._troubles.first()

    def resync(self) -> None:
        self._backlog.put(Batch((), 0, gap=True), wait=False)

    def stop(self, *, wait: bool = True) -> None:
        self._stopping.set()
        self._backlog.close()
        if wait and self._thread.is_alive():
            self._thread.join(5)

    # ------------------------------------------------------------ reading

    @property
    def can(self) -> Capabilities:
        return self._store.can

    def rows(self) -> dict[str, Row]:
        with self._lock:
            return dict(self._contents.rows)

    def row(self, name: str) -> Row | None:
        return self._contents.rows.get(name)

    def waiters(self) -> dict[str, int]:
        with self._lock:
            return {name: queue.waiting for name, queue in self._contents.queues.items()}

    def queue_length(self, name: str) -> QueueLength:
        return self._contents.queues.get(name, NOBODY)

    def unlockers(self) -> dict[str, str]:
        """Return the running unlockers: id to announcement."""
        with self._lock:
            return dict(self._contents.unlockers)

    def is_proven(self) -> bool:
        """Return whether the watch brought something within the last `max_silence` seconds."""
        return monotonic() - self._proven_at <= self._max_silence

    def removals(self) -> list[Removal]:
        """Return the removals that are kept, the newest first."""
        with self._lock:
            kept = self._contents.removals.oldest_first()
        return [removal for _, removal in reversed(kept)]

    def recorded(self) -> int:
        """Return the number of removal records in the store, also of those not kept here."""
        return self._contents.recorded

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        mark_thread()
        # Only `stop()` may end this thread. If it died, the table would look like a store without
        # changes. An exception may leave a batch half applied and half reported to the listeners,
        # so the table is loaded again.
        complete = False  # whether the table is complete up to its revision
        while not self._stopping.is_set():
            try:
                complete = self._read_and_follow(complete)
                continue
            except ClusterMutexError as error:
                self._troubles.failed(READ, error)
            except Exception as error:  # noqa: BLE001 - see above
                self._troubles.unforeseen(error)
            complete = False
            self._stopping.wait(1)

    def _read_and_follow(self, complete: bool) -> bool:
        """Read everything unless `complete`, then follow; return whether nothing is missing."""
        if not complete:
            self._loading, self._page_at = True, monotonic()
            self._load(Deadline.after(LOAD_TIMEOUT_S))
            self._missed = False  # after listeners got the rows with restarted timers
            self._troubles.succeeded(READ)
        watch = self._store.follow(self.revision + 1, self._backlog.put)
        try:
            self._loading = False
            return self._follow()
        finally:
            watch.close()

    def _load(self, deadline: Deadline) -> None:
        kinds: tuple[Kind, ...] = ("locks", "queue", "unlockers")
        if self._keep_removals or self._on_removal:
            kinds += ("removed",)
        first = not self._ready.is_set()
        removals = NewestRemovals(self._keep_removals, by_time=not self.can.watch)
        fresh = Contents(removals, self._contents.rows, None if first else self.revision)
        was_silent = not self.is_proven()
        for batch in self._store.load(kinds, deadline):
            fresh.add(batch)
            # While a store is restored between two pages, no page arrives.
            if monotonic() - self._page_at > self._max_silence:
                was_silent = True
            self._page_at = monotonic()
        fresh.finish()
        is_restored = self._is_restored(fresh.revision, fresh.term)
        if fresh.went_back and self._store.can.watch:
            is_restored = True
        with self._lock:
            before, self._contents = self._contents.rows, fresh
            self.revision, self._term = fresh.revision, fresh.term
            self.known_at = fresh.known_at
            self.followed = min(self.followed, fresh.revision)  # after a restore
            self.loads += 1
            if is_restored:
                self.restored = Now.read()
                self._restart_timers(
                    "The store was restored from a backup, as its data tell; fencing tokens may "
                    "have gone back."
                )
            elif self._missed:
                self._restart_timers("Changes of the store were compacted before they were read.")
            elif was_silent and not first:
                self._restart_timers(
                    f"The watch has shown nothing for more than {self._max_silence:.0f} s."
                )
        self._ready.set()
        self._notify([], first=first)  # of the new removals
        changed = differences(before, fresh.rows)
        while few := list(islice(changed, MAX_TRANSITIONS_PER_CALL)):
            self._notify(few)
        self._proven_at = monotonic()

    def _follow(self) -> bool:
        """Apply batches until stopped, or until a change may be missing.

        Return whether the table is still complete: False has everything read again.
        """
        while (batch := self._backlog.get()) is not None and not batch.gap:
            self._troubles.succeeded(FOLLOWED)
            if batch.started and self._check_restored():
                return False
            if batch.revision <= self.revision:
                continue  # left over from the watch before this one; the load contains it
            if not (batch.started or self.is_proven()):
                return False  # a restore may have undone what this watch has shown
            changed: list[Transition] = []
            arrived = monotonic()
            try:
                with self._lock:
                    self._apply(batch, changed)
                    self.revision, self.known_at = batch.revision, batch.known_at
            finally:  # after an error, too: no later batch brings these changes again
                self._notify(changed)
            if not batch.started:
                self.followed, self._proven_at = batch.revision, arrived
        if batch is not None:
            self._missed |= batch.missed
        if batch is not None and batch.refused:
            self._troubles.failed(FOLLOWED, batch.refused)
            return True  # the store refuses only after a second, so this does not spin
        return False

    def _check_restored(self) -> bool:
        """Ask the store, when a watch has reconnected, whether it was restored.

        The watch itself does not show that if the revisions are higher than before.
        """
        self._checking = True
        try:
            page = next(self._store.load(("unlockers",), Deadline.after(3)), None)
            if page is not None:
                self._missed |= self._is_restored(page.revision, page.term)
                if not self._missed:
                    self._term = max(self._term, page.term)
        finally:
            self._checking = False
        return self._missed

    def _is_restored(self, revision: int, term: int) -> bool:
        return revision < self.revision or 0 < term < self._term

    def _restart_timers(self, why: str) -> None:
        """Count the silence of all locks from now on."""
        now, rows = monotonic(), self._contents.rows
        rows.update({name: replace(row, seen_at=now, found=True) for name, row in rows.items()})
        self.restarts += 1
        log.warning("%s The times of all locks count from now on.", why)

    def _apply(self, batch: Batch, changed: list[Transition]) -> None:
        contents, seen_at = self._contents, monotonic()
        # A batch may contain several transactions. Splitting it by revision shows a lock that was
        # released and taken again as two transitions.
        fresh = batch.changes
        if fresh and fresh[0].revision <= self.revision:
            # From the watch before this one; the load contains the first of these changes.
            fresh = tuple(change for change in fresh if change.revision > self.revision)
        for (_, kind, name), group in groupby(fresh, key=attrgetter("revision", "kind", "name")):
            if kind != "locks":
                for change in group:
                    contents.change(change)
                continue
            before = contents.rows.get(name)
            values: dict[str, Found] = {
                change.part: (change.value, change.version or change.revision) for change in group
            }
            after = updated(before, name, values, seen_at, found=False)
            if after is None:
                contents.rows.pop(name, None)
            else:
                contents.rows[name] = after
            changed.append(Transition(name, before, after, live=True))

    def _notify(self, changed: list[Transition], *, first: bool = False) -> None:
        removals = self._contents.take_new_removals()
        if removals and self._on_removal is not None:
            with _logged():
                self._on_removal(removals, first)
        if changed and self._on_change is not None:
            with _logged():
                self._on_change(changed)


@contextmanager
def _logged() -> Iterator[None]:
    try:
        yield
    except Exception:  # a listener's bug must not stop the table
        log.exception("A listener of the table of all locks failed.")
