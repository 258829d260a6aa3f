"""Locks have no lease: etcd itself never ends one, however it was taken."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from lockclient import ClusterMutex
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import queue_up
from tests.support.processes import wait_until


def _kept(etcdctl: Etcdctl, prefix: str) -> list[dict[str, Any]]:
    kvs = json.loads(etcdctl("get", "--prefix", prefix, "-w", "json")).get("kvs", [])
    return [kv | {"key": base64.b64decode(kv["key"]).decode()} for kv in kvs]


@pytest.mark.promise(number=8)
def test_no_key_of_a_lock_has_a_lease(store: ServiceStore, root: str, etcdctl: Etcdctl) -> None:
    """Taken at once, with a ticket's lease at hand, after a wait, by the same identity; pushed."""
    first = ClusterMutex("waited-for", store=store, auto_unlock_after=None)
    first.acquire()
    waiter = ClusterMutex("waited-for", store=store)
    thread = threading.Thread(target=waiter.acquire, daemon=True)
    thread.start()
    wait_until(lambda: waiter.waiters(), what="the ticket")
    ClusterMutex("with-lease", store=store).acquire()  # the process has its tickets' lease now
    first.release()
    thread.join(60)
    ClusterMutex("at-once", store=store).acquire(blocking=False)
    pushed = ClusterMutex("pushed", store=store)
    pushed.acquire()
    pushed.alive(force=True)

    names = {"waited-for", "with-lease", "at-once", "pushed"}
    found = _kept(etcdctl, f"{root}/locks/")
    assert {kv["key"].split("/")[-2] for kv in found} == names
    assert [kv["key"] for kv in found if kv.get("lease")] == []


def test_tickets_of_a_process_share_one_lease(
    store: ServiceStore, root: str, etcdctl: Etcdctl
) -> None:
    holder, *waiters = (ClusterMutex("x", store=store) for _ in range(3))
    holder.acquire()
    threads = [queue_up(waiter) for waiter in waiters]
    (lease,) = {kv.get("lease") for kv in _kept(etcdctl, f"{root}/queue/")}
    said = json.loads(etcdctl("lease", "timetolive", f"{lease:x}", "-w", "json"))
    assert said["granted-ttl"] == 10
    for mutex, thread in zip((holder, *waiters), threads, strict=False):
        mutex.release()
        thread.join(60)
    waiters[-1].release()
