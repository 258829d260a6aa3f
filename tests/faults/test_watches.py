"""Watches that survive: streams cut, etcd killed, frozen, compacted, or away."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lockclient import ClusterMutex, LockLost
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import TXN
from lockclient.stores.protocol import WatchTarget
from tests.faults.watching import Heard, Stores, delete, last, write
from tests.support.etcd_binary import Etcdctl, frozen
from tests.support.following import following
from tests.support.locks import queue_up, remove, soon
from tests.support.processes import Figure, wait_until
from tests.support.relay import Relay


@pytest.fixture
def cable(etcd: Etcd) -> Iterator[Relay]:
    with Relay(etcd.endpoint) as it:
        yield it


def compact(etcdctl: Etcdctl, revision: int) -> None:
    etcdctl("compaction", "--physical", str(revision))


class TestCompaction:
    """At the revision of a deletion: a watch from there is told nothing (etcd-io/etcd #18089)."""

    def test_a_watch_that_begins(
        self, etcd: Etcd, stores: Stores, etcdctl: Etcdctl, root: str
    ) -> None:
        """Asked for from the deletion on, as after a look at the revision before it."""
        store, key = stores(etcd.endpoint), f"{root}/key".encode()
        write(store, key)
        revision = delete(store, key)
        compact(etcdctl, revision)
        heard = Heard(store, (key, b""), revision)
        wait_until(lambda: heard.missed, what="word of the deletion")

    def test_whoever_was_away_finds_out(
        self, etcd: Etcd, cable: Relay, stores: Stores, etcdctl: Etcdctl, figure: Figure
    ) -> None:
        """A waiter that it is its turn, a holder its loss, a table what has changed."""
        away, other = stores(cable.endpoint), stores(etcd.endpoint)
        losses: list[LockLost] = []
        held = ClusterMutex("held", store=away, on_lost=losses.append)
        held.acquire()
        first = ClusterMutex("first", store=other)
        first.acquire()
        waiter = ClusterMutex("first", store=away)
        thread = queue_up(waiter)
        time.sleep(1.2)  # a holder watches for its loss after a second
        with following(away) as table:
            assert set(table.rows()) == {"held", "first"}
            cable.cut()
            wait_until(lambda: not table.connected(), what="the end of the stream")
            remove(other, held.record)
            first.release()
            seen = other._channels.call(TXN, wire.Txn(), soon()).header.revision
            compact(etcdctl, seen)
            cable.mend()
            mended_at = time.monotonic()
            thread.join(60)
            assert waiter.locked()
            wait_until(lambda: losses, what="the loss")
            wait_until(lambda: set(table.rows()) == {"first"}, what="what is left")
            row = table.row("first")
            assert row is not None
            assert row.holder.uuid == waiter.uuid
            assert losses[0].removal is not None
            figure(f"all found out {time.monotonic() - mended_at:.1f} s after the connection was")
        waiter.release()


class TestBreaks:
    def test_nothing_is_missed_or_told_twice(
        self, own_etcd: Etcd, stores: Stores, root: str, figure: Figure
    ) -> None:
        """Hundreds of events while the stream breaks at random moments and etcd is killed once.

        A watch on a range and many on one key each, on one stream. The truth is etcd's own
        history, read in one go when all is over.
        """
        keys = [f"{root}/k/{number:02}".encode() for number in range(20)]
        span = (f"{root}/k/".encode(), f"{root}/k0".encode())
        rng = random.Random()
        with Relay(own_etcd.endpoint) as cable:
            store, other = stores(cable.endpoint), stores(own_etcd.endpoint)
            everything = Heard(store, span, 1)
            single = {key: Heard(store, (key, b""), 1) for key in keys}
            writer = _Writer(other, keys, rng.random())
            writer.start()
            for number in range(7):
                time.sleep(rng.uniform(0.0, 1.2))
                cable.cut()
                if number == 3:
                    assert own_etcd.process is not None
                    own_etcd.process.kill()
                    own_etcd.process.wait()
                    own_etcd.start()
                time.sleep(rng.uniform(0.0, 0.2))
                cable.mend()
            final = writer.finish()
            wait_until(lambda: last(everything) == final, what="all")
            truth = Heard(other, span, 1)
            wait_until(lambda: last(truth) == final, what="the truth")
            assert everything.events == truth.events
            for key, heard in single.items():  # each catches up for itself
                expected = [event for event in truth.events if event[1] == key]
                wait_until(lambda: len(heard.events) >= len(expected), what="all of a key")  # noqa: B023
                assert heard.events == expected
                assert heard.missed == []
            tries = cable.accepted
        assert len(truth.events) > 300
        figure(f"{len(truth.events)} events over 7 breaks ({tries} connections): each told once")

    def test_a_revision_is_never_split(self, etcd: Etcd, stores: Stores, root: str) -> None:
        """What one transaction wrote comes in one answer, however big: we rely on it."""
        store = stores(etcd.endpoint)
        keys = [f"{root}/{number}".encode() for number in range(120)]
        revision = write(store, *keys, value=b"x" * 10_000)
        for begin in (revision, revision + 1):
            heard = Heard(store, (f"{root}/".encode(), f"{root}0".encode()), begin)
            if begin > revision:
                write(store, *keys, value=b"y" * 10_000)
            wait_until(lambda heard=heard: len(heard.events) >= 120, what="the events")  # type: ignore[misc]
            assert heard.answers[0] == 120


class _Writer(threading.Thread):
    """Writes and deletes keys, a few in a transaction, until it is told to finish."""

    def __init__(self, store: EtcdStore, keys: list[bytes], seed: float) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._keys = keys
        self._rng = random.Random(seed)
        self._ending = threading.Event()
        self._done = 0

    def run(self) -> None:
        while self._done < 150 or not self._ending.is_set():
            self._done += 1
            chosen = self._rng.sample(self._keys, 3)
            write(self._store, *chosen, value=str(self._rng.random()).encode())
            if self._rng.random() < 0.3:
                delete(self._store, chosen[0])
            time.sleep(self._rng.uniform(0.0, 0.02))

    def finish(self) -> int:
        """End it; return the revision of the last write, which is to the first key."""
        self._ending.set()
        self.join(60)
        return write(self._store, self._keys[0], value=b"the last")


def test_a_half_open_connection_is_noticed(
    own_etcd: Etcd, stores: Stores, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that hangs: said within 15 s; then everything goes on by itself."""
    caplog.set_level(logging.WARNING)
    store, waiting = stores(own_etcd.endpoint), stores(own_etcd.endpoint)
    held = ClusterMutex("x", store=store)
    held.acquire()
    waiter = ClusterMutex("x", store=waiting)
    thread = queue_up(waiter)
    with following(store) as table:
        wait_until(waiting.connected, what="the waiter's watch")
        time.sleep(2)  # a ping of gRPC's that is under way would end it sooner
        with frozen(own_etcd):
            frozen_at, worked = time.monotonic(), time.process_time()
            wait_until(lambda: not table.connected(), what="the table to notice")
            wait_until(lambda: not waiting.connected(), what="the waiter to notice")
            noticed = time.monotonic() - frozen_at
            busy = (time.process_time() - worked) / noticed
            assert noticed < 15 + 3
            assert "The watch on etcd broke" in caplog.text
            assert not waiter.locked()
            figure(f"noticed after {noticed:.1f} s; {busy:.0%} of a core in the meantime")
            assert busy < 0.5
        held.release()
        thread.join(60)
        assert waiter.locked()
        wait_until(lambda: (row := table.row("x")) and row.holder.uuid == waiter.uuid, what="it")
        wait_until(table.connected, what="the table")
        assert table.loads == 1
        waiter.release()


class _Refusing(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A server that ends each stream of watches at once; `polite`: after an answer."""

    def __init__(self, polite: bool) -> None:
        self.streams = 0
        self._polite = polite

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(
            self._end,
            request_deserializer=wire.WatchRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _end(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.streams += 1
        if self._polite:
            number = next(requests).create.watch_id
            yield wire.WatchAnswer(watch_id=number, created=True, header=wire.Header(revision=5))
        context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")


class TestAway:
    SECONDS = 3.0
    MOST = 5
    """About one try a second: gRPC spreads its own tries by 20%."""

    def test_it_is_tried_once_a_second(self, stores: Stores, figure: Figure) -> None:
        """Nobody listens; connections are closed as soon as they are made; streams are refused."""
        worked, began = time.process_time(), time.monotonic()
        with ThreadPoolExecutor() as pool:
            cases = {
                "nobody listens": pool.submit(self.nobody, stores),
                "connections are closed": pool.submit(self.closing, stores),
                "streams are refused": pool.submit(self.refusing, stores, polite=False),
                "streams end": pool.submit(self.refusing, stores, polite=True),
            }
            counts = {name: case.result() for name, case in cases.items()}
        busy = (time.process_time() - worked) / (time.monotonic() - began)
        told = ", ".join(f"{count} where {name}" for name, count in counts.items())
        figure(f"tries in {self.SECONDS:g} s: {told}; {busy:.0%} of a core for all four")
        assert all(1 <= count <= self.MOST for count in counts.values()), counts
        assert busy < 0.5

    def nobody(self, stores: Stores) -> int:
        """Count the tries to open a stream."""
        store = stores(f"127.0.0.1:{free_port()}")
        really, tries = store._channels.open_stream, []

        def counted(*how: Any) -> Any:
            tries.append(how)
            return really(*how)

        store._channels.open_stream = counted  # type: ignore[method-assign, assignment]
        return self.tries(store, lambda: len(tries))

    def closing(self, stores: Stores) -> int:
        with Relay("127.0.0.1:1") as cable:
            cable.cut()
            return self.tries(stores(cable.endpoint), lambda: cable.accepted)

    def refusing(self, stores: Stores, *, polite: bool) -> int:
        handler = _Refusing(polite)
        with ThreadPoolExecutor() as pool:
            server = grpc.server(pool, handlers=[handler])
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            counted = self.tries(stores(f"127.0.0.1:{port}"), lambda: handler.streams)
            server.stop(0).wait()
        return counted

    def tries(self, store: EtcdStore, count: Callable[[], int]) -> int:
        """Return how much is counted while there are two watches, the first quick tries aside."""
        watches = [store.watch(WatchTarget("x"), revision, lambda _: None) for revision in (0, 5)]
        time.sleep(1.5)
        before = count()
        time.sleep(self.SECONDS)
        counted = count() - before
        for watch in watches:
            watch.close()
        for stream in store._streams:
            stream.close()
        return counted
