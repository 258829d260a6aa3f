"""The live picture of all locks, over a real etcd: read once, then followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from lockclient import ClusterMutex
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.holder import BROKEN
from lockclient.overview.table import Table
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import paging
from tests.support.etcd_binary import Etcdctl
from tests.support.processes import wait_until

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
    etcdctl("put", f"{store.location.root}/locks/a b/uuid", "no name's encoding")
    etcdctl("put", f"{prefix}uuid", "u")
    row = wait_until(lambda: table.row("x"), what="half a lock")
    assert row.holder.state(time.time()) == BROKEN
    assert set(table.rows()) == {"x"}
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
