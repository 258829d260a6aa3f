"""The table over each store: the same snapshot, by watch or by poll."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.cut_texts import bounded
from lockclient.model.holder import OK, Holder
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Row
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Push, Take, Withdraw
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import Ask, holder, queue
from tests.contract.following import Watcher, loaded, read, remove, soon, take, unlock
from tests.support.processes import wait_until

pytestmark = pytest.mark.needs("services")

Start = Callable[..., Watcher]


@pytest.fixture
def start(reader: ServiceStore) -> Iterator[Start]:
    """Start a table and wait until it is loaded; stopped with the test."""
    watchers: list[Watcher] = []

    def run(**how: int) -> Watcher:
        watchers.append(Watcher(reader, **how))
        return watchers[-1]

    yield run
    for watcher in watchers:
        watcher.table.stop()


@pytest.fixture
def watcher(start: Start) -> Watcher:
    """A table that is loaded."""
    return start()


def written(store: ServiceStore, name: str) -> Holder | None:
    """Return the holder of a lock as in a table: without the backtrace."""
    found = read(store, name).holder
    return found and replace(found, backtrace=None)


class TestLocks:
    def test_a_lock_is_in_the_table_until_it_ends(self, start: Start, writer: ServiceStore) -> None:
        before = take(writer, "before")
        watcher = start()
        table = watcher.table
        (found,) = table.rows().values()
        assert (found.found, found.holder.uuid) == (True, before.uuid)
        mine = replace(
            take(writer, "after/ü", reason="for a test", backtrace="File x"), backtrace=None
        )
        row = wait_until(lambda: table.row("after/ü"), what="the new lock")
        assert not row.found
        assert row.holder == written(writer, "after/ü")
        assert (row.holder.reason, row.holder.hostname) == ("for a test", mine.hostname)
        stamps = Stamps(250.0, 350.0)
        last = max(row.holder.stamp_revisions)
        pushed = writer.ask(Push("after/ü", mine.uuid or "", stamps, last), soon())
        assert isinstance(pushed, Done)

        def after_push() -> Row | None:
            now = table.row("after/ü")
            return now if now is not None and now is not row else None

        now = wait_until(after_push, what="the push")
        assert now.holder == written(writer, "after/ü")
        assert now.holder.stamp_revisions == (pushed.revision, pushed.revision)
        assert now.seen_at > row.seen_at
        assert bool(now.holder.shown_token()) == writer.can.fencing
        assert now.holder.state(240.0) == OK
        assert set(table.rows()) == {"before", "after/ü"}
        unlock(writer, mine)
        wait_until(lambda: watcher.uuid("after/ü") is None, what="the release")
        assert set(table.rows()) == {"before"}
        assert (table.loads, watcher.removals) == (1, [])
        wait_until(table.connected, what="the watch")

    @pytest.mark.needs("watch")
    def test_each_transition_is_reported_once(self, watcher: Watcher, writer: ServiceStore) -> None:
        for _ in range(5):
            unlock(writer, take(writer, "x"))
        wait_until(lambda: len(watcher.changes) == 10, what="ten transitions")
        assert all(change.live for change in watcher.changes)
        assert [change.after is None for change in watcher.changes] == [False, True] * 5
        assert [change.before is None for change in watcher.changes] == [True, False] * 5
        tokens = [change.after.holder.fencing_token for change in watcher.changes if change.after]
        assert tokens == sorted(set(tokens))
        assert watcher.table.rows() == {}

    def test_a_second_read_keeps_unchanged_rows(
        self, watcher: Watcher, writer: ServiceStore
    ) -> None:
        take(writer, "x")
        row = wait_until(lambda: watcher.table.row("x"), what="the lock")
        wait_until(lambda: watcher.changes, what="its listeners")
        watcher.changes.clear()
        watcher.table.resync()
        wait_until(lambda: watcher.table.loads == 2, what="the second reading")
        assert watcher.table.row("x") is row
        assert watcher.changes == []


class TestOthers:
    @pytest.mark.needs("queue")
    def test_waiters_are_counted_by_lock(self, ask: Ask, start: Start) -> None:
        followed = start().table
        mine, first, second = holder("x"), holder("x"), holder("x")
        ask(Take(mine))
        for waiter in (first, second):
            queue(ask, waiter)
        found = start().table
        for table in (followed, found):
            wait_until(lambda: table.waiters() == {"x": 2}, what="both")  # noqa: B023 - not kept
        for waiter in (first, second):
            ask(Withdraw("x", waiter.uuid or ""))
        for table in (followed, found):
            wait_until(lambda: table.waiters() == {}, what="nobody")  # noqa: B023 - not kept


class TestRemovals:
    def test_each_removal_is_reported_once(
        self, start: Start, reader: ServiceStore, writer: ServiceStore
    ) -> None:
        reader.poll = reader.poll and 1.0  # no removal takes longer from its first step to its last
        before = remove(writer, take(writer, "before"))
        watcher = start()
        assert [(removal.holder.uuid, found) for removal, found in watcher.removals] == [
            (before.holder.uuid, True)
        ]
        removed = []
        for number in range(30):
            if number in (10, 20) and writer.can.watch:
                watcher.table.resync()
            mine = take(writer, f"lock {number}")
            if number == 5:
                wait_until(lambda: watcher.uuid("lock 5"), what="the lock")
            removed.append(remove(writer, mine, f"why {number}"))
        wait_until(lambda: len(watcher.removals) >= 31, what="all removals")
        loads = watcher.table.loads
        watcher.table.resync()
        wait_until(lambda: watcher.table.loads > loads, what="the last reading")
        removed.append(remove(writer, take(writer, "last"), "why last"))
        wait_until(lambda: watcher.removals[-1][0].holder.name == "last", what="the last one")
        told = [
            (removal.holder.uuid, removal.why, found) for removal, found in watcher.removals[1:]
        ]
        expected = [(removal.holder.uuid, removal.why, False) for removal in removed]
        if writer.can.watch:
            assert told == expected
        assert sorted(told) == sorted(expected)
        uuids = [removal.holder.uuid for removal, _ in watcher.removals]
        wait_until(lambda: not watcher.table.rows(), what="all locks to be gone")
        assert removed[5].holder.uuid in watcher.removals_before
        for uuid, count in watcher.removals_before.items():
            assert uuid in uuids[:count], "the table reported its end before"

    def test_a_removal_is_reported_although_the_lock_was_retaken_at_once(
        self, watcher: Watcher, writer: ServiceStore
    ) -> None:
        first = take(writer, "a", backtrace="File x\n" * 1000)
        wait_until(lambda: watcher.uuid("a") == first.uuid, what="the first holder")
        remove(writer, first)
        second = take(writer, "a")
        wait_until(lambda: watcher.uuid("a") == second.uuid, what="the second holder")
        wait_until(lambda: watcher.removals, what="the removal")
        ((removal, found),) = watcher.removals
        assert (removal.holder.uuid, removal.why, found) == (first.uuid, "silent", False)
        assert removal.removed_by == "unlocker-1"

    def test_as_many_are_kept_as_are_wanted(self, start: Start, writer: ServiceStore) -> None:
        """The newest first, whatever its remover's clock says, where the store tells which that
        is. Without their backtraces; it says only that there is one."""
        now, removed = time.time(), []
        for number in range(9):
            mine = take(writer, f"lock-{number}", backtrace="File x")
            removed.append(remove(writer, mine, at=now - number * 7 % 9))
        if not writer.can.watch:
            removed.sort(key=lambda removal: removal.removed_at or 0)
        newest = [
            (removal.holder.name, removal.holder.shown_token()) for removal in reversed(removed)
        ]
        for most in (100, 5, 0):
            table = start(removals=most).table
            shown = table.removals()
            kept = [(removal.holder.name, removal.holder.fencing_token) for removal in shown]
            assert kept == newest[:most]
            assert table.recorded() == 9
            assert {removal.holder.backtrace for removal in shown} <= {""}
            read_once = Table(writer, removals=most)
            read_once.read(soon())
            assert read_once.removals() == table.removals()

    def test_a_forgotten_record_leaves_the_table(
        self, watcher: Watcher, writer: ServiceStore
    ) -> None:
        table = watcher.table
        remove(writer, take(writer, "a"))
        wait_until(table.removals, what="the record")
        (change,) = loaded(writer, "removed")
        assert writer.forget(change, soon())
        remove(writer, take(writer, "b"))
        wait_until(
            lambda: [removal.holder.name for removal in table.removals()] == ["b"], what="its end"
        )

    def test_long_texts_of_a_record_are_cut_in_lists(
        self, watcher: Watcher, writer: ServiceStore
    ) -> None:
        long = "\U0001f512\x01" * 4000
        mine = take(writer, "a")
        wordy = replace(mine, reason=long, hostname=long, thread=long, identity=long)
        remove(writer, bounded(wordy), long[:5000])
        (removal,) = wait_until(watcher.table.removals, what="the record")
        assert removal.holder.uuid == mine.uuid
        assert len(repr(removal)) < 10_000
