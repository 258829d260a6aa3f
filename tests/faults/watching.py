"""What the tests of watches share: stores, a cable to cut, and what a watch was told."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from lockclient import Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.etcd.wire.watch_state import Missed, News
from lockclient.stores.etcd.wire.watch_stream import Watch
from tests.support.etcd_store import etcd_store


class Stores:
    """Opens stores on an endpoint, with a root of the test's own; a context manager."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._opened: list[EtcdStore] = []

    def __call__(self, endpoint: str, **how: Any) -> EtcdStore:
        store = etcd_store(Settings(endpoints=(endpoint,), **{"root": self._root, **how}))
        self._opened.append(store)
        return store

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._opened:
            each.close()


class Cable:
    """A way to `target` that can be cut, and counts who tries it; a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._whole = True
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Close all connections, and those to come as soon as they are made."""
        with self._lock:
            self._whole = False
            self._close(*self._ends)
            self._ends.clear()

    def mend(self) -> None:
        """Let everything through again."""
        self._whole = True

    def __enter__(self) -> Cable:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._close(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                self._join(client)

    def _join(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if not self._whole:
                    raise ConnectionError("the cable is cut")
                server = socket.create_connection(self._target)
            except OSError:
                self._close(client)
                return
            self._ends |= {client, server}
        for pair in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        self._close(source, sink)

    @staticmethod
    def _close(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def soon() -> Deadline:
    """A limit that only a test that fails reaches."""
    return Deadline.after(60)


def write(store: EtcdStore, *keys: bytes, value: bytes = b"") -> int:
    """Put these keys in one transaction; return its revision."""
    puts = [wire.Operation(put=wire.Put(key=key, value=value)) for key in keys]
    answer = store._channels.call(TXN, wire.Txn(success=puts), soon())
    return int(answer.header.revision)


def delete(store: EtcdStore, key: bytes) -> int:
    """Delete this key; return the revision."""
    operation = wire.Operation(delete=wire.Delete(key=key))
    answer = store._channels.call(TXN, wire.Txn(success=[operation]), soon())
    return int(answer.header.revision)


class Heard:
    """What one watch was told."""

    def __init__(self, store: EtcdStore, span: tuple[bytes, bytes], revision: int) -> None:
        self.missed: list[Missed] = []
        self.events: list[tuple[int, bytes, int, bytes]] = []
        self.answers: list[int] = []
        self.watch = Watch(store._streams, span, revision, self._hear)

    def _hear(self, news: News) -> None:
        if isinstance(news, Missed):
            self.missed.append(news)
        elif isinstance(news, list):
            self.answers.append(len(news))
            self.events += [
                (each.kv.mod_revision, each.kv.key, each.kind, each.kv.value) for each in news
            ]


def last(heard: Heard) -> int:
    """Return the revision of the last event that was told, 0: none yet."""
    return heard.events[-1][0] if heard.events else 0
