"""Broken data and foreign keys affect no lock, over a real etcd."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from lockclient import ClusterMutex
from lockclient.stores.service_store import ServiceStore
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import held as holder_of

BROKEN = [
    ("uuid", b""),
    ("uuid", b"\xff\xfe"),
    ("hostname", b"\xff"),
    ("alert_at", b"soon"),
    ("auto_unlock_at", b"-1"),
    ("alert_at", b"9" * 400),
    ("about", b""),
    ("about", b"\0" * 200_000),
    ("about", b"[" * 60_000),
    ("about", b'{"pid": "many"}'),
    ("about", b'{"process": "a b %s c", "identity": "worker-7"}' % (b"9" * 5000)),
    ("about", b'{"identity": "worker-7\xff"}'),
    ("about", b'{"identity": "worker-7", "format": 2}'),
    ("unknown/sub/key", b"?"),
    ("", b"no part at all"),
]


@pytest.mark.parametrize(("part", "value"), BROKEN, ids=[f"{a}-{b[:8]!r}" for a, b in BROKEN])
def test_broken_data_before_and_under_a_lock_does_not_hurt(
    store: ServiceStore, root: str, etcdctl: Etcdctl, part: str, value: bytes
) -> None:
    """A range without `uuid` is free to take; one with any `uuid` is held.

    The holder pushes and releases, and all of the range goes with the lock.
    """
    prefix = f"{root}/locks/x/"
    put(etcdctl, prefix + part, value)
    mutex = ClusterMutex("x", store=store, timeout=0.3, identity="worker-7")
    if part == "uuid":
        assert not mutex.acquire()
        etcdctl("del", "--prefix", prefix)
    with mutex as held:
        if part != "uuid":
            put(etcdctl, prefix + part, value)
        held.alive(force=True)
        held.check_health()
        holder_of(store, "x").describe()
        assert not ClusterMutex("x", store=store, identity="worker-8").acquire(blocking=False)
    assert etcdctl("get", "--prefix", prefix) == ""


@pytest.mark.parametrize(
    ("ticket", "value"), [("x", b""), ("x", b"{"), ("x", b"[1]"), ("a%2Fb", b'{"pid": "x"}')]
)
def test_a_broken_ticket_has_its_place(
    store: ServiceStore, root: str, etcdctl: Etcdctl, ticket: str, value: bytes
) -> None:
    key = f"{root}/queue/x/{ticket}"
    put(etcdctl, key, value)
    mutex = ClusterMutex("x", store=store)
    assert not mutex.acquire(timeout=0.3)
    (waiter,) = mutex.waiters()
    assert (waiter.hostname, waiter.pid) == (None, None)
    etcdctl("del", key)
    with mutex:
        assert mutex.waiters() == []


def test_foreign_keys_are_left_alone(store: ServiceStore, root: str, etcdctl: Etcdctl) -> None:
    strangers = [f"{root}/locks/a b/uuid", f"{root}/locks/%2f/uuid", f"{root}/else", f"{root}s/x"]
    for key in strangers:
        put(etcdctl, key, b"theirs")
    for name in ("a b", "/", "else"):
        with ClusterMutex(name, store=store) as mutex:
            assert quote(name, safe="") in mutex.guard.key.decode()
    for key in strangers:
        assert "theirs" in etcdctl("get", key)


def put(etcdctl: Etcdctl, key: str, value: bytes) -> None:
    """Write any bytes: through standard input they need no escaping."""
    if value:
        etcdctl("put", key, input=value)
    else:
        etcdctl("put", key, "")
