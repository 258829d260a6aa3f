"""Emulates a watch by polling: `load` and `follow` for stores that have none.

A look reads all that services follow, and what has changed since the look before it is told as a
watch would tell it: tables, unlockers and dashboards know no difference. What is written and
overwritten between two looks nobody sees, but for removals, of which there are records.

**Revisions.** A store like that has no number of its own that grows with each write, but a clock.
So the revision of a look is the store's own time at which it began, in 4096ths of a millisecond,
and all that it finds has that revision. They grow, those of all processes can be compared, and
`load`, `follow` and `announce` keep what is promised of revisions: whatever was written before a
moment is shown by each look that began after it. By the numbers that requests of this store
compare, its versions, a change is named besides (`Change.version`).

**How old the picture is** each batch says by itself (`Batch.known_at`), also one in which nothing
has changed: when its look began, on our monotonic clock.
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
from lockclient.stores.protocol import Subscription
from lockclient.stores.service_protocol import Batch, Change, Kind
from lockclient.threads.log_queue import get_logger
from lockclient.threads.reentry import mark_thread

log = get_logger(__name__)

POLL_INTERVAL_S: Final = 5.0
"""Seconds from the begin of one look to that of the next, if nobody says otherwise."""
POLL_TIMEOUT_S: Final = 30.0
"""Seconds for a look: as long as one is tried no other one begins."""
HINT_DELAY_S: Final = 0.2
"""Seconds from a hint to the look for which it is a reason: whoever waited for that has it then."""
HINTED_POLLS_SHARE: Final = 4
"""Of the time at most one part in so many goes into looks for which hints are the reason."""
CLOCK_WINDOW_S: Final = 60.0
"""Seconds for which an answer tells how the store's clock and ours are to each other."""
REVISIONS_PER_S: Final = 4096 * 1000
"""Of a second. (That makes revisions of less than 2 to the 53rd: all JSON has them whole.)"""

Key = tuple[Kind, str, str]
"""Of an item: its kind, name and part."""


class StoredItem(NamedTuple):
    """One item of the store: a lock with all its subkeys, or one value.

    Attributes:
        kind, name, part: as in `Change`; a lock has no part, since it has all of them.
        version: another one each time that anything of it is written.
        at: when it was written, by the store's clock.
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


class Source(Protocol):
    """The store, as looks read it; each page is asked for as it is wanted.

    An item whose version is `known` may come without its values: nobody asks for them.
    """

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        """Read all locks, what stands in the place of some (`withdrawn`), and all unlockers."""

    def records(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        """Read all records of removals, as lists have them."""

    def record_version(self) -> int:
        """Return a number that is another one when `live` has read signs of a new record."""

    def now(self) -> float:
        """Return the store's time, Unix seconds; 0 before its first answer."""


HintSource = Callable[[Callable[[], None]], Subscription]

LIVE: Final[frozenset[Kind]] = frozenset(("locks", "withdrawn", "unlockers"))
"""What is read by each look."""


@dataclass(frozen=True, slots=True)
class PollSnapshot:
    """The items that one poll found; `records` are those reported until then; None: they are not
    followed."""

    revision: int
    items: Mapping[Key, KnownItem]
    records: int | None


class StoreClock:
    """The store's clock, by ours.

    An answer tells the time in whole seconds, and takes a while. So what is taken for the store's
    time is never ahead of it: the most that any of the last answers made of it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._began = monotonic()
        self._before, self._ahead = -inf, -inf

    def ahead(self) -> float:
        """Return how many seconds it is ahead of our monotonic clock."""
        said, here = self._now(), monotonic()
        with self._lock:
            if here > self._began + CLOCK_WINDOW_S:
                self._began, self._before, self._ahead = here, self._ahead, -inf
            self._ahead = max(self._ahead, said - here if said else -inf)
            return max(self._before, self._ahead, -here)


class Polling:
    """Looks at a store.

    Args:
        source: the store.
        name: of its threads.
        hints: calls what it is given at each hint that something has changed, if there are any.
    """

    def __init__(self, source: Source, name: str, hints: HintSource | None = None) -> None:
        self.every = POLL_INTERVAL_S
        self.hints = hints
        self.clock = StoreClock(source.now)
        self._source = source
        self._name = name
        self._lock = threading.Lock()
        self.seen = PollSnapshot(0, {}, None)
        """At the last look: another follower may go on from there."""
        self._newest = 0
        self._following: list[Following] = []
        self.fine = False
        """Whether the last look was answered."""
        self.failures = 0

    def revision_at(self, moment: float) -> int:
        """Return the revision of a monotonic moment, which looks that begin later show.

        0 before the store's first answer: nobody knows its time.
        """
        return max(0, int((moment + self.clock.ahead()) * REVISIONS_PER_S))

    def _next(self, begun: float) -> int:
        """Return the revision of a look that began then."""
        revision = self.revision_at(begun)
        with self._lock:
            self._newest = max(revision, self._newest + 1)
            return self._newest

    # ------------------------------------------------------------ reading all

    def load(self, kinds: Iterable[Kind], deadline: Deadline) -> Iterator[Batch]:
        """See `ServiceStore.load`: by a look of its own."""
        wanted, begun, source = set(kinds), monotonic(), self._source
        # Before: what is told of meanwhile is read once more.
        record_version = source.record_version()
        before, items, revision = self.seen.items, dict[Key, KnownItem](), 0
        pages = chain(
            source.live(deadline, {}) if wanted & LIVE else (),
            source.records(deadline, {}) if "removed" in wanted else (),
        )
        for page in pages:
            revision = revision or self._next(begun)
            for kind in dict.fromkeys(item.kind for item in page):
                changes: list[Change] = []
                for item in (found for found in page if found.kind == kind):
                    # What was told is no news, though it may have been written during the look that
                    # found it. All else is put in order by the store's own time.
                    known = before.get(item.key)
                    first = min(
                        int(item.at * REVISIONS_PER_S), known.revision if known else revision
                    )
                    items[item.key] = KnownItem(item.version, first, tuple(item.values))
                    changes += _changes(item, first, first)
                if kind in wanted:
                    yield Batch(tuple(changes), revision, known_at=begun)
        revision = revision or self._next(begun)
        if pages_asked := wanted & {*LIVE, "removed"}:
            self.fine = True
        if "locks" in pages_asked:
            self.seen = PollSnapshot(
                revision, items, record_version if "removed" in wanted else None
            )
        yield Batch((), revision, known_at=begun)

    # ------------------------------------------------------------ following

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Following:
        seen = self.seen
        following = Following(
            self, seen if seen.revision == revision - 1 else None, notify, self._name
        )
        with self._lock:
            self._following = [running for running in self._following if not running.closed]
            self._following.append(following)
        following.start()
        return following

    def look(self, before: PollSnapshot, deadline: Deadline) -> tuple[Batch, PollSnapshot]:
        """Look once; return what has changed since then, and what was seen now."""
        begun, source = monotonic(), self._source
        items, changed = dict[Key, KnownItem](), list[StoredItem]()
        _compare(source.live(deadline, before.items), before, items, changed)
        record_version = source.record_version()
        # After them: whoever removes a lock writes the record before it can be seen to be gone.
        if before.records not in (None, record_version):
            _compare(source.records(deadline, before.items), before, items, changed)
        else:
            records = (entry for entry in before.items.items() if entry[0][0] == "removed")
            items.update(records)
        revision = self._next(begun)
        changes: list[Change] = []
        for item in sorted(changed, key=attrgetter("at")):
            known = before.items.get(item.key)
            first = revision if known is None else known.revision
            items[item.key] = KnownItem(item.version, first, tuple(item.values))
            changes += _changes(item, revision, first)
            if known is not None:
                changes += _gone(item.key, [*{*known.parts} - {*item.values}], revision)
        for key in before.items.keys() - items.keys():
            changes += _gone(key, before.items[key].parts, revision)
        batch = Batch(tuple(changes), revision, known_at=begun)
        return batch, PollSnapshot(
            revision, items, None if before.records is None else record_version
        )

    def look_soon(self) -> None:
        """Look at once, and not only when it is time: something has just been written."""
        for following in self._following:
            following.look_soon()

    def close(self) -> None:
        """End all that follows."""
        for following in self._following:
            following.close()


class Following(threading.Thread):
    """Looks again and again, and tells what has changed.

    A look that is not answered tells nothing: the picture grows old, which it says. What is refused
    is told as a watch's refusal, and ends it, as does whatever nobody thought of.
    """

    def __init__(
        self,
        polling: Polling,
        seen: PollSnapshot | None,
        notify: Callable[[Batch], None],
        name: str,
    ) -> None:
        super().__init__(name=f"clustermutex-{name}-looks", daemon=True)
        self._polling = polling
        self._seen = seen
        self._notify = notify
        self._wakeup = threading.Event()
        self._soon = self._hinted = False
        self._hints: Subscription | None = None
        self.closed = False

    def look_soon(self) -> None:
        """See `Polling.look_soon`; one that is under way may have read it already, or not."""
        self._soon = True
        self._wakeup.set()

    def hint(self) -> None:
        """Look sooner: somebody says that something has changed, and nothing else of it."""
        self._hinted = True
        self._wakeup.set()

    def close(self) -> None:
        self.closed = True
        self._wakeup.set()

    def run(self) -> None:
        """Look until it is closed."""
        mark_thread()
        if self._seen is None:  # nobody knows what was there at that revision
            return self._tell(Batch((), 0, gap=True))
        try:
            self._keep_looking(self._seen)
        finally:
            self._unsubscribe_hints()

    def _keep_looking(self, seen: PollSnapshot | None) -> None:
        begun = ended = monotonic()
        self._subscribe_hints()
        while seen is not None:
            self._rest(begun + self._polling.every, begun + HINTED_POLLS_SHARE * (ended - begun))
            if self.closed:
                return
            self._subscribe_hints()  # before the look: nobody tells of what is written during it
            begun = monotonic()
            seen = self._look(seen)
            ended = monotonic()

    def _rest(self, due: float, least: float) -> None:
        """Wait until the next look is due: sooner after a hint, but not before `least`, and at once
        if one is asked for."""
        while not (self.closed or self._soon) and (left := due - monotonic()) > 0:
            self._wakeup.wait(left)
            self._wakeup.clear()  # first: what rings from here on is found by the next turn
            if self._hinted:
                self._unsubscribe_hints()  # one is enough, however many there are
                self._hinted = False
                due = min(due, max(monotonic() + HINT_DELAY_S, least))
        self._soon = False  # before the look: it reads what was written by now

    def _subscribe_hints(self) -> None:
        if self._hints is None and self._polling.hints is not None:
            self._hints = self._polling.hints(self.hint)

    def _unsubscribe_hints(self) -> None:
        if self._hints is not None:
            self._hints.close()
            self._hints = None

    def _look(self, before: PollSnapshot) -> PollSnapshot | None:
        """Look once, and tell; return what was seen, or None if this ends."""
        polling, refused = self._polling, ""
        try:
            batch, seen = polling.look(before, Deadline.after(POLL_TIMEOUT_S))
        except (StoreUnavailable, StoreError) as error:
            if isinstance(error, StoreUnavailable) or error.passing:
                polling.fine = False
                polling.failures += 1
                return before
            refused = str(error)
        except Exception:
            log.exception("A look at all locks failed; everything is read again.")
        else:
            polling.fine = True
            self._tell(batch)
            polling.seen = seen  # after it: who goes on from what was seen has been told of it
            return seen
        polling.fine = False
        polling.failures += 1
        self._tell(Batch((), 0, gap=True, refused=refused))
        return None

    def _tell(self, batch: Batch) -> None:
        if not self.closed:
            self._notify(batch)


def _compare(
    pages: Iterator[Sequence[StoredItem]],
    before: PollSnapshot,
    items: dict[Key, KnownItem],
    changed: list[StoredItem],
) -> None:
    """Take what is as before into `items`, and all else into `changed`."""
    for item in chain.from_iterable(pages):
        known = before.items.get(item.key)
        if known is not None and known.version == item.version:
            items[item.key] = known
        else:
            changed.append(item)


def _changes(item: StoredItem, revision: int, created: int) -> list[Change]:
    return [
        Change(item.kind, item.name, part, value, revision, created, version)
        for part, (value, version) in item.values.items()
    ]


def _gone(key: Key, parts: Iterable[str], revision: int) -> list[Change]:
    kind, name, _ = key
    return [Change(kind, name, part, None, revision, revision) for part in parts]
