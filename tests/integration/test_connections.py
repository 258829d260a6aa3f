"""Connections to etcd: not by way of a proxy."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from lockclient import AsyncClusterMutex, ClusterMutex, Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.support.locks import following
from tests.support.processes import wait_until

Opener = Callable[[Settings], EtcdStore]


@pytest.fixture
def web_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A proxy for the web that the environment names, and that refuses; what it was asked."""
    asked: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                asked.append(caller.recv(1000))
                caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=serve, daemon=True).start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)


def test_a_proxy_for_the_web_is_not_asked_for_etcd(
    web_proxy: list[bytes], settings: Settings, opened: Opener
) -> None:
    """By threads, asyncio and the watch: it would see the password."""
    store = opened(settings)

    async def lock_once() -> None:
        async with AsyncClusterMutex("y", store=store):
            pass

    with following(store) as table, ClusterMutex("x", store=store):
        wait_until(lambda: table.row("x"), what="the lock in the table")
        asyncio.run(lock_once())
    assert web_proxy == []
