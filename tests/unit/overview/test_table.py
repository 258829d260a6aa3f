"""The table is the same, followed or read at once, on any number of pages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.clocks import Deadline
from lockclient.model.holder import STAMPS, SUBKEYS, Holder
from lockclient.overview import bounded_queue
from lockclient.overview.bounded_queue import BoundedQueue
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import Batch, Change, Kind
from lockclient.testing.memory_store import Follower
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until

VALUES = {
    "uuid": [b"u", b"v", b""],
    "hostname": [b"h", b"\xff"],
    "about": [b'{"auto_unlock_after": 60, "backtrace": "x"}', b"{}", b"[]"],
    **{stamp: [b"7", b"60.000", b"soon"] for stamp in STAMPS},
    "new": [b"?"],
}
"""Few of each, so that what has a meaning together comes together often."""
keys = st.tuples(
    st.sampled_from(["a", "b"]), st.sampled_from(["uuid", "uuid", "about", "about", *VALUES])
)
steps = st.lists(st.lists(keys, unique=True, min_size=1), min_size=2, max_size=12)


class Store(MemoryStore):
    """A store whose followers get events when the test says so."""

    term = 0

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        for batch in super().load(kinds, deadline):
            yield replace(batch, term=self.term)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Follower:
        self.follower, self.notify_follower = Follower(self, revision, notify), notify
        return self.follower

    def tell(self) -> None:
        """Tell in one batch of all that was written since the last one."""
        news, revision = self.model.since(self.follower.revision), self.model.revision
        self.follower.revision = revision + 1
        self.notify_follower(Batch(tuple(news), revision))

    def tell_that_it_goes_on(self) -> None:
        """Nothing has come by the watch yet."""
        self.notify_follower(Batch((), self.follower.revision - 1, started=True))

    def hold(self, name: str, **parts: bytes | None) -> None:
        self.write(*[("locks", name, part, value) for part, value in parts.items()])


@contextmanager
def following(store: MemoryStore, **how: Any) -> Iterator[Table]:
    table = Table(store, **how)
    table.start()
    try:
        assert table.wait_ready(30)
        if isinstance(store, Store):
            wait_until(lambda: hasattr(store, "follower"), what="the watch")
        yield table
    finally:
        table.stop()


def read(store: Store) -> dict[str, Holder]:
    """Return all holders by one reading of everything."""
    table = Table(store)
    table.read(Deadline.after(10))
    return {name: row.holder for name, row in table.rows().items()}


@given(st.data())
def test_a_followed_table_equals_a_read_table(data: st.DataObject) -> None:
    store = Store()
    with following(store) as table:
        for names in data.draw(steps):
            values = {key: data.draw(st.sampled_from([None, *VALUES[key[1]]])) for key in names}
            store.write(*[("locks", *key, value) for key, value in sorted(values.items())])
            if data.draw(st.booleans()):
                store.tell()
        store.write()
        store.tell()
        wait_until(lambda: table.revision == store.model.revision, what="the last of it")
        assert {name: row.holder for name, row in table.rows().items()} == read(store)


@pytest.mark.promise(number=2)
def test_a_long_silent_watch_restarts_all_times() -> None:
    store, told = Store(), list[Transition]()
    store.take("a")
    with following(store, max_silence=0.3, on_change=told.extend) as table:
        before = table.rows()["a"]
        store.write(("unlockers", "u", "", b"{}"))
        store.tell()
        wait_until(lambda: table.revision == store.model.revision, what="a heartbeat in time")
        assert table.rows()["a"] is before
        wait_until(lambda: not table.is_proven(), what="the silence")
        store.tell_that_it_goes_on()
        store.write(("unlockers", "u", "", b"{}"))
        store.tell()
        wait_until(table.is_proven, what="a heartbeat after it")
        after = table.rows()["a"]
        assert (after.holder, after.found) == (before.holder, True)
        assert after.seen_at > before.seen_at
        assert told[-1].after is after, "listeners have heard of it before"
        wait_until(lambda: not table.is_proven(), what="the next silence")
        table.resync()
        wait_until(table.is_proven, what="the reading")
        assert table.rows()["a"].seen_at > after.seen_at
        assert table.restored is None


@pytest.mark.promise(number=2)
def test_a_restore_within_a_long_silence_is_read_though_no_revision_went_back() -> None:
    store = Store()
    store.take("a")
    before = dict(store.model.kept)
    with following(store, max_silence=0.3) as table:
        restored = table.rows()["a"].holder
        store.hold("a", alert_at=b"60.000")
        store.tell()
        wait_until(lambda: table.rows()["a"].holder != restored, what="the heartbeat")
        wait_until(lambda: not table.is_proven(), what="the silence")
        store.model.kept = before
        store.tell_that_it_goes_on()
        store.write(("unlockers", "u", "", b"{}"))
        store.tell()
        wait_until(table.is_proven, what="an announcement after it")
        assert table.rows()["a"].holder == restored


def test_a_raft_term_that_went_back_shows_a_restore() -> None:
    store = Store()
    with following(store) as table:
        store.term = 5
        store.tell_that_it_goes_on()
        store.hold("a", uuid=b"u")
        store.tell()
        wait_until(lambda: "a" in table.rows(), what="all before it to be seen")
        assert table.restored is None
        store.term = 2
        store.tell_that_it_goes_on()
        wait_until(lambda: table.restored, what="the news")


def test_a_lock_revision_that_went_back_shows_a_restore() -> None:
    store = Store()
    store.take("back")
    store.take("other")
    with following(store) as table:
        other = table.rows()["other"]
        kept = store.model.kept
        for key in [key for key in kept if key[:2] == ("locks", "back")]:
            kept[key] = kept[key]._replace(revision=1, created=1)
        loads = table.loads
        table.resync()
        wait_until(lambda: table.loads > loads, what="another reading")
        assert table.restored
        assert table.rows()["other"].seen_at > other.seen_at
        assert table.rows()["other"].found


def test_a_compacted_watch_restarts_all_times_and_a_resync_does_not() -> None:
    store, believed, followed = Store(), list[bool](), list[Table]()
    store.take("a")

    def told(_: list[Transition]) -> None:
        believed.extend(table.connected() for table in followed)

    with following(store, on_change=told) as table:
        followed.append(table)
        row, loads = table.rows()["a"], table.loads
        table.resync()
        wait_until(lambda: table.loads > loads, what="another reading")
        assert table.rows()["a"] is row
        store.notify_follower(Batch((), 0, gap=True, missed=True))
        wait_until(lambda: table.rows()["a"] is not row, what="the row that counts anew")
        again = table.rows()["a"]
        assert (again.holder, again.found) == (row.holder, True)
        assert again.seen_at > row.seen_at
        wait_until(table.connected, what="the picture to be believed again")
        assert believed == [False]
        assert table.restored is None


@given(st.integers(1, 12), st.sampled_from(["a", "b"]))
def test_the_end_of_a_page_cuts_no_lock(page: int, broken: str) -> None:
    """Wherever it falls; and what is half is not made whole by a neighbour."""
    store = Store()
    sound = dict(zip(SUBKEYS, (b"u", b"h", b"30", b"60", VALUES["about"][0]), strict=True))
    for name in ("a", "b", "c"):
        store.hold(name, **sound)
    store.hold(broken, uuid=None)
    whole = read(store)
    store.page_size = page
    assert read(store) == whole
    assert [name for name, holder in whole.items() if holder.broken()] == [broken]
    assert not any(holder.undecided() for holder in whole.values())


def test_the_text_kept_of_a_lock_is_bounded() -> None:
    said = dict.fromkeys(("reason", "thread", "identity", "client"), "🔒" * 5000)
    about = json.dumps(said, ensure_ascii=False).encode()
    store = Store()
    store.hold("a", uuid=b"u", hostname=b"h" * 60_000, about=about)
    store.hold("b", uuid=b"u" * 1025)
    holders = read(store)
    assert max(len(fact) for fact in repr(holders["a"]).split(",")) < 300
    assert len(repr(holders["a"])) < 5000
    assert holders["a"].uuid == "u"
    assert holders["b"].broken()
    assert len(holders["b"].uuid or "") < 50


def test_repeated_events_do_not_change_the_length_of_a_queue() -> None:
    store = Store()
    store.wait("a", "x")
    with following(store) as table:
        store.wait("a", "y")
        store.write(("queue", "a", "y", b"{}"), ("queue", "a", "z", b"{}"))
        store.follower.revision = 0
        store.tell()
        store.write(("queue", "a", "x", None))
        store.tell()
        wait_until(lambda: table.revision == store.model.revision, what="the last of it")
        assert table.queue_length("a") == (2, store.model.revision)
        store.write(("queue", "a", "y", None), ("queue", "a", "z", None))
        store.tell()
        wait_until(lambda: table.waiters() == {}, what="the end of the line")


# ---------------------------------------------------------------- the newest removals

SCRAMBLED = [5.0, 2.0, 9.0, 1.0, 7.0, 3.0, 8.0, 4.0, 6.0]


class Polled(MemoryStore):
    """A store that is looked at, of which nobody knows what was written first."""

    can = Capabilities("Made-up", watch=False)


def recorded(store: MemoryStore, *times: float) -> MemoryStore:
    for at in times:
        store.removed(f"lock-{at:g}", "uuid", removed_at=at)
    return store


def shown(table: Table) -> list[float | None]:
    return [removal.removed_at for removal in table.removals()]


@pytest.mark.parametrize("most", [3, 9, 100])
@pytest.mark.parametrize(
    ("store", "newest"), [(Polled, sorted(SCRAMBLED)), (MemoryStore, SCRAMBLED)]
)
def test_removals_are_by_time_where_the_order_of_writes_is_not_known(
    store: type[MemoryStore], newest: list[float], most: int
) -> None:
    """In whatever order they are found; of more than are kept it is the oldest that go."""
    table = Table(recorded(store(), *SCRAMBLED), removals=most)
    table.read(Deadline.after(10))
    assert shown(table) == newest[::-1][:most]
    assert table.recorded() == len(SCRAMBLED)


def test_a_removal_found_later_is_sorted_by_its_time() -> None:
    store = recorded(Polled(), 20.0, 40.0, 30.0)
    with following(store, removals=3) as table:
        recorded(store, 10.0, 35.0)
        wait_until(lambda: shown(table) == [40.0, 35.0, 30.0])
        store.write(("removed", "lock-30", "uuid", None))
        wait_until(lambda: shown(table) == [40.0, 35.0])
        recorded(store, 36.0)
        wait_until(lambda: shown(table) == [40.0, 36.0, 35.0])
        recorded(store, *range(41, 141))
        wait_until(lambda: shown(table) == [140.0, 139.0, 138.0])
        wait_until(lambda: table.recorded() == 105)


# ---------------------------------------------------------------- `seen_at` is not before the write


class SlowStore(MemoryStore):
    """A store whose second reading hangs until it is let go, and then finds a new push."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_once = False
        self.let_go = threading.Event()
        self.pushed_at = 0.0

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        if self.asked_once and "locks" in kinds:
            self.let_go.wait(30)
            self.push("a")
            self.pushed_at = time.monotonic()
        self.asked_once = True
        yield from super().load(kinds, deadline)


def test_a_push_during_a_slow_read_counts_from_the_push() -> None:
    store = SlowStore()
    store.take("a")
    table = Table(store)
    table.start()
    try:
        assert table.wait_ready(30)
        table.resync()
        time.sleep(0.3)  # the reading has begun, and the holder pushes only after this
        store.let_go.set()
        wait_until(lambda: table.loads == 2, what="the second reading")
        row = table.row("a")
        assert row is not None
        assert not row.found
        assert not row.holder.broken()
        assert row.seen_at >= store.pushed_at
    finally:
        table.stop()


# ---------------------------------------------------------------- what is not taken in yet


def batch(revision: int, size: int = 0) -> Batch:
    return Batch((Change("locks", "a", "about", b"x" * size, revision, revision),), revision)


def test_a_producer_waits_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_queue, "ROOM", 10_000)
    box, brought = BoundedQueue(), list[int]()

    def bring() -> None:
        for revision in range(20):
            box.put(batch(revision, 4000))
            brought.append(revision)

    thread = threading.Thread(target=bring, daemon=True)
    thread.start()
    wait_until(lambda: len(brought) == 3, what="as many as there is room for")
    box.put(Batch((), 0, gap=True), wait=False)  # who only asks for something is not kept
    found: list[int] = []
    while len(found) < 20:
        if (got := box.get()) is not None and not got.gap:
            found.append(got.revision)
        assert len(brought) <= len(found) + 4
    assert found == list(range(20))
    thread.join(30)
    assert not thread.is_alive()


def test_its_end_lets_everybody_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_queue, "ROOM", 0)
    box = BoundedQueue()
    box.put(batch(1))
    thread = threading.Thread(target=box.put, args=(batch(2),), daemon=True)
    thread.start()
    box.close()
    thread.join(30)
    assert not thread.is_alive()
    assert box.get() is None
