"""The `unlocker` program on an etcd that forbids, forgets, is full, or slow.

Nothing is removed wrongly, nothing is missed afterwards, and it says how things are: in `/readyz`,
in the metrics, and in the log once. (An etcd that is away is in the acceptance tests.)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.support.board import dashboard
from tests.support.etcd_binary import add_users, etcdctl_of, put_at_once
from tests.support.locks import has
from tests.support.processes import run_to_end, wait_until
from tests.support.relay import Relay
from tests.support.terminal import called
from tests.support.unlocker_process import (
    REMOVED,
    UNLOCKER,
    fetch,
    figure,
    ready,
    unlocker,
    unready,
    when_ready,
)


def mutex(store: EtcdStore, name: str, after: float) -> ClusterMutex:
    """Take a lock that is due when it is silent for so many seconds."""
    found = ClusterMutex(name, expected_runtime=after / 2, auto_unlock_after=after, store=store)
    assert found.acquire(timeout=20)
    return found


@pytest.fixture(scope="module")
def guarded(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of an etcd with a user `ann` who may do nothing."""
    folder = tmp_path_factory.mktemp("guarded")
    with Etcd(etcd_binary, folder / "data", folder / "etcd.log") as server:
        add_users(etcdctl_of(server), ann=())
        yield server.endpoint


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("", "asks for a user"),
        ("ann:wrong", "Check ETCDCTL_USER and ETCDCTL_PASSWORD"),
        ("ann:ann", "`clustermutex setup-auth"),
    ],
    ids=["no user", "wrong password", "no role"],
)
def test_missing_rights_are_one_line_at_the_start(guarded: str, user: str, words: str) -> None:
    options = ["--listen", "127.0.0.1:0", "--url", f"etcd://{guarded}"]
    env = {"ETCDCTL_USER": user} if user else {}
    done = run_to_end(*UNLOCKER, *options, env=env, status=1)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_an_emptied_etcd(own_etcd: Etcd, own_store: EtcdStore) -> None:
    with when_ready(unlocker(Settings(location=own_store.location))) as service:
        for number in range(5):
            mutex(own_store, f"old {number}", 600)
        held = 'clustermutex_locks{state="ok"}'
        wait_until(lambda: figure(service, held) == 5, what="the locks")
        own_etcd.stop()
        unready(service)
        shutil.rmtree(own_etcd.data)
        own_etcd.start()
        wait_until(lambda: ready(service), what="readiness again")
        wait_until(lambda: figure(service, held) == 0, what="the locks to be gone")
        taken = time.monotonic()
        mutex(own_store, "old 0", 3)
        wait_until(lambda: has(own_store, "old 0") is None, what="the removal")
        assert time.monotonic() - taken >= 3
        wait_until(lambda: figure(service, REMOVED) == 1, what="the count")
        assert figure(service, "clustermutex_unlocker_watch_restarts_total") == 1
        assert (figure(service, "clustermutex_unlocker_table_loads_total") or 0) >= 2
        log = service.log_text()
        assert log.count("The watch on etcd broke") == 1
        assert log.count("does not answer") <= 1  # only if it was asked something meanwhile
        assert "Traceback" not in log


def test_an_etcd_without_a_clock(own_etcd: Etcd, own_store: EtcdStore) -> None:
    location = own_store.location
    with Relay(own_etcd.endpoint) as line:
        line.change = lambda said: said.replace(b"\r\nDate:", b"\r\nEtad:")
        settings = Settings((line.endpoint,), root=location.root)
        with when_ready(unlocker(settings)) as service, dashboard(settings) as pages:
            now, folder = time.time(), f"{location.root}/locks/nightly/"
            stamps = {"alert_at": f"{now + 1:.3f}", "auto_unlock_at": f"{now + 4:.3f}"}
            values = {"uuid": "u", "hostname": "script", **stamps}
            put_at_once(etcdctl_of(own_etcd), folder, values)
            told = "Clocks can't be compared"
            alert = "Lock 'nightly' is past its alert"
            wait_until(lambda: alert in service.log_text(), what="the alert")
            assert time.time() - now > 3
            wait_until(lambda: told in fetch(service, "/readyz")[1], what="a word in /readyz")
            assert ready(service)
            page = f"{pages}/lock?name=nightly"
            wait_until(lambda: "Clocks can" in urlopen(page).read().decode(), what="the page")
            found = called(settings, "doctor", "--listen", "1s", status=None).stdout
            assert "can't compare clocks: no server of the store tells its time" in found
            assert service.log_text().count(told) == 1
            assert service.log_text().count(alert) == 1
            assert has(own_store, "nightly") == "u"
