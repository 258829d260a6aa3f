"""What the tests of watches share: stores, and what a watch was told."""

from __future__ import annotations

from collections.abc import Callable

from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.etcd.wire.watch_state import Missed, News
from lockclient.stores.etcd.wire.watch_stream import Watch
from tests.support.locks import soon

Stores = Callable[..., EtcdStore]


def write(store: EtcdStore, *keys: bytes, value: bytes = b"") -> int:
    puts = [wire.Operation(put=wire.Put(key=key, value=value)) for key in keys]
    answer = store._channels.call(TXN, wire.Txn(success=puts), soon())
    return int(answer.header.revision)


def delete(store: EtcdStore, key: bytes) -> int:
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
                (event.kv.mod_revision, event.kv.key, event.kind, event.kv.value) for event in news
            ]


def last(heard: Heard) -> int:
    """Return the revision of the last event that was told, 0: none yet."""
    return heard.events[-1][0] if heard.events else 0
