"""The live picture of all locks, over a real etcd: read once, then followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, Removal
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.model.holder import BROKEN, OK
from lockclient.overview.rows import Row, Transition
from lockclient.overview.table import Table
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import paging
from lockclient.stores.outcomes import Done
from lockclient.stores.requests import Remove
from tests.support.etcd_binary import Etcdctl
from tests.support.processes import wait_until
from tests.support.records import written

Start = Callable[..., Table]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a table and wait until it is loaded; stopped with the test."""
    tables: list[Table] = []

    def run(store: EtcdStore, **how: object) -> Table:
        table = Table(store, **how)  # type: ignore[arg-type]
        tables.append(table)
        assert not table.ready()
        table.start()
        assert table.wait_ready(30)
        return table

    yield run
    for each in tables:
        each.stop()


def test_what_was_there_is_found_and_what_comes_is_followed(store: EtcdStore, start: Start) -> None:
    """Taken, pushed and released: each is seen, with its token and its stamps."""
    before = ClusterMutex("before", store=store)
    before.acquire()
    table = start(store)
    row = table.row("before")
    assert row is not None
    assert row.found
    assert row.holder.uuid == before.uuid
    with ClusterMutex("after", store=store) as after:
        row = wait_until(lambda: table.row("after"), what="the new lock")
        assert not row.found
        assert row.holder.backtrace is None
        token = after.fencing_token
        assert row.holder == replace(
            written(after.record, token), backtrace=None, stamp_revisions=(token, token)
        )
        assert row.holder.state(time.time()) == OK
        after.alive(force=True)
        pushed = wait_until(lambda: newer(table, "after", token), what="the push")
        assert pushed.holder.fencing_token == after.fencing_token
        assert pushed.seen_at > row.seen_at
        assert set(table.rows()) == {"before", "after"}
    wait_until(lambda: table.row("after") is None, what="the release")
    assert table.loads == 1
    assert table.connected()
    before.release()


def newer(table: Table, name: str, revision: int) -> Row | None:
    row = table.row(name)
    return row if row is not None and min(row.holder.stamp_revisions) > revision else None


def test_each_change_is_told_once(store: EtcdStore, start: Start) -> None:
    """Taken and released and taken again: also where a batch brings several of them."""
    told: list[Transition] = []
    table = start(store, on_change=told.extend)
    for _ in range(5):
        with ClusterMutex("x", store=store):
            pass
    wait_until(lambda: len(told) == 10, what="ten transitions")
    assert all(each.live for each in told)
    assert [each.after is None for each in told] == [False, True] * 5
    assert [each.before is None for each in told] == [True, False] * 5
    tokens = [each.after.holder.fencing_token for each in told if each.after]
    assert tokens == sorted(set(tokens))
    assert table.rows() == {}


def test_the_line_and_the_unlockers_are_in_it(store: EtcdStore, start: Start) -> None:
    """Who waits for which lock, in order; which unlockers run, and since when they don't."""
    table = start(store)
    with ClusterMutex("x", store=store):
        assert not ClusterMutex("x", store=store, reason="brief").acquire(timeout=0.05)
        store.announce("u-1", "hello", 5, Deadline.after(10))
        wait_until(lambda: table.unlockers() == {"u-1": "hello"}, what="the unlocker")
        wait_until(lambda: table.waiters() == {}, what="the ticket to go")
        store.withdraw_announcement("u-1", Deadline.after(10))
        wait_until(lambda: not table.unlockers(), what="the unlocker to go")


def test_the_newest_removals_are_kept(store: EtcdStore, start: Start) -> None:
    """As many as wanted, the newest first, without their backtraces."""
    table = start(store, removals=2)
    for name in ("a", "b", "c"):
        held = ClusterMutex(name, store=store)
        held.acquire()
        removal = Removal(held.record, time.time(), "ann", "force-unlock", "why")
        assert isinstance(store.ask(Remove(removal, None), Deadline.after(10)), Done)
    wait_until(
        lambda: [each.holder.name for each in table.removals()] == ["c", "b"], what="the records"
    )
    again = start(store, removals=2)
    assert again.removals() == table.removals()
    assert again.removals()[0].holder.backtrace == ""  # there is one
    assert again.removals()[0].holder.fencing_token > 0
    assert start(store).removals() == []


def test_each_removal_is_told_once(store: EtcdStore, start: Start) -> None:
    """Before its lock is told to be gone, however many come at once, and over readings anew."""
    told: list[tuple[str, bool]] = []
    gone: list[int] = []

    def note(removals: list[Removal], found: bool) -> None:
        told.extend((each.holder.name, found) for each in removals)

    def note_gone(changed: list[Transition]) -> None:
        gone.extend(len(told) for each in changed if each.after is None)

    def remove(name: str) -> None:
        held = ClusterMutex(name, store=store)
        held.acquire()
        removal = Removal(held.record, time.time(), "ann", "force-unlock", "why")
        assert isinstance(store.ask(Remove(removal, None), Deadline.after(10)), Done)

    remove("before")
    table = start(store, on_removal=note, on_change=note_gone)
    for number in range(150):
        if number % 50 == 25:
            table.resync()
        remove(f"lock {number}")
    wait_until(lambda: len(told) >= 151, what="all removals")
    table.resync()
    wait_until(lambda: table.loads == 5, what="the last reading")
    remove("last")
    wait_until(lambda: told[-1] == ("last", False), what="the last removal")
    expected = [(f"lock {number}", False) for number in range(150)]
    assert told == [("before", True), *expected, ("last", False)]
    assert gone[-1] == len(told)
    assert table.removals() == []


def test_reading_again_keeps_what_has_not_changed(store: EtcdStore, start: Start) -> None:
    """Whoever counts time by a row's `seen_at` counts on."""
    told: list[Transition] = []
    table = start(store, on_change=told.extend)
    with ClusterMutex("x", store=store):
        row = wait_until(lambda: table.row("x"), what="the lock")
        told.clear()
        table.resync()
        wait_until(lambda: table.loads == 2, what="the second reading")
        assert table.row("x") is row
        assert told == []


def test_pages_are_put_together(
    store: EtcdStore, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock whose keys lie on two pages is one lock."""
    monkeypatch.setattr(paging, "MAX_KEYS", 3)
    held = [ClusterMutex(f"lock {number}", store=store) for number in range(9)]
    for each in held:
        each.acquire()
    table = start(store)
    assert {row.holder.uuid for row in table.rows().values()} == {each.uuid for each in held}
    assert not any(row.holder.broken() for row in table.rows().values())
    for each in held:
        each.release()


def test_broken_data_is_shown_as_broken(store: EtcdStore, start: Start, etcdctl: Etcdctl) -> None:
    """Missing subkeys, a stamp that is none, no UTF-8; mended when it is mended."""
    prefix = f"{store.location.root}/locks/x/"
    table = start(store)
    etcdctl("put", f"{prefix}uuid", "u")
    row = wait_until(lambda: table.row("x"), what="half a lock")
    assert row.holder.state(time.time()) == BROKEN
    etcdctl("put", f"{prefix}hostname", input=b"\xff")
    etcdctl("put", f"{prefix}alert_at", "soon")
    etcdctl("put", f"{prefix}new/sub/key", "?")
    wait_until(lambda: "alert_at" in problems(table), what="the bad stamp")
    assert set(problems(table)) == {"hostname", "alert_at"}
    etcdctl("put", f"{prefix}hostname", "h")
    etcdctl("put", f"{prefix}alert_at", "5000000000")
    wait_until(lambda: not problems(table), what="the mended lock")
    etcdctl("del", "--prefix", prefix)
    wait_until(lambda: table.row("x") is None, what="its end")


def problems(table: Table) -> dict[str, str]:
    row = table.row("x")
    return {} if row is None else dict(row.holder.problems)


def test_a_restart_and_a_compaction_are_survived(
    own_etcd: Etcd, own_store: EtcdStore, own_etcdctl: Etcdctl, start: Start
) -> None:
    """The stream is opened again where it stopped; if that is gone, everything is read again."""
    table = start(own_store)
    held = ClusterMutex("x", store=own_store)
    held.acquire()
    wait_until(lambda: table.row("x"), what="the lock")
    wait_until(table.connected, what="the watch")
    own_etcd.stop()
    wait_until(lambda: not table.connected(), what="the outage to be noticed")
    assert table.row("x"), "the last known picture is kept"
    own_etcd.start()
    other = ClusterMutex("y", store=own_store)
    assert other.acquire(timeout=60)
    wait_until(lambda: table.row("y"), what="what came after the restart")
    assert table.loads == 1

    own_etcd.stop()
    wait_until(lambda: not table.connected(), what="the outage to be noticed")
    own_etcd.start()
    # While the stream is down; by the time it stands again, its revision may be gone or not.
    own_etcdctl("del", "--prefix", "/clustermutex/locks/y/")
    revision = own_etcdctl("get", "/", "-w", "json").partition('"revision":')[2].partition(",")[0]
    own_etcdctl("compaction", revision)
    wait_until(lambda: table.row("y") is None, what="what happened in between")
    assert set(table.rows()) == {"x"}
    wait_until(table.connected, what="the watch")
