"""Each transaction is exactly that of `docs/protocol.md`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.errors import required_permissions
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import Transactions
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.requests import (
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
NEVER = Holder("a/b", "me", hostname="h", pid=7).stamped(Stamps(2.0, None))
DEAD = Holder("a/b", "dead", identity="w", fencing_token=77)
TICKET = Ticket("a/b", "me", hostname="h")
REMOVAL = Removal(HOLDER, 9.0, "ann", "force-unlock", "why")

PUT_HOLDER = """\
put uuid me; put hostname h; put alert_at 2.000; put auto_unlock_at 3.000; \
put about {"locked_at": 1.0, …}"""
FREE_AND_NO_LINE = "version uuid = 0; version withdrawn/me = 0; create queue/..queue0 = 0"
WHO_AND_WHY = "get uuid; get removed/me"
THROUGH_RAFT = "txn (if then else)"
TICKET_AND_HOLDER = "get queue/me; get uuid"
LOCK = "get uuid; get hostname; get alert_at; get auto_unlock_at; get about"
PUT_MARK = "put withdrawn/me  lease 5"
RECORD = f'delete locks/..locks0; put removed/me {{"name": "a/b", "uuid": …}} lease 5; {PUT_MARK}'
MARK = f"delete queue/me; {PUT_MARK}"
TXNS: dict[str, tuple[Request, str, str, str]] = {
    "take": (Take(HOLDER), FREE_AND_NO_LINE, PUT_HOLDER, "get uuid"),
    "take or queue": (
        TakeOrQueue(HOLDER, TICKET),
        FREE_AND_NO_LINE,
        PUT_HOLDER,
        "txn (if value uuid = me then get uuid else txn (if version withdrawn/me = 0 then "
        'put queue/me {"hostname": "h", "pid": …} lease 5; get uuid; get queue/me; '
        "get queue/..queue0 limit 2 by CREATE DESCEND else))",
    ),
    "look": (
        GetPosition("a/b", "me", 8),
        "",
        f"{TICKET_AND_HOLDER}; get queue/..queue0 limit 1 by CREATE DESCEND created up to 7; "
        f"{THROUGH_RAFT}",
        "",
    ),
    "look for one ticket": (
        GetPosition("a/b", "me", 8, "a%2fhead"),
        "",
        f"{TICKET_AND_HOLDER}; get queue/a%2fhead; {THROUGH_RAFT}",
        "",
    ),
    "step up": (
        GetPosition("a/b", "me", 8, "ahead", 12),
        "",
        f"{TICKET_AND_HOLDER}; get uuid at 12; {THROUGH_RAFT}",
        "",
    ),
    "claim": (
        Claim(HOLDER, 8),
        "version uuid = 0; create queue/me = 8",
        f"{PUT_HOLDER}; delete queue/me",
        "get uuid; get queue/me",
    ),
    "push": (
        Push("a/b", "me", Stamps(5.0, 6.0), 44),
        "value uuid = me; mod alert_at < 45",
        "put alert_at 5.000; put auto_unlock_at 6.000",
        f"{WHO_AND_WHY}; get alert_at",
    ),
    "push without an end": (
        Push("a/b", "me", Stamps(5.0, None), 44),
        "value uuid = me; mod alert_at < 45",
        "put alert_at 5.000",
        f"{WHO_AND_WHY}; get alert_at",
    ),
    "unlock": (Unlock("a/b", "me"), "value uuid = me", "delete locks/..locks0", WHO_AND_WHY),
    "withdraw": (
        Withdraw("a/b", "me"),
        "value uuid = me",
        "delete locks/..locks0; delete queue/me",
        "delete queue/me",
    ),
    "withdraw what may come late": (
        Withdraw("a/b", "me", tombstone=True),
        "value uuid = me",
        f"delete locks/..locks0; {MARK}",
        MARK,
    ),
    "read": (Read("a/b"), "", f"{LOCK}; {THROUGH_RAFT}", ""),
    "read all": (
        Read("a/b", "me", waiters=True),
        "",
        f"{LOCK}; get queue/..queue0; get removed/me; {THROUGH_RAFT}",
        "",
    ),
    "auto-unlock": (
        Remove(REMOVAL, (43, 44)),
        "value uuid = me; mod alert_at = 43; mod auto_unlock_at = 44",
        RECORD,
        WHO_AND_WHY,
    ),
    "force-unlock": (Remove(REMOVAL, None), "value uuid = me", RECORD, WHO_AND_WHY),
    "reclaim": (
        Reclaim(NEVER, DEAD),
        "value uuid = dead; mod uuid = 77; version withdrawn/me = 0",
        "delete auto_unlock_at; put uuid me; put hostname h; put alert_at 2.000; "
        'put about {"pid": 7, …}; delete queue/me',
        "get uuid",
    ),
}


def test_a_push_is_two_puts_and_a_take_is_five(transactions: Transactions) -> None:
    """Each is an entry in etcd's history, and an event for everybody who follows."""
    puts = {
        name: sum(part.WhichOneof("kind") == "put" for part in built.success)
        for name in TXNS
        if (built := transactions.build(TXNS[name][0], 5))
    }
    assert puts["take"] == puts["take or queue"] == puts["claim"] == 5
    assert puts["push"] == 2


def shown(txn: wire.Txn) -> tuple[str, str, str]:
    """A transaction's three parts."""
    return (
        "; ".join(map(comparison, txn.compare)),
        "; ".join(map(operation, txn.success)),
        "; ".join(map(operation, txn.failure)),
    )


def span(key: bytes, end: bytes) -> str:
    """A key or range, without what is the same in all of them."""
    return "..".join(
        part.decode().removeprefix("/r/").replace("/a%2Fb", "").removeprefix("locks/" * (not end))
        for part in (key, end)
        if part
    )


def comparison(compare: wire.Compare) -> str:
    target = wire.Compare.Target.Name(compare.target)
    field = compare.WhichOneof("expected")
    assert field is not None
    assert field.startswith(target.lower())
    sign = {wire.Compare.EQUAL: "=", wire.Compare.GREATER: ">", wire.Compare.LESS: "<"}[
        compare.result
    ]
    value = getattr(compare, field)
    said = value.decode() if isinstance(value, bytes) else value
    return f"{target.lower()} {span(compare.key, compare.range_end)} {sign} {said}"


def operation(part: wire.Operation) -> str:
    kind = part.WhichOneof("kind")
    if kind == "txn":
        parts = zip(("if", "then", "else"), shown(part.txn), strict=True)
        return f"txn ({' '.join(f'{word} {text}'.rstrip() for word, text in parts)})"
    if kind == "put":
        value = part.put.value.decode()
        said = value if len(value) < 20 else f"{value[:26].rpartition(' ')[0]} …}}"
        lease = f" lease {part.put.lease}" if part.put.lease else ""
        return f"put {span(part.put.key, b'')} {said}{lease}"
    if kind == "delete":
        return f"delete {span(part.delete.key, part.delete.range_end)}"
    get = part.range
    words = [f"get {span(get.key, get.range_end)}"]
    words += [f"at {get.revision}"] * bool(get.revision)
    words += [f"limit {get.limit}"] * bool(get.limit)
    if get.sort_order:
        target = wire.Range.Target.Name(get.sort_target)
        words.append(f"by {target} {wire.Range.Order.Name(get.sort_order)}")
    words += [f"created up to {get.max_create_revision}"] * bool(get.max_create_revision)
    return " ".join(words)


@pytest.fixture
def transactions() -> Transactions:
    return Transactions(Keys("/r"))


@pytest.mark.parametrize("name", TXNS)
def test_it_is_built_as_the_protocol_says(transactions: Transactions, name: str) -> None:
    """Comparisons in their order, then, else: neither more nor less."""
    request, *parts = TXNS[name]
    assert shown(transactions.build(request, 5)) == tuple(parts)


def operations(txn: wire.Txn) -> Iterator[wire.Operation]:
    for part in [*txn.success, *txn.failure]:
        yield part
        if part.WhichOneof("kind") == "txn":
            yield from operations(part.txn)


@pytest.mark.parametrize(
    "request_",
    [Unlock("x", "me"), Withdraw("x", "me"), Remove(REMOVAL, None, recorded=False)],
)
def test_what_lets_go_needs_no_space(transactions: Transactions, request_: Request) -> None:
    """No put in any branch (a removal: without its record), or a full etcd would refuse it."""
    built = transactions.build(request_, 0)
    assert not [part for part in operations(built) if part.WhichOneof("kind") == "put"]


@pytest.mark.parametrize("name", TXNS)
def test_etcd_takes_so_many_operations(transactions: Transactions, name: str) -> None:
    """At most 128 in one transaction."""
    assert len(list(operations(transactions.build(TXNS[name][0], 5)))) < 30


# ---------------------------------------------------------------- rights

LONG = replace(REMOVAL, holder=replace(HOLDER, backtrace="x" * 1000))
SENT: dict[str, tuple[Request, ...]] = {
    "client": tuple(request for request, *_ in TXNS.values() if not isinstance(request, Remove)),
    "unlocker": (Remove(LONG, (5, 5)), Read("a/b", "me", waiters=True)),
    "dashboard": (Read("a/b", "me", waiters=True),),
    "operator": (Remove(LONG, None), Read("a/b", "me", waiters=True)),
}


@pytest.mark.parametrize("kind", WRITES)
def test_each_request_is_covered_and_each_grant_is_used(
    transactions: Transactions, kind: str
) -> None:
    """The roles of `clustermutex setup-auth` cover what each program sends, and no more is granted;
    reading is, everywhere below the root.

    The etcds of the tests do not check what is nested in a transaction; newer ones do. So what each
    request wants is read off the request here.
    """
    wanted = [required_permissions(transactions.build(request, 5), "/r") for request in SENT[kind]]
    assert all(folder.startswith("/r/") for rights in wanted for folder in rights)
    written = {folder for rights in wanted for folder in rights if "write" in rights[folder]}
    # `announce` and `write_note` are no requests of a mutex.
    own = {"/r/unlockers/", "/r/notifications/"} if kind == "unlocker" else set()
    assert written | own == {f"/r/{folder}/" for folder in WRITES[kind]}
