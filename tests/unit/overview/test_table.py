"""The picture of all locks is the same, followed or read at once, on however many pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.clocks import Deadline
from lockclient.model.holder import STAMPS, SUBKEYS, Holder
from lockclient.model.restore_marker import Restored
from lockclient.overview.rows import Transition
from lockclient.overview.table import Table
from lockclient.stores.protocol import Subscription
from lockclient.stores.service_protocol import Batch, Change, Kind, ServiceStore
from tests.support.processes import wait_until

Step = dict[tuple[str, str], bytes | None]

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


@dataclass
class Store:
    """What `Table` asks of a store, whose every page has so many keys."""

    page: int = 1000
    revision: int = 1
    term: int = 0
    kept: dict[tuple[str, str], Change] = field(default_factory=dict)
    notify: Callable[[Batch], None] = lambda _: None

    def write(self, step: Step) -> list[Change]:
        """Write these values, or delete them, in one transaction; return its events."""
        self.revision += 1
        events = []
        for (name, part), value in sorted(step.items()):
            if value is None and (name, part) not in self.kept:
                continue
            change = Change("locks", name, part, value, self.revision, self.revision)
            self.kept[name, part] = change
            events.append(change)
            if value is None:
                del self.kept[name, part]
        return events

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        there = [change for _, change in sorted(self.kept.items())]
        for start in range(0, len(there) + 1, self.page):
            yield Batch(tuple(there[start : start + self.page]), self.revision, term=self.term)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        class Watch:
            def close(self) -> None:
                pass

        self.notify = notify
        return Watch()

    def connected(self) -> bool:
        return True


def table_of(store: Store) -> Table:
    return Table(cast("ServiceStore", store))


def read(store: Store) -> dict[str, Holder]:
    """What one reading of everything tells."""
    table = table_of(store)
    table.read(Deadline.after(10))
    return {name: row.holder for name, row in table.rows().items()}


@given(st.data())
def test_what_was_followed_is_what_is_read(data: st.DataObject) -> None:
    """Whoever wrote or deleted what in which order, and however many steps came at once."""
    store = Store()
    table = table_of(store)
    table.start()
    try:
        assert table.wait_ready(30)
        wait_until(lambda: store.notify.__name__ == "put", what="the watch")
        together: list[Change] = []
        for names in data.draw(steps):
            step = {key: data.draw(st.sampled_from([None, *VALUES[key[1]]])) for key in names}
            together += store.write(step)
            if data.draw(st.booleans()) and together:
                store.notify(Batch(tuple(together), store.revision))
                together = []
        store.revision += 1
        store.notify(Batch(tuple(together), store.revision))
        wait_until(lambda: table.revision == store.revision, what="the last of it")
        assert {name: row.holder for name, row in table.rows().items()} == read(store)
    finally:
        table.stop()


def test_a_restore_that_somebody_told_of_is_heard_before_all_that_is_to_be_followed() -> None:
    """Else old rows would be believed for as long as that takes, and a live lock removed."""
    store = Store()
    store.write({("a", "uuid"): b"u", ("a", "hostname"): b"h", ("a", "alert_at"): b"7"})
    table, told = table_of(store), list[Transition]()
    table._listeners._on_change = told.extend
    table.start()
    try:
        wait_until(lambda: store.notify.__name__ == "put", what="the watch")
        before = table.rows()["a"]
        value = Restored("1", 0.0, "ann").value().encode()
        store.kept["restored", ""] = Change("restored", "", "", value, 99, 99)
        store.notify(
            Batch((), store.revision, started=True)
        )  # the watch goes on; nothing has come by it yet
        wait_until(table.restored, what="the news")
        after = table.rows()["a"]
        assert after.seen_at > before.seen_at
        assert after.found
        wait_until(lambda: told[-1].after is after, what="who listens to be told")
        store.notify(Batch((Change("restored", "", "", value, 99, 99),), 99))
        wait_until(lambda: table.revision == 99, what="the same by the watch")
        assert table.rows()["a"] is after, "it is one restore, heard twice"
    finally:
        table.stop()


def test_a_raft_term_that_went_back_is_noticed_though_it_rose_since_all_was_read() -> None:
    store = Store()
    table = table_of(store)
    table.start()
    try:
        wait_until(lambda: store.notify.__name__ == "put", what="the watch")
        store.term = 5
        store.notify(Batch((), store.revision, started=True))
        wait_until(lambda: table._term == 5, what="the term to be seen")
        assert table.restored() is None
        store.term = 2
        store.notify(Batch((), store.revision, started=True))
        wait_until(table.restored, what="the news")
    finally:
        table.stop()


@given(st.integers(1, 12), st.sampled_from(["a", "b"]))
def test_the_end_of_a_page_cuts_no_lock(page: int, broken: str) -> None:
    """Wherever it falls; and what is half is not made whole by a neighbour."""
    store = Store()
    sound = dict(zip(SUBKEYS, (b"u", b"h", b"30", b"60", VALUES["about"][0]), strict=True))
    for name in ("a", "b", "c"):
        store.write({(name, part): value for part, value in sound.items()})
    store.write({(broken, "uuid"): None})
    whole = read(store)
    store.page = page
    assert read(store) == whole
    assert [name for name, each in whole.items() if each.broken()] == [broken]
    assert not any(each.undecided() for each in whole.values())


def test_what_is_kept_of_a_lock_is_never_long() -> None:
    """A client may write 64 KiB into each value of each lock; what a picture has of it is short,
    read or followed, and what can't be cut is broken beyond its limit."""
    said = dict.fromkeys(("reason", "thread", "identity", "client"), "🔒" * 5000)
    about = json.dumps({**said, "needs": ["n" * 1000] * 50}, ensure_ascii=False).encode()
    store, long = Store(), b"h" * 60_000
    store.write({("a", "uuid"): b"u", ("a", "hostname"): long, ("a", "about"): about})
    store.write({("b", "uuid"): b"u" * 1025})
    holders = read(store)
    assert max(len(each) for each in repr(holders["a"]).split(",")) < 300
    assert len(repr(holders["a"])) < 5000
    assert holders["a"].uuid == "u"
    assert holders["b"].broken()
    assert len(holders["b"].uuid or "") < 50


def test_a_line_is_counted_whatever_comes_twice() -> None:
    """A ticket that is written again is one, and what a watch tells of the time before the reading
    is in that already."""
    store = Store()
    table = table_of(store)

    def ticket(part: str, revision: int, created: int, value: bytes | None = b"") -> Change:
        return Change("queue", "a", part, value, revision, created)

    store.kept["a", "x"] = ticket("x", 5, 5)
    store.revision = 7
    table.start()
    try:
        wait_until(lambda: store.notify.__name__ == "put", what="the watch")
        changes = (ticket("x", 5, 5), ticket("y", 8, 8), ticket("y", 9, 8), ticket("z", 9, 9))
        store.notify(Batch(changes, 9))
        store.notify(Batch((ticket("x", 10, 0, None),), 10))
        wait_until(lambda: table.revision == 10, what="the last of it")
        assert table.line("a") == (2, 10)
        store.notify(Batch((ticket("y", 11, 0, None), ticket("z", 11, 0, None)), 11))
        wait_until(lambda: table.revision == 11, what="the end of the line")
        assert table.waiters() == {}
    finally:
        table.stop()
