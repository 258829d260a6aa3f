"""The newest removals of a picture: by the store's order, or by their times where it has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from lockclient.model.clocks import Deadline
from lockclient.overview.table import Table
from lockclient.stores.protocol import Capabilities, Subscription
from lockclient.stores.service_protocol import Batch, Change, Kind, ServiceStore
from tests.support.processes import wait_until

SCRAMBLED = [5.0, 2.0, 9.0, 1.0, 7.0, 3.0, 8.0, 4.0, 6.0]


class Store:
    """What `Table` asks of a store that has these records, and later those that it is told of."""

    def __init__(self, times: Sequence[float], *, watch: bool) -> None:
        self.can = Capabilities("Made-up", watch=watch)
        self.times = times
        self.notify: Callable[[Batch], None] | None = None

    def record(self, at: float, revision: int) -> Change:
        """Return a record of a removal, as it is read or told."""
        value = json.dumps({"removed_at": at, "how": "force-unlock"}).encode()
        return Change("removed", f"lock-{at:g}", "uuid", value, revision, revision)

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        """One that is looked at has all records since the same moment."""
        revisions = range(1, 100) if self.can.watch else [99] * len(self.times)
        found = map(self.record, self.times, revisions)
        yield Batch(tuple(found), 99)

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        class Watch:
            def close(self) -> None:
                pass

        self.notify = notify
        return Watch()

    def tell(self, revision: int, *times: float) -> None:
        """Tell of more records."""
        notify = wait_until(lambda: self.notify)
        notify(Batch(tuple(self.record(at, revision) for at in times), revision))


def shown(table: Table) -> list[float | None]:
    return [each.removed_at for each in table.removals()]


@pytest.mark.parametrize("most", [3, 9, 100])
def test_by_time_where_the_store_is_looked_at(most: int) -> None:
    """In whatever order they are found; of more than are kept it is the oldest that go."""
    table = Table(cast("ServiceStore", Store(SCRAMBLED, watch=False)), removals=most)
    table.read(Deadline.after(10))
    assert shown(table) == sorted(SCRAMBLED, reverse=True)[:most]
    assert table.recorded() == len(SCRAMBLED)


@pytest.mark.parametrize("most", [3, 9, 100])
def test_by_the_order_of_writes_where_there_is_one(most: int) -> None:
    """Whatever their removers' clocks said."""
    table = Table(cast("ServiceStore", Store(SCRAMBLED, watch=True)), removals=most)
    table.read(Deadline.after(10))
    assert shown(table) == SCRAMBLED[::-1][:most]


def test_one_that_is_found_later_is_put_where_it_belongs() -> None:
    """A server that was away may tell of an old one, which does not take a newer one's place."""
    store = Store([20.0, 40.0, 30.0], watch=False)
    table = Table(cast("ServiceStore", store), removals=3)
    table.start()
    try:
        assert table.wait_ready(60)
        store.tell(100, 10.0, 35.0)
        wait_until(lambda: shown(table) == [40.0, 35.0, 30.0])
        store.tell(101, *range(41, 141))
        wait_until(lambda: shown(table) == [140.0, 139.0, 138.0])
        assert table.recorded() == 105
    finally:
        table.stop()


def test_one_that_is_forgotten_makes_room() -> None:
    """It goes from the picture, and the next one that comes stands in its place."""
    store = Store([20.0, 40.0, 30.0], watch=False)
    table = Table(cast("ServiceStore", store), removals=3)
    table.start()
    try:
        assert table.wait_ready(60)
        gone = store.record(30.0, 100)._replace(value=None)
        notify = wait_until(lambda: store.notify)
        notify(Batch((gone,), 100))
        wait_until(lambda: shown(table) == [40.0, 20.0])
        store.tell(101, 25.0)
        wait_until(lambda: shown(table) == [40.0, 25.0, 20.0])
    finally:
        table.stop()
