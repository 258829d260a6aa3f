"""Records etcd's whole event stream from all members at once, without duplicates.

How late it may be with an event it knows by reading beside it, again and again: what a read that
was sent at a moment did not show was written after that.
"""

from __future__ import annotations

import queue
import threading
import time
from bisect import bisect_left
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import OPTIONS, RANGE, WATCH, make_call
from tests.proof.history import Line, Sink
from tests.support.etcd_cluster import Cluster

READS_S = 0.05
"""Seconds between two reads."""
_LEASE = 6
"""The field of a key's lease in etcd's `KeyValue`."""


class Recorder:
    """A context manager.

    Attributes:
        revision: up to which it has written all.
    """

    def __init__(self, cluster: Cluster, write: Sink) -> None:
        self.revision = 0
        self._write = write
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._known: tuple[list[int], list[float]] = [0], [time.monotonic()]
        self._channels = [
            grpc.insecure_channel(member.endpoint, options=OPTIONS) for member in cluster.members
        ]
        jobs = [(self._follow, channel) for channel in self._channels]
        jobs += [(self._read, channel) for channel in self._channels]
        self._threads = [
            threading.Thread(target=job, args=(channel,), daemon=True) for job, channel in jobs
        ]

    def __enter__(self) -> Recorder:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for channel in self._channels:
            channel.close()
        for thread in self._threads:
            thread.join(60)

    def _follow(self, channel: Any) -> None:
        """Watch all keys on one member, whatever comes of it."""
        while not self._over.wait(0.1):
            requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
            begin = wire.WatchRequest()
            begin.create.key, begin.create.range_end = b"\0", b"\0"
            begin.create.start_revision = self.revision + 1
            requests.put(begin)
            with suppress(grpc.RpcError, ValueError):  # a channel that was closed
                for answer in make_call(channel, WATCH)(
                    iter(requests.get, None), metadata=(("hasleader", "true"),)
                ):
                    assert not answer.compact_revision, "etcd forgot what was not recorded yet"
                    self._take(answer.events)
            requests.put(None)

    def _take(self, events: Any) -> None:
        now = time.monotonic()
        with self._lock:
            for event in events:
                revision = event.kv.mod_revision
                if revision <= self.revision:
                    continue
                deleted = event.kind == wire.WatchEvent.DELETE
                revisions, sent = self._known
                self._write(
                    Line(
                        *(now, "etcd", "written"),
                        revision=revision,
                        # All reads whose answers were below that were sent before it.
                        seconds=round(now - sent[bisect_left(revisions, revision) - 1], 4),
                        key=event.kv.key.decode(),
                        value=None if deleted else event.kv.value.decode(),
                        lease=_lease_of(event.kv),
                    )
                )
            self.revision = max(self.revision, *(event.kv.mod_revision for event in events), 0)

    def _read(self, channel: Any) -> None:
        call = make_call(channel, RANGE)
        while not self._over.wait(READS_S):
            sent = time.monotonic()
            with suppress(grpc.RpcError, ValueError):
                revision = call(wire.Range(key=b"?", count_only=True), timeout=1).header.revision
                with self._lock:
                    revisions, times = self._known
                    if revision >= revisions[-1] and sent > times[-1]:
                        revisions.append(revision)
                        times.append(sent)


def _lease_of(kv: Any) -> int:
    """Return a key's lease, which the library never asks for, and does not name."""
    unknown: Any = UnknownFieldSet(kv)
    return next((int(one.data) for one in unknown if one.field_number == _LEASE), 0)
