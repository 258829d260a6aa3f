"""An etcd restored from a backup: no lock is removed early, and the restore is noticed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Runtime
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.request_types import Push
from tests.support.etcd_binary import etcdctl_of, restoring
from tests.support.following import following
from tests.support.locks import ask, held, take
from tests.support.processes import run_to_end, wait_until
from tests.support.records import taker
from tests.support.unlocker_process import REMOVED, figure, unlocker, when_ready

BUMP = ("--bump-revision", "1000000000", "--mark-compacted")
HELD = 'clustermutex_locks{state="ok"}'


def backup(server: Etcd, file: Path) -> None:
    etcdctl_of(server)("snapshot", "save", str(file))


def restore(server: Etcd, file: Path, *options: str, pause: float = 0.0) -> None:
    server.stop()
    time.sleep(pause)
    shutil.rmtree(server.data)
    peer = f"http://127.0.0.1:{server.peer_port}"
    words = [
        *(restoring(server), "snapshot", "restore", str(file)),
        *("--data-dir", str(server.data), "--initial-cluster", f"default={peer}"),
        *("--initial-advertise-peer-urls", peer),
        *options,
    ]
    run_to_end(*words, env={"ETCDCTL_API": "3"})
    server.start()


def write(server: Etcd, times: int) -> None:
    for number in range(times):
        etcdctl_of(server)("put", "/clustermutex/elsewhere", str(number))


@pytest.mark.promise(number=2)
def test_an_unlocker_started_after_the_restore_removes_nothing_early(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path
) -> None:
    runtime = Runtime(1800, 3600)
    holder = taker("a", runtime, time.time() - 3700)  # and by the stamps that are back it is due
    uuid, token = take(own_store, holder)
    backup(own_etcd, tmp_path / "snap")
    push = Push("a", uuid, runtime.stamps(time.time()), token)
    assert isinstance(ask(own_store, push), Done)
    restore(own_etcd, tmp_path / "snap")
    with when_ready(unlocker(Settings(location=own_store.location))) as service:
        take(own_store, taker("silent since", Runtime(1, 2)))
        wait_until(lambda: figure(service, REMOVED), 60, what="a removal")
        back = held(own_store, "a").auto_unlock_at
        assert back == pytest.approx(holder.auto_unlock_at), "put back"


def test_a_running_table_notices_the_restore_by_the_revision(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ClusterMutex("a", store=own_store).acquire()
    with following(own_store) as table:
        backup(own_etcd, tmp_path / "snap")
        write(own_etcd, 3)
        wait_until(lambda: table.revision > 4, what="the writes")
        row, before = table.rows()["a"], time.monotonic()
        restore(own_etcd, tmp_path / "snap")
        wait_until(lambda: table.restored, 60, what="the notice")
        again = table.rows()["a"]
        assert (again.holder, again.found) == (row.holder, True)
        assert again.seen_at >= before
        assert "restored from a backup, as its data tell" in caplog.text
        loads = table.loads
        table.resync()
        wait_until(lambda: table.loads > loads, what="another reading")
        assert table.rows()["a"] is again, "it is counted anew once"


def test_a_running_table_notices_the_restore_by_the_raft_term(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path
) -> None:
    for _ in range(3):  # a leader each, and each has a term
        own_etcd.stop()
        own_etcd.start()
    ClusterMutex("a", store=own_store).acquire()
    with following(own_store) as table:
        backup(own_etcd, tmp_path / "snap")
        before = time.monotonic()
        restore(own_etcd, tmp_path / "snap")
        wait_until(lambda: table.restored, 60, what="the notice")
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
        assert table.restored is None
        assert table.rows()["a"] is row
        assert table.loads == 1


@pytest.mark.promise(number=2)
@pytest.mark.parametrize("options", [(), BUMP], ids=["as it was", "bumped"])
def test_an_unlocker_running_during_the_restore_removes_nothing_early(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path, options: Sequence[str]
) -> None:
    asked = ["snapshot", "restore", "--help"]
    done = subprocess.run([restoring(own_etcd), *asked], capture_output=True, text=True)
    if "--bump-revision" not in done.stdout + done.stderr:
        options = ()  # of an older etcd
    runtime = Runtime(8, 16)
    with when_ready(unlocker(Settings(location=own_store.location))) as service:
        uuid, token = take(own_store, taker("a", runtime, time.time()))
        wait_until(lambda: figure(service, HELD) == 1, 60, what="the lock to be seen")
        backup(own_etcd, tmp_path / "snap")
        os.kill(service.process.pid, signal.SIGSTOP)  # it sees no push from here on
        try:
            time.sleep(3)
            push = Push("a", uuid, runtime.stamps(time.time()), token)
            assert isinstance(ask(own_store, push), Done)
            pushed_at = time.monotonic()
            restore(own_etcd, tmp_path / "snap", *options, pause=8)
        finally:
            os.kill(service.process.pid, signal.SIGCONT)
        wait_until(lambda: figure(service, REMOVED), 90, what="the removal")
        assert time.monotonic() - pushed_at > 16
        assert "The times of all locks count from now on." in service.log_text()
