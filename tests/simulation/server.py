"""The simulated etcd behind a real gRPC server, for the contract suite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from lockclient.stores.etcd.wire import messages_pb2 as wire
from tests.simulation.etcd import Refusal, SimulatedEtcd, as_event

LOOK_S = 0.01
"""Seconds after which a watch looks for what is new."""


class Serving:
    """One simulated etcd, for threads, on the real clock."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd()
        self.lock = threading.Lock()
        self.over = threading.Event()

    @contextmanager
    def now(self) -> Iterator[SimulatedEtcd]:
        """The etcd, at this moment."""
        with self.lock:
            self.etcd.now = time.monotonic()
            self.etcd.expire()
            yield self.etcd

    def ask(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer a single request."""
        try:
            with self.now() as etcd:
                return getattr(etcd, name)(request)
        except Refusal as refusal:
            text = str(refusal)
        codes = {"space": grpc.StatusCode.RESOURCE_EXHAUSTED, "lease": grpc.StatusCode.NOT_FOUND}
        found = (code for word, code in codes.items() if word in text)
        return context.abort(next(found, grpc.StatusCode.OUT_OF_RANGE), text)

    def keep_alive(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer on a stream of renewals."""
        for request in requests:
            yield self.ask("keep_alive", request, context)

    def watch(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Answer on a stream of watches."""
        asked: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_pass_on, args=(requests, asked), daemon=True).start()
        watches: dict[int, tuple[Any, int, bool]] = {}
        while context.is_active() and not self.over.is_set():
            try:
                request = asked.get(timeout=LOOK_S)
            except Empty:
                yield from self._news(watches)
                continue
            if request is None:
                return
            yield from self._answer(request, watches)

    def _answer(self, request: Any, watches: dict[int, tuple[Any, int, bool]]) -> Iterator[Any]:
        with self.now() as etcd:
            header, revision = etcd.header(), etcd.revision
        if request.HasField("cancel"):
            watches.pop(request.cancel.watch_id, None)
            number = request.cancel.watch_id
            yield wire.WatchAnswer(header=header, watch_id=number, canceled=True)
        elif request.HasField("create"):
            create = request.create
            begin = create.start_revision or revision + 1
            watches[create.watch_id] = create, begin, begin > revision
            yield wire.WatchAnswer(header=header, watch_id=create.watch_id, created=True)

    def _news(self, watches: dict[int, tuple[Any, int, bool]]) -> Iterator[Any]:
        for number, (create, begin, synced) in list(watches.items()):
            answer = wire.WatchAnswer(watch_id=number)
            with self.now() as etcd:
                answer.header.CopyFrom(etcd.header())
                try:
                    span = (create.key, create.range_end)
                    found = etcd.events(begin, *span, synced=synced)
                except Refusal:
                    del watches[number]
                    answer.canceled, answer.compact_revision = True, etcd.compacted
                    found = []
                else:
                    watches[number] = create, max(begin, etcd.revision + 1), True
            if wire.WatchCreate.NOPUT in create.filters:
                found = [write for write in found if write.value is None]
            answer.events.extend(map(as_event, found))
            if found or answer.canceled:
                yield answer


def _pass_on(requests: Iterator[Any], to: SimpleQueue[Any]) -> None:
    try:
        for request in requests:
            to.put(request)
    except Exception:  # noqa: BLE001 - the client has gone
        pass
    to.put(None)


def _handlers(serving: Serving) -> list[Any]:
    kinds: dict[str, dict[str, tuple[str, Any]]] = {
        "KV": {"Txn": ("txn", wire.Txn), "Range": ("range", wire.Range)},
        "Lease": {
            "LeaseGrant": ("grant", wire.LeaseGrant),
            "LeaseRevoke": ("revoke", wire.LeaseRevoke),
        },
    }
    single: Callable[..., Any] = grpc.unary_unary_rpc_method_handler
    stream: Callable[..., Any] = grpc.stream_stream_rpc_method_handler
    served: dict[str, dict[str, Any]] = {
        service: {
            method: single(partial(serving.ask, name), request.FromString, _bytes)
            for method, (name, request) in methods.items()
        }
        for service, methods in kinds.items()
    }
    renewal = wire.LeaseKeepAlive.FromString
    served["Lease"]["LeaseKeepAlive"] = stream(serving.keep_alive, renewal, _bytes)
    served["Watch"] = {"Watch": stream(serving.watch, wire.WatchRequest.FromString, _bytes)}
    return [
        grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", methods)
        for service, methods in served.items()
    ]


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@contextmanager
def served() -> Iterator[tuple[Serving, str]]:
    """A simulated etcd, and the endpoint at which it answers."""
    serving = Serving()
    server = grpc.server(ThreadPoolExecutor(64), handlers=_handlers(serving))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield serving, f"127.0.0.1:{port}"
    finally:
        serving.over.set()
        server.stop(0.2).wait()
