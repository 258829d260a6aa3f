"""The connection of a program's own `etcd3` client: its channel and its token."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import etcd3
import pytest

from lockclient import (
    AsyncClusterMutex,
    ClusterMutex,
    Settings,
    StoreError,
    default_store,
    open_store,
)
from lockclient.cli.setup.etcd_server import Etcd
from tests.integration.test_auth import ROOT, Guarded, start
from tests.support.certificates import Authority, TlsEtcd
from tests.support.locks import queue_up


@pytest.fixture(autouse=True)
def _no_default() -> Iterator[None]:
    """The store that `setup` names is forgotten again."""
    yield
    default_store.swap_default(None)


def live(name: str = "x") -> None:
    """Take a lock, wait for it in line, push, notice, release."""
    with ClusterMutex(name) as held:
        waiter = ClusterMutex(name)
        thread = queue_up(waiter)
        held.alive(force=True)
    thread.join(30)
    assert waiter.locked()
    waiter.release()
    assert waiter.holder() is None


def test_its_connection_is_used(etcd: Etcd, root: str) -> None:
    with etcd3.client(port=etcd.port) as client:
        ClusterMutex.setup(client=client, root=root)
        live()
        with ClusterMutex("y") as held:
            value, meta = client.get(held.guard.key.decode())
            assert (value, meta.mod_revision) == (held.uuid.encode(), held.fencing_token)
            # The comparison goes into a transaction of the program's own.
            done, _ = client.transaction(
                compare=[client.transactions.value(held.guard.key) == held.guard.value],
                success=[client.transactions.put(f"{root}/mine", "1")],
                failure=[],
            )
            assert done
        default_store.default_store().close()
        assert client.get(f"{root}/mine")[0] == b"1"


def test_a_closed_client_is_reported(etcd: Etcd, root: str) -> None:
    client = etcd3.client(port=etcd.port)
    ClusterMutex.setup(client=client, root=root)
    live()
    client.close()
    with pytest.raises(StoreError, match="closed"):
        ClusterMutex("x").acquire(timeout=1)
    with pytest.raises(StoreError, match="was closed"):
        asyncio.run(asyncio.wait_for(AsyncClusterMutex("x").acquire(timeout=20), 10))


def test_its_tls_and_its_token_are_used(etcd_binary: str, tmp_path: Path) -> None:
    """The environment's own user is another one."""
    authority = Authority(tmp_path)
    pair = authority.issue("127.0.0.1")
    server = TlsEtcd(authority, pair, etcd_binary, tmp_path / "data", tmp_path / "log")
    with server, etcd3.client("127.0.0.1", server.port, authority.cacert) as client:
        os.environ["ETCDCTL_USER"] = "nobody:nothing"
        try:
            ClusterMutex.setup(client=client)
        finally:
            del os.environ["ETCDCTL_USER"]
        live()


class TestWithUsers:
    @pytest.fixture
    def guarded(self, etcd_binary: str, tmp_path: Path) -> Iterator[Guarded]:
        """An etcd whose tokens last 2 s."""
        with start(etcd_binary, tmp_path, "simple") as server:
            found = Guarded(server)
            found.set_up()
            yield found

    @pytest.fixture
    def client(self, guarded: Guarded) -> Iterator[Any]:
        """The client of a user who may use locks."""
        with etcd3.client(port=guarded.server.port, user="ann", password="of-ann") as client:
            yield client

    def test_its_token_serves_as_long_as_it_lasts(self, guarded: Guarded, client: Any) -> None:
        """Then it is said what to do: `etcd3` does not renew it."""
        ClusterMutex.setup(client=client, root=ROOT)
        live()
        guarded.outlive_tokens()
        with pytest.raises(StoreError, match="user and password"):
            ClusterMutex("x").acquire()

    def test_with_user_and_password_it_is_renewed(self, guarded: Guarded, client: Any) -> None:
        ClusterMutex.setup(client=client, root=ROOT, user="ann", password="of-ann")
        live()
        guarded.outlive_tokens()
        live()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"client": 3}, "must be an etcd3 client, not 3"),
        ({"client": object(), "url": "etcd://h:1"}, "not both"),
        ({"client": object(), "endpoints": ["h:1"]}, "not both"),
    ],
)
def test_a_wrong_client_is_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterMutex.setup(**arguments)


@pytest.mark.parametrize(
    "acquire",
    [
        lambda store: ClusterMutex("x", store=store).acquire(timeout=5),
        lambda store: asyncio.run(AsyncClusterMutex("x", store=store).acquire(timeout=5)),
    ],
    ids=["thread", "asyncio"],
)
def test_a_forked_child_needs_its_own_client(
    acquire: Callable[[Any], object], etcd: Etcd, root: str
) -> None:
    with etcd3.client(port=etcd.port) as client:
        store = open_store(Settings(root=root), client)
        mutex = ClusterMutex("x", store=store)
        assert mutex.holder() is None
        read, write = os.pipe()
        gc.collect()  # a channel of another test, collected in the child, has gRPC spin there
        child = os.fork()
        if not child:
            try:
                acquire(store)
            except StoreError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert b"make a new one and call ClusterMutex.setup(client=" in os.read(read, 1000)
        live_on = mutex.acquire(timeout=10)
        assert live_on
        mutex.release()
        store.close()
