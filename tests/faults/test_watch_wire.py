"""The assumptions about watch streams, checked on etcd's side of the wire."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import OPTIONS, TXN, WATCH, make_call
from lockclient.stores.mutex_store import WatchTarget
from tests.faults.conftest import Stores
from tests.support.processes import Figure
from tests.support.relay import Relay


def test_a_revision_is_never_split(etcd: Etcd, root: str) -> None:
    with grpc.insecure_channel(etcd.endpoint, options=OPTIONS) as channel:
        keys = [f"{root}/{number}".encode() for number in range(120)]

        def write(value: bytes) -> int:
            puts = [wire.Operation(put=wire.Put(key=key, value=value)) for key in keys]
            answer = make_call(channel, TXN)(wire.Txn(success=puts), timeout=60)
            return int(answer.header.revision)

        asked = wire.WatchRequest()
        asked.create.key, asked.create.range_end = f"{root}/".encode(), f"{root}0".encode()
        asked.create.start_revision = write(b"x" * 10_000)
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(asked)
        answers = make_call(channel, WATCH)(iter(requests.get, None), timeout=60)
        told = (len(answer.events) for answer in answers if answer.events)
        assert next(told) == 120, "written before"
        write(b"y" * 10_000)
        assert next(told) == 120, "written while it is watched"
        requests.put(None)


class _Ending(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A server that ends each stream of watches after its first answer."""

    def __init__(self) -> None:
        self.streams = 0

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            self._end,
            request_deserializer=wire.WatchRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _end(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.streams += 1
        number = next(requests).create.watch_id
        yield wire.WatchAnswer(watch_id=number, created=True, header=wire.Header(revision=5))
        context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")


class TestUnreachable:
    """A stream is opened about once a second: gRPC spreads its own tries by 20%."""

    SECONDS = 3.0
    MOST = 5

    def test_connections_are_closed(self, stores: Stores, figure: Figure) -> None:
        with Relay("127.0.0.1:1") as cable:
            cable.cut()
            self.is_patient(stores(cable.endpoint), lambda: cable.accepted, figure)

    def test_streams_end(self, stores: Stores, figure: Figure) -> None:
        handler = _Ending()
        with ThreadPoolExecutor() as pool:
            server = grpc.server(pool, handlers=[handler])
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            self.is_patient(stores(f"127.0.0.1:{port}"), lambda: handler.streams, figure)
            server.stop(0).wait()

    def is_patient(self, store: EtcdStore, count: Callable[[], int], figure: Figure) -> None:
        """Count tries while there are two watches, the first quick tries aside."""
        watches = [store.watch(WatchTarget("x"), revision, lambda _: None) for revision in (0, 5)]
        time.sleep(1.5)
        before, worked = count(), time.process_time()
        time.sleep(self.SECONDS)
        tries, busy = count() - before, (time.process_time() - worked) / self.SECONDS
        figure(f"{tries} tries in {self.SECONDS:g} s; {busy:.0%} of a core")
        assert 1 <= tries <= self.MOST
        assert busy < 0.5
        for watch in watches:
            watch.close()
        store.close()
