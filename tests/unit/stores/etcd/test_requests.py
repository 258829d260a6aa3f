"""Each transaction is exactly that of `docs/protocol.md`."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent, indent

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import Transactions
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
put locks/a%2Fb/uuid me
put locks/a%2Fb/hostname h
put locks/a%2Fb/alert_at 2.000
put locks/a%2Fb/auto_unlock_at 3.000
put locks/a%2Fb/about {"locked_at": 1.0, …}
"""
FREE_AND_NO_LINE = """\
version locks/a%2Fb/uuid = 0
version withdrawn/a%2Fb/me = 0
create queue/a%2Fb/..queue/a%2Fb0 = 0
"""
WHO_AND_WHY = """\
get locks/a%2Fb/uuid
get removed/a%2Fb/me
"""
TXNS: dict[str, tuple[Request, str, str, str]] = {
    "take": (Take(HOLDER), FREE_AND_NO_LINE, PUT_HOLDER, "get locks/a%2Fb/uuid\n"),
    "take or queue": (
        TakeOrQueue(HOLDER, TICKET),
        FREE_AND_NO_LINE,
        PUT_HOLDER,
        """\
        txn
          if
            value locks/a%2Fb/uuid = me
          then
            get locks/a%2Fb/uuid
          else
            txn
              if
                version withdrawn/a%2Fb/me = 0
              then
                put queue/a%2Fb/me {"hostname": "h", "pid": …} lease 5
                get locks/a%2Fb/uuid
                get queue/a%2Fb/me
                get queue/a%2Fb/..queue/a%2Fb0 limit 2 by CREATE DESCEND
              else
        """,
    ),
    "look": (
        GetPosition("a/b", "me", 8),
        "",
        """\
        get queue/a%2Fb/me
        get locks/a%2Fb/uuid
        get queue/a%2Fb/..queue/a%2Fb0 limit 1 by CREATE DESCEND created up to 7
        txn
          if
          then
          else
        """,
        "",
    ),
    "look for one ticket": (
        GetPosition("a/b", "me", 8, "a%2fhead"),
        "",
        """\
        get queue/a%2Fb/me
        get locks/a%2Fb/uuid
        get queue/a%2Fb/a%2fhead
        txn
          if
          then
          else
        """,
        "",
    ),
    "step up": (
        GetPosition("a/b", "me", 8, "ahead", 12),
        "",
        """\
        get queue/a%2Fb/me
        get locks/a%2Fb/uuid
        get locks/a%2Fb/uuid at 12
        txn
          if
          then
          else
        """,
        "",
    ),
    "claim": (
        Claim(HOLDER, 8),
        """\
        version locks/a%2Fb/uuid = 0
        create queue/a%2Fb/me = 8
        """,
        PUT_HOLDER + "delete queue/a%2Fb/me\n",
        """\
        get locks/a%2Fb/uuid
        get queue/a%2Fb/me
        """,
    ),
    "push": (
        Push("a/b", "me", Stamps(5.0, 6.0), 44),
        """\
        value locks/a%2Fb/uuid = me
        mod locks/a%2Fb/alert_at < 45
        """,
        """\
        put locks/a%2Fb/alert_at 5.000
        put locks/a%2Fb/auto_unlock_at 6.000
        """,
        WHO_AND_WHY + "get locks/a%2Fb/alert_at\n",
    ),
    "push without an end": (
        Push("a/b", "me", Stamps(5.0, None), 44),
        """\
        value locks/a%2Fb/uuid = me
        mod locks/a%2Fb/alert_at < 45
        """,
        "put locks/a%2Fb/alert_at 5.000\n",
        WHO_AND_WHY + "get locks/a%2Fb/alert_at\n",
    ),
    "unlock": (
        Unlock("a/b", "me"),
        "value locks/a%2Fb/uuid = me\n",
        "delete locks/a%2Fb/..locks/a%2Fb0\n",
        WHO_AND_WHY,
    ),
    "withdraw": (
        Withdraw("a/b", "me"),
        "value locks/a%2Fb/uuid = me\n",
        """\
        delete locks/a%2Fb/..locks/a%2Fb0
        delete queue/a%2Fb/me
        """,
        "delete queue/a%2Fb/me\n",
    ),
    "withdraw what may come late": (
        Withdraw("a/b", "me", tombstone=True),
        "value locks/a%2Fb/uuid = me\n",
        """\
        delete locks/a%2Fb/..locks/a%2Fb0
        delete queue/a%2Fb/me
        put withdrawn/a%2Fb/me  lease 5
        """,
        """\
        delete queue/a%2Fb/me
        put withdrawn/a%2Fb/me  lease 5
        """,
    ),
    "read": (
        Read("a/b"),
        "",
        """\
        get locks/a%2Fb/uuid
        get locks/a%2Fb/hostname
        get locks/a%2Fb/alert_at
        get locks/a%2Fb/auto_unlock_at
        get locks/a%2Fb/about
        txn
          if
          then
          else
        """,
        "",
    ),
    "read all": (
        Read("a/b", "me", waiters=True),
        "",
        """\
        get locks/a%2Fb/uuid
        get locks/a%2Fb/hostname
        get locks/a%2Fb/alert_at
        get locks/a%2Fb/auto_unlock_at
        get locks/a%2Fb/about
        get queue/a%2Fb/..queue/a%2Fb0
        get removed/a%2Fb/me
        txn
          if
          then
          else
        """,
        "",
    ),
    "auto-unlock": (
        Remove(REMOVAL, (43, 44)),
        """\
        value locks/a%2Fb/uuid = me
        mod locks/a%2Fb/alert_at = 43
        mod locks/a%2Fb/auto_unlock_at = 44
        """,
        """\
        delete locks/a%2Fb/..locks/a%2Fb0
        put removed/a%2Fb/me {"name": "a/b", "uuid": …} lease 5
        put withdrawn/a%2Fb/me  lease 5
        """,
        WHO_AND_WHY,
    ),
    "force-unlock": (
        Remove(REMOVAL, None),
        "value locks/a%2Fb/uuid = me\n",
        """\
        delete locks/a%2Fb/..locks/a%2Fb0
        put removed/a%2Fb/me {"name": "a/b", "uuid": …} lease 5
        put withdrawn/a%2Fb/me  lease 5
        """,
        WHO_AND_WHY,
    ),
    "reclaim": (
        Reclaim(NEVER, DEAD),
        """\
        value locks/a%2Fb/uuid = dead
        mod locks/a%2Fb/uuid = 77
        version withdrawn/a%2Fb/me = 0
        """,
        """\
        delete locks/a%2Fb/auto_unlock_at
        put locks/a%2Fb/uuid me
        put locks/a%2Fb/hostname h
        put locks/a%2Fb/alert_at 2.000
        put locks/a%2Fb/about {"pid": 7, …}
        delete queue/a%2Fb/me
        """,
        "get locks/a%2Fb/uuid\n",
    ),
}


def test_a_push_is_two_puts_and_a_take_is_five(transactions: Transactions) -> None:
    """Each is an entry in etcd's history, and an event for everybody who follows."""
    puts = {
        name: sum(each.WhichOneof("kind") == "put" for each in built.success)
        for name in TXNS
        if (built := transactions.build(TXNS[name][0], 5))
    }
    assert puts["take"] == puts["take or queue"] == puts["claim"] == 5
    assert puts["push"] == 2


def shown(txn: wire.Txn) -> tuple[str, str, str]:
    """A transaction's three parts, a line each."""
    return (
        "".join(f"{line}\n" for line in map(comparison, txn.compare)),
        "".join(f"{line}\n" for line in map(operation, txn.success)),
        "".join(f"{line}\n" for line in map(operation, txn.failure)),
    )


def span(key: bytes, end: bytes) -> str:
    text = key.decode().removeprefix("/r/")
    return f"{text}..{end.decode().removeprefix('/r/')}" if end else text


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


def operation(each: wire.Operation) -> str:
    kind = each.WhichOneof("kind")
    if kind == "txn":
        parts = zip(("if", "then", "else"), shown(each.txn), strict=True)
        inner = "".join(f"{word}\n{indent(text, '  ')}" for word, text in parts)
        return "txn\n" + indent(inner, "  ").rstrip("\n")
    if kind == "put":
        value = each.put.value.decode()
        said = value if len(value) < 20 else f"{value[:26].rpartition(' ')[0]} …}}"
        lease = f" lease {each.put.lease}" if each.put.lease else ""
        return f"put {span(each.put.key, b'')} {said}{lease}"
    if kind == "delete":
        return f"delete {span(each.delete.key, each.delete.range_end)}"
    get = each.range
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
    assert shown(transactions.build(request, 5)) == tuple(map(dedent, parts))


def operations(txn: wire.Txn) -> Iterator[wire.Operation]:
    for each in [*txn.success, *txn.failure]:
        yield each
        if each.WhichOneof("kind") == "txn":
            yield from operations(each.txn)


@pytest.mark.parametrize(
    "request_",
    [Unlock("x", "me"), Withdraw("x", "me"), Remove(REMOVAL, None, recorded=False)],
)
def test_what_lets_go_needs_no_space(transactions: Transactions, request_: Request) -> None:
    """No put in any branch (a removal: without its record), or a full etcd would refuse it."""
    built = transactions.build(request_, 0)
    assert [each for each in operations(built) if each.WhichOneof("kind") == "put"] == []


@pytest.mark.parametrize("name", TXNS)
def test_etcd_takes_so_many_operations(transactions: Transactions, name: str) -> None:
    """At most 128 in one transaction."""
    assert len(list(operations(transactions.build(TXNS[name][0], 5)))) < 30
