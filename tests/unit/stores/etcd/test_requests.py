"""Etcd's transactions: how large they are, what they need, and which rights cover them.

What they do is in `tests/contract`; what they look like on the wire is run from docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import PLANS
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.request_types import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)

HOLDER = Holder("a/b", "me", hostname="h", locked_at=1.0).stamped(Stamps(2.0, 3.0))
DEAD = Holder("a/b", "dead", identity="w", fencing_token=77)
REMOVAL = Removal(HOLDER, 9.0, "ann", "force-unlock", "why")
READS: tuple[Request, ...] = (
    GetPosition("a/b", "me", 8),
    GetPosition("a/b", "me", 8, "ahead"),
    GetPosition("a/b", "me", 8, "ahead", 12),
    Read("a/b"),
    Read("a/b", "me", waiters=True),
)
OF_A_CLIENT: tuple[Request, ...] = (
    *(Take(HOLDER), TakeOrQueue(HOLDER, Ticket("a/b", "me", hostname="h")), Claim(HOLDER, 8)),
    *(Push("a/b", "me", Stamps(5.0, 6.0), 44), Push("a/b", "me", Stamps(5.0, None), 44)),
    *(Unlock("a/b", "me"), Withdraw("a/b", "me"), Withdraw("a/b", "me", tombstone=True)),
    *(Reclaim(HOLDER, DEAD), *READS),
)
REMOVALS = (Remove(REMOVAL, (43, 44)), Remove(REMOVAL, None))


def built(request: Request) -> wire.Txn:
    return PLANS[type(request)](Keys("/r"), request).txn


def operations(txn: wire.Txn) -> Iterator[wire.Operation]:
    """All operations of a transaction, those of nested ones, too."""
    for part in [*txn.success, *txn.failure]:
        yield part
        if part.WhichOneof("kind") == "txn":
            yield from operations(part.txn)


def puts(txn: wire.Txn) -> int:
    return sum(part.WhichOneof("kind") == "put" for part in txn.success)


@pytest.mark.parametrize("request_", [*OF_A_CLIENT, *REMOVALS])
def test_etcd_takes_so_many_operations(request_: Request) -> None:
    """At most 128 in one transaction; five puts a take and two a push, each an event to follow."""
    txn = built(request_)
    assert len(list(operations(txn))) < 30
    if isinstance(request_, Take | TakeOrQueue | Claim):
        assert puts(txn) == 5
        with pytest.raises(ValueError, match="never expire"):
            PLANS[type(request_)](Keys("/r"), request_).bind(0)
    elif isinstance(request_, Push):
        assert puts(txn) == 1 + (request_.stamps.auto_unlock_at is not None)


@pytest.mark.parametrize("request_", READS)
def test_a_read_goes_through_raft(request_: Request) -> None:
    """By a nested transaction: a member that is cut off can't answer it from what it knows."""
    assert any(part.WhichOneof("kind") == "txn" for part in operations(built(request_)))


@pytest.mark.parametrize(
    "request_", [Unlock("x", "me"), Withdraw("x", "me"), Remove(REMOVAL, None, recorded=False)]
)
def test_releasing_requests_write_nothing(request_: Request) -> None:
    txn = built(request_)
    assert not [part for part in operations(txn) if part.WhichOneof("kind") == "put"]


LONG = replace(REMOVAL, holder=replace(HOLDER, backtrace="x" * 1000))
SENT: dict[str, tuple[Request, ...]] = {
    "client": OF_A_CLIENT,
    "unlocker": (Remove(LONG, (5, 5)), Read("a/b", "me", waiters=True)),
    "dashboard": (Read("a/b", "me", waiters=True),),
    "operator": (Remove(LONG, None), Read("a/b", "me", waiters=True)),
}


@pytest.mark.parametrize("kind", WRITES)
def test_each_request_is_covered_and_each_grant_is_used(kind: str) -> None:
    """The roles of `clustermutex setup-auth` cover what each program sends, and no more is granted;
    reading is, everywhere below the root.

    The etcds of the tests do not check what is nested in a transaction; newer ones do. So what each
    request wants is read off the request here.
    """
    compared = {part.key for request in SENT[kind] for part in built(request).compare}
    parts = [part for request in SENT[kind] for part in operations(built(request))]
    read = {part.range.key for part in parts if part.HasField("range")}
    written = {part.put.key for part in parts if part.HasField("put")}
    written |= {part.delete.key for part in parts if part.HasField("delete")}
    assert all(key.startswith(b"/r/") for key in compared | read | written)
    # `announce` and `write_document` are no requests of a mutex.
    own = {"unlockers", "notifications"} if kind == "unlocker" else set()
    assert {key.decode().split("/")[2] for key in written} | own == set(WRITES[kind])
