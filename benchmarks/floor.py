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
from lockclient.stores.etcd.wire.rpc_methods import TXN, WATCH, make_call

STAMPS = ("alert_at", "auto_unlock_at")


class Wire:
    """A plain channel to one etcd, its two stubs and nothing else."""

    def __init__(self, endpoint: str) -> None:
        # An option is what keeps a channel from sharing its connection with another of the process.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(endpoint, options=options)
        self.txn: Any = make_call(self.channel, TXN)
        self.close = self.channel.close

    def watch(self, requests: SimpleQueue[wire.WatchRequest]) -> Iterator[wire.WatchAnswer]:
        """Open a watch stream."""
        answers: Iterator[wire.WatchAnswer] = make_call(self.channel, WATCH)(
            iter(requests.get, None)
        )
        return answers


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
        folder, line = f"/floor/locks/{name}/".encode(), f"/floor/queue/{name}/".encode()
        self.uuid_key = key = folder + b"uuid"
        self._txn = wire_to.txn
        absent = wire.Compare(target=wire.Compare.VERSION, key=key, version=0)
        mine = wire.Compare(target=wire.Compare.VALUE, key=key, value=values["uuid"].encode())
        read = wire.Operation(range=wire.Range(key=key))
        first = wire.Compare(
            target=wire.Compare.CREATE, key=line, range_end=line[:-1] + b"0", create_revision=0
        )
        success = puts(folder, values)
        if ticket:  # as the head of a line
            own = line + values["uuid"].encode()
            first = wire.Compare(target=wire.Compare.CREATE, key=own, create_revision=0)
            success.append(wire.Operation(delete=wire.Delete(key=own)))
        delete = wire.Operation(delete=wire.Delete(key=folder, range_end=folder[:-1] + b"0"))
        stamps = {part: value for part, value in values.items() if part in STAMPS}
        self._take = wire.Txn(compare=[absent, first], success=success, failure=[read])
        self._unlock = wire.Txn(compare=[mine], success=[delete], failure=[read])
        self._push = wire.Txn(compare=[mine], success=puts(folder, stamps))

    def acquire(self) -> bool:
        """Take the lock; return True, as other locks do."""
        if not self._txn(self._take).succeeded:
            raise AssertionError("the floor's lock is held by another one")
        return True

    def release(self) -> None:
        """Give the lock back."""
        if not self._txn(self._unlock).succeeded:
            raise AssertionError("the floor's lock was not held")

    def push(self) -> None:
        """Push the stamps forward, as `alive()` does."""
        if not self._txn(self._push).succeeded:
            raise AssertionError("the floor's lock was not held")


def puts(folder: bytes, values: dict[str, str]) -> list[wire.Operation]:
    """Return what writes a lock's subkeys."""
    return [
        wire.Operation(put=wire.Put(key=folder + part.encode(), value=value.encode()))
        for part, value in values.items()
    ]
