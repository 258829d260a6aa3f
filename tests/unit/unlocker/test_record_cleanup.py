"""Deletion of records and tombstones: by clocks that the test moves, on the memory store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline, Now
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.overview.live_table import Table
from lockclient.stores.service_store import Batch, Change, Kind
from tests.support.memory_store import MemoryStore
from unlocker import record_cleanup
from unlocker.record_cleanup import RecordCleanup

DAY = 86400.0


class World(MemoryStore):
    """A store with its table, of which only the revision is asked, and two clocks."""

    now = 5000.0
    wall = 1_800_000_000.0
    refusing = False
    restarts: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    @property
    def revision(self) -> int:
        return self.model.revision

    def put(self, kind: Kind, name: str, value: bytes = b"") -> None:
        self.write((kind, name, "" if kind == "code" else "u", value))

    def record(self, name: str, days_ago: float = 0.0) -> None:
        at = self.wall - days_ago * DAY
        self.put("removed", name, Removal(Holder(name), at, "u", AUTO_UNLOCK, "").value().encode())

    def there(self, kind: Kind) -> set[str]:
        return {change.name for change in self.model.entries((kind,))}

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        self.looks += 1
        return super().load(kinds, deadline)

    def forget(self, change: Change, deadline: Deadline) -> bool:
        if self.refusing:
            raise StoreError("no")
        return super().forget(change, deadline)


@pytest.fixture
def world() -> World:
    return World()


def retention_of(world: World, keep: int | None = None) -> RecordCleanup:
    table, ending = cast("Table", world), threading.Event()
    return RecordCleanup(world, table, keep, ending, lambda: Now(world.now, world.wall))


def run(one: RecordCleanup, world: World, seconds: float) -> None:
    """Let it run every minute for so long."""
    end = world.now + seconds
    while world.now < end:
        one.run()
        world.now += record_cleanup.STEP_INTERVAL_S
        world.wall += record_cleanup.STEP_INTERVAL_S


def test_a_record_is_deleted_seven_days_after_its_removed_at(world: World) -> None:
    for name, days in {"old": 8.0, "week": 6.9, "new": 0.0, "ahead": -400.0}.items():
        world.record(name, days)
    world.put("removed", "unreadable", b"\xff{")
    one = retention_of(world)
    run(one, world, 2 * 3600)
    assert world.there("removed") == {"week", "new", "ahead", "unreadable"}
    run(one, world, 0.3 * DAY)
    assert world.there("removed") == {"new", "ahead", "unreadable"}


def test_no_record_is_deleted_in_its_first_ten_minutes(world: World) -> None:
    one = retention_of(world)
    run(one, world, 7200)
    world.record("x", 365)
    written = world.now
    while world.there("removed"):
        run(one, world, 60)
    assert world.now - written >= record_cleanup.MIN_RECORD_AGE_S


def test_the_oldest_go_where_there_are_too_many(world: World) -> None:
    """By the store's order, not by what they say."""
    for number in range(20):
        world.record(f"{number:02}", days_ago=number % 3)
    run(retention_of(world, keep=5), world, 7200)
    assert world.there("removed") == {"15", "16", "17", "18", "19"}


def test_records_are_deleted_in_small_batches(world: World) -> None:
    for number in range(6000):
        world.record(f"{number:04}", days_ago=9)
    one, left = retention_of(world), [6000]
    while left[-1]:
        run(one, world, 60)
        left.append(len(world.there("removed")))
        assert left[-2] - left[-1] <= record_cleanup.MAX_DELETIONS_PER_STEP
    assert world.now - 5000 < record_cleanup.MIN_RECORD_AGE_S + 15 * 60
    run(one, world, 7200)
    assert world.looks < 30, "an hour apart when there is nothing to do"


def test_a_tombstone_is_deleted_a_day_after_it_was_seen(world: World) -> None:
    world.put("withdrawn", "before")
    one = retention_of(world)
    run(one, world, DAY / 2)
    world.put("withdrawn", "later")
    world.wall += 365 * DAY
    run(one, world, DAY / 2 + 600)
    assert world.there("withdrawn") == {"before", "later"}
    run(one, world, 2 * 3600)
    assert world.there("withdrawn") == {"later"}
    again = retention_of(world)
    run(again, world, DAY)
    assert world.there("withdrawn") == {"later"}, "who starts again begins to count again"
    run(again, world, 3 * 3600)
    assert world.there("withdrawn") == set()


def test_a_shared_backtrace_is_deleted_with_its_last_record(world: World) -> None:
    world.record("first")
    world.put("code", "c0de")
    one = retention_of(world)
    run(one, world, 3 * DAY)
    assert world.there("code") == {"c0de"}
    world.record("second", days_ago=-3)
    world.put("code", "c0de")
    run(one, world, 5 * DAY)
    assert (world.there("removed"), world.there("code")) == ({"second"}, {"c0de"})
    run(one, world, 6 * DAY)
    assert not world.there("removed") | world.there("code")


def test_a_rewritten_key_counts_as_new(world: World) -> None:
    world.put("withdrawn", "x")
    one = retention_of(world)
    run(one, world, DAY)
    world.put("withdrawn", "x")
    run(one, world, DAY)
    assert world.there("withdrawn") == {"x"}


def test_a_restored_store_restarts_the_ages(world: World) -> None:
    one = retention_of(world)
    world.model.revision = 100_000
    run(one, world, DAY)
    world.model.revision = 50_000
    world.put("withdrawn", "x")
    run(one, world, DAY)
    assert world.there("withdrawn") == {"x"}


def test_a_restore_voids_the_notes_though_revisions_have_grown_past_them(world: World) -> None:
    one = retention_of(world)
    world.model.revision = 100_000
    run(one, world, DAY)
    world.restarts += 1
    world.model.revision = 99_000
    world.put("withdrawn", "x")
    world.model.revision = 101_000
    run(one, world, DAY)
    assert world.there("withdrawn") == {"x"}


def test_a_refusing_store_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.record("x", 9)
    world.refusing = True
    one = retention_of(world)
    run(one, world, 7200)
    assert caplog.text.count("can't be deleted; retrying: no") == 1
    world.refusing = False
    run(one, world, 120)
    assert world.there("removed") == set()
