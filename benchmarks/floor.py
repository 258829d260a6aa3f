"""The floor: the same operations through bare grpcio stubs, with requests built beforehand.

Nothing in Python over grpcio can lock and unlock in fewer steps: two transactions with the puts of
a real holder, of the same sizes, and no code around them. The messages are put together here, not
by the library that is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from lockclient.stores.etcd.wire import messages_pb2 as wire

TXN = "/etcdserverpb.KV/Txn"
WATCH = "/etcdserverpb.Watch/Watch"
STAMPS = ("alert_at", "auto_unlock_at")


class Wire:
    """A plain channel to one etcd, its two stubs and nothing else."""

    def __init__(self, endpoint: str) -> None:
        # An option is what keeps a channel from sharing its connection with another of the process.
        self.channel = grpc.insecure_channel(
            endpoint, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.txn: Any = self.channel.unary_unary(
            TXN,
            request_serializer=wire.Txn.SerializeToString,
            response_deserializer=wire.TxnAnswer.FromString,
        )

    def watch(self, requests: SimpleQueue[wire.WatchRequest]) -> Iterator[wire.WatchAnswer]:
        """Open a watch stream."""
        stream: Any = self.channel.stream_stream(
            WATCH,
            request_serializer=wire.WatchRequest.SerializeToString,
            response_deserializer=wire.WatchAnswer.FromString,
        )
        answers: Iterator[wire.WatchAnswer] = stream(iter(requests.get, None))
        return answers

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class Floor:
    """A lock without a library: `acquire` and `release` are one bare call each.

    Args:
        wire_to: the stubs.
        name: the lock's name.
        values: what a real holder writes, subkey to value.
        ticket: whether it takes the lock as a waiter does, giving up a ticket.
    """

    def __init__(
        self, wire_to: Wire, name: str, values: dict[str, str], *, ticket: bool = False
    ) -> None:
        self._txn = wire_to.txn
        folder = f"/floor/locks/{name}/".encode()
        self.uuid_key = folder + b"uuid"
        line = f"/floor/queue/{name}/".encode()
        self._take = _take(folder, line, values, ticket=ticket)
        self._unlock = _unlock(folder, values)
        self._push = _push(folder, values)

    def acquire(self) -> None:
        """Take the lock."""
        if not self._txn(self._take).succeeded:
            raise AssertionError("the floor's lock is held by another one")

    def release(self) -> None:
        """Give the lock back."""
        if not self._txn(self._unlock).succeeded:
            raise AssertionError("the floor's lock was not held")

    def push(self) -> None:
        """Push the stamps forward, as `alive()` does."""
        if not self._txn(self._push).succeeded:
            raise AssertionError("the floor's lock was not held")

    def cycle(self) -> None:
        """Take the lock and give it back."""
        self.acquire()
        self.release()


def _take(folder: bytes, line: bytes, values: dict[str, str], *, ticket: bool) -> wire.Txn:
    own = line + values["uuid"].encode()
    absent = wire.Compare(target=wire.Compare.VERSION, key=folder + b"uuid", version=0)
    success = _puts(folder, values)
    if ticket:  # as the head of a line
        second = wire.Compare(target=wire.Compare.CREATE, key=own, create_revision=0)
        success.append(wire.Operation(delete=wire.Delete(key=own)))
    else:
        second = wire.Compare(
            target=wire.Compare.CREATE, key=line, range_end=line[:-1] + b"0", create_revision=0
        )
    read = wire.Operation(range=wire.Range(key=folder + b"uuid"))
    return wire.Txn(compare=[absent, second], success=success, failure=[read])


def _unlock(folder: bytes, values: dict[str, str]) -> wire.Txn:
    delete = wire.Delete(key=folder, range_end=folder[:-1] + b"0")
    return wire.Txn(
        compare=[_mine(folder, values)],
        success=[wire.Operation(delete=delete)],
        failure=[wire.Operation(range=wire.Range(key=folder + b"uuid"))],
    )


def _push(folder: bytes, values: dict[str, str]) -> wire.Txn:
    stamps = {part: value for part, value in values.items() if part in STAMPS}
    return wire.Txn(compare=[_mine(folder, values)], success=_puts(folder, stamps))


def _mine(folder: bytes, values: dict[str, str]) -> wire.Compare:
    uuid = values["uuid"].encode()
    return wire.Compare(target=wire.Compare.VALUE, key=folder + b"uuid", value=uuid)


def _puts(folder: bytes, values: dict[str, str]) -> list[wire.Operation]:
    return [
        wire.Operation(put=wire.Put(key=folder + part.encode(), value=value.encode()))
        for part, value in values.items()
    ]
