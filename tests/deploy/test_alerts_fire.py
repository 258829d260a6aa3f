"""The whole way of an alert: from a worker that forgets `alive()` to a received message.

With the real Prometheus and Alertmanager and the files under `deploy/`; `tests/deploy/stack.py`
says which times in them are shortened.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.deploy.stack import Stack, get
from tests.support.etcd_binary import Etcdctl, put_at_once
from tests.support.etcd_store import etcd_store
from tests.support.locks import HolderProcess
from tests.support.processes import Figure, wait_until

NAME, REASON = 'deploy/"größe" a+b&c', "rebuild <totals>"
SHOWN = rf'{NAME} (deploy/"gr\xf6\xdfe" a+b&c)'
"""How labels and pages write it."""


@pytest.fixture
def worker(stack: Stack) -> Iterator[subprocess.Popen[str]]:
    """A process that holds `NAME` and never says that it is alive."""
    how: dict[str, Any] = {"reason": REASON, "expected_runtime": 1, "auto_unlock_after": 10}
    with HolderProcess(stack.settings, NAME, **how) as holder:
        yield holder.process


@pytest.fixture
def locks(stack: Stack) -> Iterator[dict[str, ClusterMutex]]:
    """Two locks that this process holds and is late with; nobody removes them."""
    store = etcd_store(stack.settings)
    made = {
        name: ClusterMutex(name, expected_runtime=1, auto_unlock_after=None, store=store)
        for name in ("released", "kept")
    }
    for lock in made.values():
        assert lock.acquire()
    yield made
    store.close()


def test_alerts_arrive_name_the_holder_and_end(
    stack: Stack,
    worker: subprocess.Popen[str],
    locks: dict[str, ClusterMutex],
    figure: Figure,
) -> None:
    began, receiver = time.monotonic(), stack.receiver

    alert = receiver.told("firing", "LockPastAlert", name=SHOWN)
    said = alert["annotations"]
    assert NAME in said["summary"]
    assert said["holder"] == f'{socket.gethostname()}, pid {worker.pid}, for "{REASON}"'
    assert said["dashboard_url"].startswith(stack.url("mutexdash"))
    page = get(said["dashboard_url"])
    assert "größe" in page
    assert "rebuild &lt;totals&gt;" in page
    assert said["runbook_url"].endswith("runbook.md#lockpastalert")
    figure(f"LockPastAlert arrived {time.monotonic() - began:.1f} s after the lock was taken")

    for name in locks:
        receiver.told("firing", "LockPastAlert", name=name)
    worker.kill()
    locks["released"].release()
    alert = receiver.told("firing", "LockAutoUnlocked", name=SHOWN)
    said = alert["annotations"]
    assert said["holder"] == f'{socket.gethostname()}, pid {worker.pid}, for "{REASON}"'
    assert "rebuild &lt;totals&gt;" in get(said["dashboard_url"])
    receiver.told("resolved", "LockPastAlert", name=SHOWN)
    receiver.told("resolved", "LockPastAlert", name="released")

    stack.unlocker.process.kill()
    killed = time.monotonic()
    receiver.told("firing", "UnlockerDown", severity="critical")
    figure(f"UnlockerDown arrived {time.monotonic() - killed:.1f} s after it was killed")
    others = wait_until(lambda: held_back(stack), what="the rest to be inhibited")
    assert {"LockPastAlert", "LockAutoUnlocked"} <= others
    # Prometheus forgets the lock, of which it hears no more, and tells Alertmanager so.
    wait_until(
        lambda: (
            not stack.query('ALERTS{alertname="LockPastAlert"}')
            and not [alert for alert in stack.alerts() if alert["labels"].get("name") == "kept"]
        ),
        what="LockPastAlert to end",
    )

    stack.start_unlocker()
    receiver.told("resolved", "UnlockerDown", severity="critical")
    wait_until(
        lambda: stack.query('ALERTS{alertname="LockPastAlert", name="kept", alertstate="firing"}'),
        what="LockPastAlert to fire again",
    )
    # Until then no message said that the alert was over: it was not.
    assert len(receiver.about("LockPastAlert", name="kept")) == 1
    locks["kept"].release()
    receiver.told("resolved", "LockPastAlert", name="kept")
    figure(f"the whole story took {time.monotonic() - began:.0f} s")


@pytest.mark.soak
def test_no_alert_is_resolved_while_no_unlocker_sees(
    own_etcd: Etcd, own_store: EtcdStore, tmp_path: Path, figure: Figure
) -> None:
    with Stack(Settings(endpoints=(own_etcd.endpoint,)), tmp_path) as stack:
        receiver = stack.receiver
        firing = 'ALERTS{alertname="LockPastAlert", name="kept", alertstate="firing"}'
        lock = ClusterMutex("kept", expected_runtime=1, auto_unlock_after=None, store=own_store)
        assert lock.acquire()
        receiver.told("firing", "LockPastAlert", name="kept")
        own_etcd.stop()
        stopped = time.monotonic()
        receiver.told("firing", "NoUnlockerSees")
        figure(f"NoUnlockerSees arrived {time.monotonic() - stopped:.1f} s after etcd stopped")
        wait_until(lambda: not stack.query(firing), what="LockPastAlert to end in Prometheus")
        own_etcd.start()
        receiver.told("resolved", "NoUnlockerSees")
        wait_until(lambda: stack.query(firing), what="LockPastAlert again")
        assert len(receiver.about("LockPastAlert", name="kept")) == 1
        lock.release()
        receiver.told("resolved", "LockPastAlert", name="kept")


@pytest.mark.soak
def test_a_free_lock_with_waiters_alerts(stack: Stack, etcdctl: Etcdctl, figure: Figure) -> None:
    line, receiver = f"{stack.settings.root}/queue/deploy%2Fprod", stack.receiver
    began = time.monotonic()
    etcdctl("put", f"{line}/one", '{"hostname": "web-1", "pid": 4711, "reason": "totals"}')
    etcdctl("put", f"{line}/two", "{}")
    receiver.told("firing", "LockFreeWithWaiters", name="deploy/prod")
    figure(f"LockFreeWithWaiters arrived {time.monotonic() - began:.1f} s after the ticket")

    words = ("--prefix", f"{line}/", "--sort-by=CREATE", "--order=ASCEND", "--keys-only")
    first, *others = etcdctl("get", *words).split()
    assert first == f"{line}/one"
    etcdctl("del", first)
    for other in others:
        etcdctl("del", other)
    receiver.told("resolved", "LockFreeWithWaiters", name="deploy/prod")


@pytest.mark.soak
def test_an_undecided_lock_alerts_and_is_not_called_overdue(
    stack: Stack, etcdctl: Etcdctl, figure: Figure
) -> None:
    prefix, receiver, now = f"{stack.settings.root}/locks/by-hand/", stack.receiver, time.time()
    stamps = {"alert_at": f"{now + 1:.3f}", "auto_unlock_at": f"{now - 300:.3f}"}
    put_at_once(etcdctl, prefix, {"uuid": "u", "hostname": "web-1", **stamps, "about": "{}"})
    receiver.told("firing", "LockPastAlert", name="by-hand")
    receiver.told("firing", "LockUndecided")
    figure(f"LockUndecided arrived {time.time() - now:.1f} s after the lock")
    assert receiver.about("LockOverdue", name="by-hand") == []
    etcdctl("del", "--prefix", prefix)
    receiver.told("resolved", "LockUndecided")
    receiver.told("resolved", "LockPastAlert", name="by-hand")
    assert receiver.about("LockOverdue", name="by-hand") == []


def held_back(stack: Stack) -> set[str]:
    """Return the names of the alerts that UnlockerDown holds back, once that is all but itself."""
    alerts = stack.alerts()
    (down,) = [
        alert
        for alert in alerts
        if alert["labels"]["alertname"] == "UnlockerDown"
        and alert["labels"]["severity"] == "critical"
    ]
    # The Watchdog is held back by nothing.
    rest = [
        alert for alert in alerts if alert is not down and alert["labels"]["severity"] != "none"
    ]
    if not all(down["fingerprint"] in alert["status"]["inhibitedBy"] for alert in rest):
        return set()
    return {alert["labels"]["alertname"] for alert in rest}
