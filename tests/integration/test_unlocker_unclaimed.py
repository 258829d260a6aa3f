"""A lock that is free with a line, as the unlocker shows it: on a real etcd, by etcd's own hand."""

from __future__ import annotations

import logging
import time

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.settings import Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.integration.test_unlocker_removal import metric, running
from tests.support.etcd_binary import Etcdctl
from tests.support.processes import wait_until
from unlocker.unlocker import Unlocker

COUNT = "clustermutex_locks_free_with_waiters"
SINCE = "clustermutex_lock_free_with_waiters_timestamp_seconds"
HEAD = "clustermutex_lock_head_info"
WHO = '{"hostname": "web-1", "pid": 4711, "reason": "totals"}'
HEAD_LABELS = {"hostname": "web-1", "pid": "4711", "reason": "totals"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and find a second long."""
    monkeypatch.setattr("unlocker.unlocker.SWEEP_INTERVAL_S", 0.1)
    monkeypatch.setattr("unlocker.unclaimed.NORMAL_HANDOVER_S", 1.0)
    for module in ("unlocker", "unclaimed"):
        monkeypatch.setattr(f"unlocker.{module}.HEADS_INTERVAL_S", 0.1)


def wait_count(unlocker: Unlocker, count: int) -> None:
    wait_until(lambda: metric(unlocker, COUNT) == count, what=f"{count} unclaimed locks")


def test_a_ticket_in_the_line_of_a_free_lock_is_shown_until_it_goes(
    settings: Settings, etcdctl: Etcdctl
) -> None:
    """Or until somebody gets the lock."""
    line, lock = (f"{settings.root}/{kind}/deploy%2Fprod" for kind in ("queue", "locks"))
    with running(settings) as unlocker:
        assert metric(unlocker, COUNT) == 0
        put = time.time()
        etcdctl("put", f"{line}/one", WHO)
        etcdctl("put", f"{line}/two", "?")
        wait_count(unlocker, 1)
        since = metric(unlocker, SINCE, name="deploy/prod")
        assert since is not None
        assert put - 0.1 <= since <= time.time() - 1
        wait_until(
            lambda: metric(unlocker, HEAD, name="deploy/prod", **HEAD_LABELS), what="the head"
        )

        etcdctl("put", f"{lock}/uuid", "u")
        wait_count(unlocker, 0)
        assert metric(unlocker, SINCE) is None
        etcdctl("del", f"{lock}/uuid")
        wait_count(unlocker, 1)
        again = metric(unlocker, SINCE, name="deploy/prod")
        assert again is not None
        assert again > since

        etcdctl("del", "--prefix", f"{line}/")
        wait_count(unlocker, 0)
        assert metric(unlocker, HEAD) is None


def test_it_is_known_again_after_readings_and_after_an_outage(
    own_etcd: Etcd,
    own_store: EtcdStore,
    own_etcdctl: Etcdctl,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found at the start, kept over a resync; with etcd away nothing is known and none shown."""
    monkeypatch.setattr("unlocker.unlocker._MAX_SWEEP_GAP_S", 60.0)  # however slow the machine
    own_etcdctl("put", "/clustermutex/queue/a/one", WHO)
    with (
        caplog.at_level(logging.WARNING),
        running(Settings(location=own_store.location)) as unlocker,
    ):
        # Without a head that was known before, a reading of everything begins to count anew.
        wait_until(lambda: metric(unlocker, HEAD, name="a", **HEAD_LABELS), what="the head")
        since = metric(unlocker, SINCE, name="a")
        unlocker._table.resync()
        wait_until(lambda: metric(unlocker, "clustermutex_unlocker_table_loads_total") == 2)
        wait_until(unlocker._health.is_current, what="the watch")
        # As while the watch that starts again asks whether the store was restored.
        unlocker._table._looking = True
        unlocker._sweep()
        unlocker._table._looking = False
        unlocker._sweep()
        unlocker._sweep()
        assert metric(unlocker, SINCE, name="a") == pytest.approx(since, abs=0.1)

        monkeypatch.setattr("unlocker.unlocker._MAX_SWEEP_GAP_S", 1.0)
        own_etcd.stop()
        wait_count(unlocker, 0)
        own_etcd.start()
        own_etcdctl("put", "/clustermutex/queue/b/one", WHO)
        wait_count(unlocker, 2)
        own_etcdctl("del", "--prefix", "/clustermutex/queue/")
        wait_count(unlocker, 0)
    assert "Traceback" not in caplog.text
