"""Polling: `load` and `follow` of stores without a watch.

A poll reads all that services follow, and its differences to the poll before are one batch: the
same changes as from a watch, but for values that were overwritten between two polls.

**Revisions.** Such a store numbers no writes, but it has a clock. The revision of a poll is the
store's time at which the poll began, in 4096ths of a millisecond, and every item that it finds has
that revision. So revisions grow and can be compared between processes, and a poll shows everything
that was written before it began. Requests compare a number of their own: `Change.version`.

**Age.** Each batch, also an empty one, has the time at which its poll began (`Batch.known_at`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Found
from lockclient.stores.mutex_store import Subscription
from lockclient.stores.service_store import Batch, Change, Kind
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import Repeating, WorkerPool
from lockclient.threads.reentrancy import briefly

log = get_logger(__name__)

POLL_INTERVAL_S: Final = 5.0
"""Seconds from the begin of one poll to the begin of the next, by default."""
POLL_TIMEOUT_S: Final = 30.0
"""Seconds for the answers to a poll."""
HINT_DELAY_S: Final = 0.2
"""Seconds from a hint to its poll: what follows the hinted change is read with it."""
HINTED_POLLS_SHARE: Final = 4
"""Polls because of hints take at most one part in so many of the time."""
CLOCK_WINDOW_S: Final = 60.0
"""Seconds for which an answer is used to compare the store's clock with ours."""
REVISIONS_PER_S: Final = 4096 * 1000
"""Revisions in one second: they stay below 2 to the 53rd, which JSON keeps exactly."""

Key = tuple[Kind, str, str]
"""The kind, name and part of an item."""


class StoredItem(NamedTuple):
    """One item of the store: a lock with all its subkeys, or one value.

    Attributes:
        kind, name, part: as in `Change`; a lock has no part, since it has all of them.
        version: another number after each write of the item.
        at: the time of the write, by the store's clock.
        values: by part, with the revisions that requests of the store compare.
    """

    kind: Kind
    name: str
    part: str
    version: int
    at: float
    values: Mapping[str, Found]

    @property
    def key(self) -> Key:
        """The item's key."""
        return self.kind, self.name, self.part


class KnownItem(NamedTuple):
    """A known item; its revision is that of the poll that found it."""

    version: int
    revision: int
    parts: tuple[str, ...]


Known = Mapping[Key, KnownItem]
Pages = Iterator[Sequence[StoredItem]]


class Source(Protocol):
    """Reads the store for polls, each page when the caller asks for it.

    An item whose version is `known` may come without its values.
    """

    def live(self, deadline: Deadline, known: Known) -> Pages:
        """Read all locks, the tombstones in the place of locks, and all announcements."""

    def records(self, deadline: Deadline, known: Known) -> Pages:
        """Read all removal records, without long texts."""

    def record_version(self) -> int:
        """Return a number that changes when `live` has read signs of a new removal record."""

    def now(self) -> float:
        """Return the store's time, Unix seconds; 0 before its first answer."""


HintSource = Callable[[Callable[[], None]], Subscription]
"""Calls a function at each hint that something has changed."""

LIVE: Final[frozenset[Kind]] = frozenset(("locks", "withdrawn", "unlockers"))
"""The kinds that every poll reads."""


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    """The items that one poll found, and the `record_version` of the removal records among them.

    Without a `record_version` the records are not followed.
    """

    revision: int
    items: Known
    record_version: int | None


class StoreClock:
    """The store's clock, by ours.

    An answer has the time in whole seconds and takes a while to arrive. So each answer gives a
    lower bound of the store's time, and the highest bound of the last answers is used.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._began = monotonic()
        self._before, self._ahead = -inf, -inf  # bounds of the last window, and of this one

    def ahead(self) -> float:
        """Return how many seconds the store's clock is ahead of our monotonic clock."""
        theirs, ours = self._now(), monotonic()
        with briefly(self._lock):
            if ours > self._began + CLOCK_WINDOW_S:
                self._began, self._before, self._ahead = ours, self._ahead, -inf
            self._ahead = max(self._ahead, theirs - ours if theirs else -inf)
            return max(self._before, self._ahead, -ours)


class Polling:
    """The polls of one store.

    Args:
        source: reads the store.
        pool: its threads poll.
        hints: where the store publishes hints.
    """

    def __init__(self, source: Source, pool: WorkerPool, hints: HintSource | None = None) -> None:
        self.interval_s = POLL_INTERVAL_S
        self.clock = StoreClock(source.now)
        self.snapshot = PollSnapshot(0, {}, None)
        """The snapshot of the last poll, from which another follower may continue."""
        self.is_reachable = False
        """True if the last poll was answered."""
        self.failures = 0
        self._source = source
        self._pool = pool
        self._hints = hints
        self._lock = threading.Lock()
        self._newest = 0
        self.followers: dict[Follower, None] = {}

    def revision_at(self, moment: float) -> int:
        """Return the revision of a monotonic moment; polls that begin later have a higher one.

        0 before the store's first answer, when its time is unknown.
        """
        return max(0, int((moment + self.clock.ahead()) * REVISIONS_PER_S))

    def _next_revision(self, begun: float) -> int:
        revision = self.revision_at(begun)
        with briefly(self._lock):
            self._newest = max(revision, self._newest + 1)
            return self._newest

    def load(self, kinds: Iterable[Kind], deadline: Deadline) -> Iterator[Batch]:
        """See `ServiceStore.load`: read all, in a poll of its own."""
        wanted, begun, source = set(kinds), monotonic(), self._source
        # Read before the records: a record written meanwhile is read again by the next poll.
        record_version = source.record_version()
        known, items, revision = self.snapshot.items, dict[Key, KnownItem](), 0
        pages = chain(
            source.live(deadline, {}) if wanted & LIVE else (),
            source.records(deadline, {}) if "removed" in wanted else (),
        )
        for page in pages:
            revision = revision or self._next_revision(begun)
            changes: dict[Kind, list[Change]] = {}
            for item in page:
                # Items are ordered by the store's own time. An item that an earlier poll found is
                # no newer than that poll, though it may have been written during it.
                before = known.get(item.key)
                found_at = before.revision if before else revision
                created = min(int(item.at * REVISIONS_PER_S), found_at)
                items[item.key] = KnownItem(item.version, created, tuple(item.values))
                if item.kind in wanted:
                    changes.setdefault(item.kind, []).extend(_writes(item, created, created))
            for found in changes.values():
                yield Batch(tuple(found), revision, known_at=begun)
        revision = revision or self._next_revision(begun)
        if wanted & {*LIVE, "removed"}:
            self.is_reachable = True
        if "locks" in wanted:
            followed = record_version if "removed" in wanted else None
            self.snapshot = PollSnapshot(revision, items, followed)
        yield Batch((), revision, known_at=begun)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Follower:
        """See `ServiceStore.follow`; it continues from the last poll's snapshot alone."""
        snapshot = self.snapshot
        known = snapshot if snapshot.revision == revision - 1 else None
        return Follower(self, known, notify, self._pool, self._hints)

    def poll(self, before: PollSnapshot, deadline: Deadline) -> tuple[Batch, PollSnapshot]:
        """Read the store; return the changes since a snapshot, and the new snapshot."""
        begun, source = monotonic(), self._source
        items, changed = dict[Key, KnownItem](), list[StoredItem]()
        _compare(source.live(deadline, before.items), before, items, changed)
        record_version = source.record_version()
        # Read after the locks: a removal writes its record before it deletes the lock.
        if before.record_version not in (None, record_version):
            _compare(source.records(deadline, before.items), before, items, changed)
        else:
            items.update(entry for entry in before.items.items() if entry[0][0] == "removed")
        revision = self._next_revision(begun)
        changes: list[Change] = []
        for item in sorted(changed, key=attrgetter("at")):
            known = before.items.get(item.key)
            created = revision if known is None else known.revision
            items[item.key] = KnownItem(item.version, created, tuple(item.values))
            changes += _writes(item, revision, created)
            if known is not None:
                changes += _deletions(item.key, {*known.parts} - {*item.values}, revision)
        for key in before.items.keys() - items.keys():
            changes += _deletions(key, before.items[key].parts, revision)
        followed = None if before.record_version is None else record_version
        batch = Batch(tuple(changes), revision, known_at=begun)
        return batch, PollSnapshot(revision, items, followed)

    def poll_soon(self) -> None:
        """Have each follower poll at once: this process has just written something."""
        for follower in list(self.followers):
            follower.poll_soon()

    def close(self) -> None:
        """End all followers."""
        for follower in list(self.followers):
            follower.close()


class Follower:
    """Polls again and again, and notifies of the changes.

    A poll without an answer notifies of nothing, so `Batch.known_at` grows old. A refusal ends the
    follower with a gap that has its reason; an unexpected error ends it with a gap.
    """

    def __init__(
        self,
        polling: Polling,
        snapshot: PollSnapshot | None,
        notify: Callable[[Batch], None],
        pool: WorkerPool,
        hints: HintSource | None,
    ) -> None:
        self.closed = False
        self._polling = polling
        self._snapshot = snapshot
        self._notify = notify
        self._hints = hints
        self._subscription: Subscription | None = None
        self._next_at = monotonic() + polling.interval_s
        self._least_at = -inf  # no poll because of a hint before it
        self._hinted_at = inf
        self._is_asked = False
        self._repeating = Repeating(pool.submit, self._run)
        polling.followers[self] = None  # before the first run, which may remove it
        self._repeating.run_within(0.0)

    def poll_soon(self) -> None:
        """Poll at once, after the end of a poll that runs."""
        self._is_asked = True
        self._repeating.run_within(0.0)

    def _hint(self) -> None:
        if self._hinted_at == inf:
            self._hinted_at = monotonic()
            self._repeating.run_within(0.0)

    def close(self) -> None:
        """End it."""
        self.closed = True
        self._repeating.run_within(0.0)

    # ------------------------------------------------------------ the pool's thread

    def _run(self) -> float | None:
        if self._snapshot is None:  # the state at that revision is unknown
            self._end(Batch((), 0, gap=True))
        if self.closed or self._snapshot is None:
            self._unsubscribe()
            self._polling.followers.pop(self, None)
            return None
        if (left := self._seconds_left()) <= 0:
            self._poll(self._snapshot)
            return 0.0
        if self._hinted_at < inf:  # one hint before each poll is enough
            self._unsubscribe()
        else:
            self._subscribe()
        return left

    def _seconds_left(self) -> float:
        hinted_at = max(self._hinted_at + HINT_DELAY_S, self._least_at)
        return -inf if self._is_asked else min(self._next_at, hinted_at) - monotonic()

    def _poll(self, before: PollSnapshot) -> None:
        begun = monotonic()
        # Reset first: a hint from here on may be of a change that this poll misses.
        self._is_asked, self._hinted_at = False, inf
        self._next_at = begun + self._polling.interval_s
        self._subscribe()
        try:
            self._notify_of_changes(before)
        finally:
            self._least_at = begun + HINTED_POLLS_SHARE * (monotonic() - begun)

    def _notify_of_changes(self, before: PollSnapshot) -> None:
        polling, refused = self._polling, ""
        try:
            batch, snapshot = polling.poll(before, Deadline.after(POLL_TIMEOUT_S))
        except (StoreUnavailable, StoreError) as error:
            if isinstance(error, StoreUnavailable) or error.passing:
                polling.is_reachable = False
                polling.failures += 1
                return
            refused = str(error)
        except Exception:
            log.exception("A poll of all locks failed; everything is read again.")
        else:
            polling.is_reachable = True
            if not self.closed:
                self._notify(batch)
            # Afterwards: a follower that continues from it has been notified.
            self._snapshot = polling.snapshot = snapshot
            return
        polling.is_reachable = False
        polling.failures += 1
        self._end(Batch((), 0, gap=True, refused=refused))

    def _end(self, last: Batch) -> None:
        if not self.closed:
            self.closed = True
            self._notify(last)

    def _subscribe(self) -> None:
        if self._subscription is None and self._hints is not None:
            self._subscription = self._hints(self._hint)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None


def _compare(
    pages: Pages,
    before: PollSnapshot,
    items: dict[Key, KnownItem],
    changed: list[StoredItem],
) -> None:
    """Put known items into `items`, and all others into `changed`."""
    for item in chain.from_iterable(pages):
        known = before.items.get(item.key)
        if known is not None and known.version == item.version:
            items[item.key] = known
        else:
            changed.append(item)


def _writes(item: StoredItem, revision: int, created: int) -> list[Change]:
    return [
        Change(item.kind, item.name, part, value, revision, created, version)
        for part, (value, version) in item.values.items()
    ]


def _deletions(key: Key, parts: Iterable[str], revision: int) -> list[Change]:
    kind, name, _ = key
    return [Change(kind, name, part, None, revision, revision) for part in parts]
