"""Watches survive: streams cut, etcd killed, frozen, compacted, or unreachable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from tests.faults.conftest import Stores
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.etcd_cluster import Cluster
from tests.support.etcd_store import etcd_store
from tests.support.following import following
from tests.support.locks import queue_up, read, remove
from tests.support.processes import Figure, wait_until
from tests.support.relay import Relay

SILENCE_S = 1.0
"""Seconds of silence after which a stream has as long to prove that it lives."""
LATE_S = 2.0
"""Seconds by which a busy machine may be late."""

Fault = Callable[[Cluster, Etcd], AbstractContextManager[None]]
"""Breaks a member for the time of a block."""


@pytest.fixture
def cable(etcd: Etcd) -> Iterator[Relay]:
    with Relay(etcd.endpoint) as it:
        yield it


def compact(etcdctl: Etcdctl, revision: int) -> None:
    etcdctl("compaction", "--physical", str(revision))


def test_a_client_cut_off_during_a_compaction_catches_up(
    etcd: Etcd, cable: Relay, stores: Stores, etcdctl: Etcdctl, figure: Figure
) -> None:
    away, other = stores(cable.endpoint), stores(etcd.endpoint)
    losses: list[LockLost] = []
    held = ClusterMutex("held", store=away, on_lost=losses.append)
    held.acquire()
    first = ClusterMutex("first", store=other)
    first.acquire()
    waiter = ClusterMutex("first", store=away)
    thread = queue_up(waiter)
    time.sleep(1.2)  # the holder's watch has begun, 0.7 s after the grant
    with following(away) as table:
        assert set(table.rows()) == {"held", "first"}
        cable.cut()
        wait_until(lambda: not table.connected(), what="the end of the stream")
        remove(other, held.record)
        first.release()
        compact(etcdctl, read(other, "held").revision)
        cable.mend()
        mended_at = time.monotonic()
        thread.join(60)
        assert waiter.locked()
        wait_until(lambda: losses, what="the loss")
        wait_until(lambda: set(table.rows()) == {"first"}, what="what is left")
        row = table.row("first")
        assert row is not None
        assert row.holder.uuid == waiter.uuid
        assert losses[0].removal is not None
        figure(f"all found out {time.monotonic() - mended_at:.1f} s after the connection was")
    waiter.release()


def test_a_half_open_connection_is_noticed(
    own_etcd: Etcd, stores: Stores, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that hangs, with only one member: then everything goes on by itself."""
    caplog.set_level(logging.WARNING)
    store, waiting = stores(own_etcd.endpoint), stores(own_etcd.endpoint)
    held = ClusterMutex("x", store=store)
    held.acquire()
    waiter = ClusterMutex("x", store=waiting)
    thread = queue_up(waiter)
    with following(store) as table:
        wait_until(waiting.connected, what="the waiter's watch")
        time.sleep(2.5 * SILENCE_S)  # quiet streams prove that they live
        assert store.watch_restarts() == waiting.watch_restarts() == 0
        with frozen(own_etcd):
            frozen_at, worked = time.monotonic(), time.process_time()
            wait_until(lambda: not table.connected(), what="the table to notice")
            wait_until(lambda: not waiting.connected(), what="the waiter to notice")
            noticed = time.monotonic() - frozen_at
            busy = (time.process_time() - worked) / noticed
            assert noticed < 2 * SILENCE_S + LATE_S
            assert "The watch on etcd broke" in caplog.text
            assert not waiter.locked()
            figure(f"noticed after {noticed:.1f} s; {busy:.0%} of a core in the meantime")
            assert busy < 0.5
        held.release()
        thread.join(60)
        assert waiter.locked()
        wait_until(lambda: (row := table.row("x")) and row.holder.uuid == waiter.uuid, what="it")
        wait_until(table.connected, what="the table")
        assert table.loads == 1
        waiter.release()


@pytest.mark.promise(number=3)
@pytest.mark.parametrize(
    ("fault", "limit"),
    [(lambda _, member: frozen(member), 3.0), (Cluster.cut_off, 5.0)],
    ids=["hangs", "has no leader"],
)
def test_a_loss_is_noticed_though_the_member_of_the_watch_fails(
    cluster: Cluster, root: str, fault: Fault, limit: float, figure: Figure
) -> None:
    """The stream moves to another member, and tells what happened meanwhile."""
    victim, other = cluster.followers()
    watching = etcd_store(Settings(endpoints=cluster.endpoints(victim), root=root))
    removing = etcd_store(Settings((other.endpoint,), root=root))
    losses: list[float] = []
    held = ClusterMutex(
        "x", store=watching, on_lost=lambda _: losses.append(time.monotonic())
    ).acquire()
    assert held is not None
    wait_until(watching.connected, what="the holder's watch")
    with fault(cluster, victim):
        removed_at = time.monotonic()
        remove(removing, held.record)
        wait_until(lambda: losses, what="the loss")
        wait_until(watching.connected, what="the stream on another member")
    figure(f"the loss was noticed after {losses[0] - removed_at:.2f} s")
    assert losses[0] - removed_at < limit + LATE_S
    assert watching.watch_restarts() == 1
    for store in (watching, removing):
        store.close()
