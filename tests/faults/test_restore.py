"""An etcd that was restored from a backup: no lock goes early, and everybody is told or notices."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Runtime
from lockclient.model.restore_marker import Restored
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.requests import Push
from tests.support.etcd_binary import etcdctl_of, restoring
from tests.support.following import following
from tests.support.locks import ask, held, take
from tests.support.processes import run_to_end, wait_until
from tests.support.records import taker
from tests.support.terminal import called
from tests.support.unlocker_process import figure, unlocker, when_ready

RESTORED = "clustermutex_store_restored_timestamp_seconds"


def backup(server: Etcd, file: Path) -> None:
    etcdctl_of(server)("snapshot", "save", str(file))


def restore(server: Etcd, file: Path) -> None:
    server.stop()
    shutil.rmtree(server.data)
    peer = f"http://127.0.0.1:{server.peer_port}"
    words = [
        *(restoring(server), "snapshot", "restore", str(file)),
        *("--data-dir", str(server.data), "--initial-cluster", f"default={peer}"),
        *("--initial-advertise-peer-urls", peer),
    ]
    run_to_end(*words, env={"ETCDCTL_API": "3"})
    server.start()


def write(server: Etcd, times: int) -> None:
    for number in range(times):
        etcdctl_of(server)("put", "/clustermutex/elsewhere", str(number))


@pytest.mark.promise(number=2)
def test_an_unlocker_that_starts_after_it_removes_nothing_early(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path
) -> None:
    """The push that the backup does not have was confirmed: its holder counts on it for an hour."""
    runtime = Runtime(1800, 3600)
    holder = taker("a", runtime, time.time() - 3700)  # and by the stamps that are back it is due
    uuid, token = take(own_store, holder)
    backup(own_etcd, tmp_path / "snap")
    push = Push("a", uuid, runtime.stamps(time.time()), token)
    assert isinstance(ask(own_store, push), Done)
    restore(own_etcd, tmp_path / "snap")
    with when_ready(unlocker(Settings(location=own_store.location))) as service:
        take(own_store, taker("silent since", Runtime(1, 2)))
        removed = 'clustermutex_auto_unlocks_total{result="removed"}'
        wait_until(lambda: figure(service, removed), 60, what="a removal")
        back = held(own_store, "a").auto_unlock_at
        assert back == pytest.approx(holder.auto_unlock_at), "put back"


def test_whoever_runs_notices_by_the_revision(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ClusterMutex("a", store=own_store).acquire()
    with following(own_store) as table:
        backup(own_etcd, tmp_path / "snap")
        write(own_etcd, 3)
        wait_until(lambda: table.revision > 4, what="the writes")
        row, before = table.rows()["a"], time.monotonic()
        restore(own_etcd, tmp_path / "snap")
        wait_until(table.restored, 60, what="the notice")
        found = table.restored()
        assert found is not None
        assert (found.who, found.revision) == ("", 0)
        again = table.rows()["a"]
        assert (again.holder, again.found) == (row.holder, True)
        assert again.seen_at >= before
        assert "restored from a backup, detected from its data" in caplog.text
        loads = table.loads
        table.resync()
        wait_until(lambda: table.loads > loads, what="another reading")
        assert table.rows()["a"] is again, "it is counted anew once"


def test_whoever_runs_notices_by_the_raft_term(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path
) -> None:
    """Where the revision is not lower: nothing was written since the backup."""
    for _ in range(3):  # a leader each, and each has a term
        own_etcd.stop()
        own_etcd.start()
    ClusterMutex("a", store=own_store).acquire()
    with following(own_store) as table:
        backup(own_etcd, tmp_path / "snap")
        before = time.monotonic()
        restore(own_etcd, tmp_path / "snap")
        wait_until(table.restored, 60, what="the notice")
        assert table.rows()["a"].seen_at >= before


def test_a_restart_is_no_restore(own_etcd: Etcd, own_store: EtcdStore) -> None:
    ClusterMutex("a", store=own_store).acquire()
    with following(own_store) as table:
        row = table.rows()["a"]
        broke = own_store.watch_restarts()
        own_etcd.stop()
        own_etcd.start()
        wait_until(lambda: own_store.watch_restarts() > broke and table.connected())
        ClusterMutex("b", store=own_store).acquire()
        wait_until(lambda: "b" in table.rows(), 60, what="the news")
        assert table.restored() is None
        assert table.rows()["a"] is row
        assert table.loads == 1


def test_the_command_tells_all_who_run_and_counting_begins_anew(
    settings: Settings, store: EtcdStore
) -> None:
    """So that a lock which was seen is one that was found, and its old stamps count for nothing."""
    kept = "clustermutex_unlocker_locks_kept"
    with when_ready(unlocker(settings)) as service:
        take(store, taker("a", Runtime(1, 3600), time.time() - 3700))
        past = 'clustermutex_lock_alert_timestamp_seconds{name="a"}'
        wait_until(lambda: figure(service, past), 60, what="the alert")
        assert figure(service, kept) == 0
        assert called(settings, "restored").stdout == (
            "Told: the time of 1 lock is counted anew. 1 unlocker with a heartbeat.\n"
        )
        wait_until(lambda: figure(service, RESTORED), 60, what="the metric")
        wait_until(lambda: figure(service, kept) == 1, 60, what="the count")
        with following(store) as table:
            said = table.restored()
            assert said is not None
            assert "@" in said.who
        log = service.log_text()
        assert log.count("The store was restored from a backup, as ") == 1
        assert log.count("is past its alert") == 1, "which was told"


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"{}", b'{"time": 1e300}', b'{"time": 9e9}', b'"' * 100_000]
)
def test_what_cannot_be_read_tells_of_a_restore_all_the_same(value: bytes) -> None:
    """Whoever may write there may write anything."""
    assert Restored.read(value, 7, 1000.0) == Restored("", 0.0, "", 7)
    assert Restored.read(value, 7, 1000.0).time == 1000.0
    assert Restored.read(value, 7, 1000.0) != Restored.read(value, 8, 1000.0)


def test_what_was_written_is_read() -> None:
    said = Restored("1", 999.5, "ann@host")
    found = Restored.read(said.value().encode(), 7, 1000.0)
    assert (found.id, found.time, found.who, found.revision) == ("1", 999.5, "ann@host", 7)
