"""The live picture of all locks in one process: one read of everything, then one watch.

    table = Table(store)
    table.start()
    table.rows()["nightly-report"].holder

A thread of its own applies what the watch brings; readers take copies under a lock, rows never
change once made. A watch that may have missed something (compaction) makes the table load again:
unchanged rows stay what they are, so that whoever counts time by `Row.seen_at` counts on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import SimpleQueue

from lockclient.errors import ClusterMutexError
from lockclient.record import MAX_VALUE, Holder, Removal, Ticket
from lockclient.store import Batch, Change, Kind, ServiceStore, Subscription
from lockclient.timing import Deadline, monotonic

log = logging.getLogger(__name__)

_STAMPING = frozenset({"uuid", "locked_at", "alive_at", "auto_unlock_at"})
_lock_of = attrgetter("kind", "name")
_step_of = attrgetter("revision", "kind", "name")


@dataclass(frozen=True, slots=True)
class Row:
    """One lock as this process knows it.

    Attributes:
        holder: what the lock says about itself, its backtrace aside.
        stamp_revision: where `auto_unlock_at` was last written; 0 if it is absent.
        seen_at: monotonic time at which this process saw the last write of the stamps.
        found: the lock was there, with these stamps, when this process first looked, so that
            `seen_at` says nothing about when they were written.
    """

    holder: Holder
    stamp_revision: int
    seen_at: float
    found: bool

    @property
    def held(self) -> bool:
        """Whether there is a `uuid`, readable or not: without it the lock is free to take."""
        return self.holder.fencing_token != 0


@dataclass(frozen=True, slots=True)
class Transition:
    """A lock's row changed: None before it was taken and after it went.

    `live` tells that the watch brought it as it happened, and not a reading of everything.
    """

    name: str
    before: Row | None
    after: Row | None
    live: bool


Listener = Callable[[list[Transition]], None]
RemovalListener = Callable[[list[Removal], bool], None]


class Table:
    """All locks, their lines and the unlockers, kept up to date until `stop()`.

    Args:
        store: where to read; it stays the caller's to close.
        removals: how many of the newest removals to keep, their backtraces aside.
        on_change: called in the table's thread with each step's transitions.
        on_removal: called there before it, with each step's new removals, and whether they were
            found at the first reading. Each is told once, in the order of revisions.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        removals: int = 0,
        on_change: Listener | None = None,
        on_removal: RemovalListener | None = None,
    ) -> None:
        self._store = store
        self._keep_removals = removals
        self._on_change = on_change
        self._on_removal = on_removal
        self._untold: list[Removal] = []
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {}
        self._tickets: dict[str, dict[str, Ticket]] = {}
        self._unlockers: dict[str, str] = {}
        self._removals: dict[tuple[str, str], tuple[int, Removal]] = {}
        self._revision = 0
        self._ready = threading.Event()
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clustermutex-table", daemon=True)
        self._troubles: dict[str, str] = {}  # what can't be done now → a sentence about that
        self.loads = 0
        """How often everything was read: 1, and one more for each resync or lost watch."""

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to load and follow, in the background; `wait_ready` tells when it is loaded."""
        self._thread.start()

    def read(self, deadline: Deadline) -> None:
        """Read everything once, here and now, instead of `start()`: for who only takes a look.

        Raises:
            StoreUnavailable, StoreError: as `ServiceStore.load`.
        """
        self._load(deadline)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until everything was read once; False if `timeout` seconds passed first."""
        return self._ready.wait(timeout)

    def ready(self) -> bool:
        """Tell whether everything was read once."""
        return self._ready.is_set()

    def connected(self) -> bool:
        """Tell whether the picture is up to date as far as anyone can know."""
        return self._ready.is_set() and not self._troubles and self._store.connected()

    @property
    def trouble(self) -> str:
        """Why everything can't be read or followed, in a sentence; empty if all is well.

        A stream that just broke and is opened again is no trouble in this sense.
        """
        return next(iter(list(self._troubles.values())), "")

    def resync(self) -> None:
        """Ask for everything to be read again, soon, in the table's own thread."""
        self._inbox.put(Batch((), 0, missed=True))

    def stop(self, *, wait: bool = True) -> None:
        """End the watch and the thread; without `wait` only say that they are to end."""
        self._stopping.set()
        self._inbox.put(None)
        if wait and self._thread.is_alive():
            self._thread.join(5)

    # ------------------------------------------------------------ reading

    @property
    def revision(self) -> int:
        """The store's revision that the picture shows: it grows when anything changes."""
        return self._revision

    def rows(self) -> dict[str, Row]:
        """Return all locks by name, in a dict of the caller's own."""
        with self._lock:
            return dict(self._rows)

    def row(self, name: str) -> Row | None:
        """Return one lock."""
        return self._rows.get(name)

    def waiters(self) -> dict[str, int]:
        """Return how many wait for each lock that has a line."""
        with self._lock:
            return {name: len(line) for name, line in self._tickets.items()}

    def line(self, name: str) -> list[Ticket]:
        """Return who waits for a lock, the next one first."""
        with self._lock:
            return sorted(self._tickets.get(name, {}).values(), key=lambda each: each.revision)

    def unclaimed(self) -> dict[str, Ticket]:
        """Return who is next for each lock that is free and has a line."""
        with self._lock:  # a line's tickets stand in the order in which they came
            return {
                name: next(iter(line.values()))
                for name, line in self._tickets.items()
                if (row := self._rows.get(name)) is None or not row.held
            }

    def unlockers(self) -> dict[str, str]:
        """Return the running unlockers: id to what they say of themselves."""
        with self._lock:
            return dict(self._unlockers)

    def removals(self) -> list[Removal]:
        """Return the removals that are kept, the newest first."""
        with self._lock:
            found = sorted(self._removals.values(), key=lambda each: each[0], reverse=True)
        return [removal for _, removal in found]

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        complete = False  # whether the picture is, up to its revision
        while not self._stopping.is_set():
            watch: Subscription | None = None
            try:
                if not complete:
                    self._load(Deadline.after(120))
                    self._succeeded("read")
                watch = self._store.follow(self._revision + 1, self._inbox.put)
                complete = self._follow()
            except ClusterMutexError as error:
                complete = False
                self._failed("read", error)
                self._stopping.wait(1)
            finally:
                if watch is not None:
                    watch.close()

    def _failed(self, what: str, why: object) -> None:
        if not self._troubles and not self._stopping.is_set():  # once for an outage
            log.warning("The locks can't be %s, which is tried every second: %s", what, why)
        self._troubles[what] = f"The locks can't be {what}, so that their picture grows old: {why}"

    def _succeeded(self, what: str) -> None:
        if self._troubles.pop(what, None) and not self._troubles:
            log.warning("The locks can be read and followed again.")

    def _load(self, deadline: Deadline) -> None:
        kinds: tuple[Kind, ...] = ("locks", "queue", "unlockers")
        if self._keep_removals or self._on_removal:
            kinds += ("removed",)
        first = not self._ready.is_set()
        fresh = _Reading(found=first, known=self._rows)
        for batch in self._store.load(kinds, deadline):
            fresh.add(batch)
        with self._lock:
            before, self._rows = self._rows, fresh.rows
            self._tickets, self._unlockers = {}, {}
            self._removals = {}
            for change in sorted(fresh.others, key=lambda each: each.created):
                self._apply_other(change)
            self._revision = fresh.revision
            self.loads += 1
        self._ready.set()
        names = before.keys() | fresh.rows.keys()
        changed = [
            Transition(name, before.get(name), fresh.rows.get(name), live=False)
            for name in names
            if before.get(name) is not fresh.rows.get(name)
        ]
        self._tell(changed, first=first)

    def _follow(self) -> bool:
        """Apply batches until stopped, or until one says that something may have been missed.

        Return whether the picture is complete up to its revision all the same.
        """
        while (batch := self._inbox.get()) is not None and not batch.missed:
            self._succeeded("followed")
            if batch.revision <= self._revision:
                continue  # of the watch before this one, and in the reading already
            with self._lock:
                changed = self._apply(batch)
                self._revision = batch.revision
            self._tell(changed)
        if batch is not None and batch.refused:
            self._failed("followed", batch.refused)
            return True  # and it is told a second later, so that this is no busy loop
        return False

    def _apply(self, batch: Batch) -> list[Transition]:
        changed: list[Transition] = []
        seen_at = monotonic()
        # Several transactions may come in one batch: taken apart by revision, so that a lock which
        # was released and taken again shows as both.
        for (_, kind, name), group in groupby(batch.changes, key=_step_of):
            changes = list(group)
            if kind != "locks":
                for change in changes:
                    self._apply_other(change)
                continue
            before = self._rows.get(name)
            after = _updated(before, name, changes, seen_at, found=False)
            if after is None:
                self._rows.pop(name, None)
            else:
                self._rows[name] = after
            changed.append(Transition(name, before, after, live=True))
        return changed

    def _apply_other(self, change: Change) -> None:
        name, part, value = change.name, change.part, change.value
        if change.kind == "queue":
            line = self._tickets.setdefault(name, {})
            if value is None:
                line.pop(part, None)
            else:
                readable = value if len(value) <= MAX_VALUE else b""
                line[part] = Ticket.read(name, part, readable, change.created)
            if not line:
                del self._tickets[name]
        elif change.kind == "unlockers":
            if value is None:
                self._unlockers.pop(name, None)
            else:
                self._unlockers[name] = value[:1000].decode(errors="replace")
        elif change.kind == "removed" and (self._keep_removals or self._on_removal):
            self._apply_removal(change)

    def _apply_removal(self, change: Change) -> None:
        key = (change.name, change.part)
        if change.value is None:
            self._removals.pop(key, None)
            return
        removal = Removal.read(*key, change.value)
        slim = replace(removal, holder=replace(removal.holder, backtrace=None))
        # Neither one that an earlier reading or the watch told already, nor one written again.
        if self._on_removal and self._revision < change.created == change.revision:
            self._untold.append(slim)
        if not self._keep_removals:
            return
        self._removals[key] = (change.created, slim)
        if len(self._removals) > self._keep_removals:
            del self._removals[min(self._removals, key=lambda each: self._removals[each][0])]

    def _tell(self, changed: list[Transition], *, first: bool = False) -> None:
        removals, self._untold = self._untold, []
        calls: list[Callable[[], None]] = []
        if removals and self._on_removal is not None:
            calls.append(partial(self._on_removal, removals, first))
        if changed and self._on_change is not None:
            calls.append(partial(self._on_change, changed))
        for call in calls:
            try:
                call()
            except Exception:  # a listener's mistake must not stop the picture
                log.exception("A listener of the table of all locks failed.")


class _Reading:
    """A reading of everything, put together from its pages."""

    def __init__(self, *, found: bool, known: dict[str, Row]) -> None:
        self.rows: dict[str, Row] = {}
        self.others: list[Change] = []
        self.revision = 0
        self._found = found
        self._known = known

    def add(self, batch: Batch) -> None:
        self.revision = batch.revision
        # When the page has arrived, not when it was asked for: nothing on it was written later.
        seen_at = monotonic()
        for (kind, name), group in groupby(batch.changes, key=_lock_of):
            if kind != "locks":
                self.others.extend(group)
                continue
            # A lock's keys may be cut by the end of a page: go on from the row so far.
            row = _updated(self.rows.get(name), name, list(group), seen_at, found=self._found)
            if row is not None:
                self.rows[name] = self._kept(row)

    def _kept(self, row: Row) -> Row:
        """Return the row that was known already, if nothing about it has changed."""
        known = self._known.get(row.holder.name)
        same = known is not None and (
            (known.holder, known.stamp_revision) == (row.holder, row.stamp_revision)
        )
        return known if known is not None and same else row


def _updated(
    row: Row | None, name: str, changes: Iterable[Change], seen_at: float, *, found: bool
) -> Row | None:
    """Return the row after these changes of one lock; None if nothing is left of it."""
    if row is None:
        row = Row(Holder(name), 0, seen_at, found)
    values: dict[str, bytes | None] = {}
    token, stamp_revision = row.holder.fencing_token, row.stamp_revision
    stamped = False
    for change in changes:
        values[change.part] = change.value
        stamped = stamped or change.part in _STAMPING
        if change.part == "uuid":
            token = change.revision if change.value is not None else 0
        elif change.part == "auto_unlock_at":
            stamp_revision = change.revision if change.value is not None else 0
    holder = row.holder.updated(values, token, backtrace=False)
    if holder.uuid is None and holder == Holder(name):
        return None
    if not stamped:
        return replace(row, holder=holder)
    return Row(holder, stamp_revision, seen_at, found)
