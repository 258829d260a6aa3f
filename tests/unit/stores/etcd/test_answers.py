"""What each answer of etcd means, also when the request was sent more than once."""

from __future__ import annotations

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import SUBKEYS, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.answers import outcome_of
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import Transactions
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Outcome,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
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
DEAD = Holder("a/b", "dead", identity="w", fencing_token=77)
TICKET = Ticket("a/b", "me", hostname="h")
REMOVAL = Removal(HOLDER, 9.0, "ann", "force-unlock", "why")


@pytest.fixture
def transactions() -> Transactions:
    return Transactions(Keys("/r"))


def kv(key: str, value: str, mod: int = 3, create: int = 3) -> wire.KeyValue:
    return wire.KeyValue(
        key=f"/r/{key}".encode(), value=value.encode(), mod_revision=mod, create_revision=create
    )


def answer(*ranges: list[wire.KeyValue], succeeded: bool = False) -> wire.TxnAnswer:
    """An answer at revision 50 whose responses are these ranges."""
    responses = [wire.Answer(range=wire.RangeAnswer(kvs=each)) for each in ranges]
    return wire.TxnAnswer(header=wire.Header(revision=50), succeeded=succeeded, responses=responses)


def lock_of(*kvs: wire.KeyValue) -> list[list[wire.KeyValue]]:
    """The first answers to a `Read`: one for each subkey that is known."""
    return [[each for each in kvs if each.key.endswith(f"/{part}".encode())] for part in SUBKEYS]


def nested(inner: wire.TxnAnswer) -> wire.TxnAnswer:
    outer = answer()
    outer.responses.add().txn.CopyFrom(inner)
    return outer


UUID, ALERT, LINE = "locks/a%2Fb/uuid", "locks/a%2Fb/alert_at", "queue/a%2Fb"
PUSH = Push("a/b", "me", Stamps(2.0, 3.0), 44)
MINE = kv(UUID, "me", 40)
OTHER = kv(UUID, "other", 40)
OWN = kv(f"{LINE}/me", "{}", 8, 8)
AHEAD = kv(f"{LINE}/ahead", "{}", 7, 7)
BEHIND = kv(f"{LINE}/behind", "{}", 9, 9)
YES = answer(succeeded=True)
RECORD = kv("removed/a%2Fb/me", REMOVAL.value())
READINGS: list[tuple[Request, wire.TxnAnswer, Outcome]] = [
    (Take(HOLDER), YES, Taken(50)),
    (Take(HOLDER), answer([MINE]), Taken(40, by_earlier_send=True)),
    (Take(HOLDER), answer([OTHER]), Refused("other", 50)),
    (Take(HOLDER), answer([]), Refused(None, 50)),
    (Reclaim(HOLDER, DEAD), YES, Taken(50)),
    (Reclaim(HOLDER, DEAD), answer([MINE]), Taken(40, by_earlier_send=True)),
    (Reclaim(HOLDER, DEAD), answer([OTHER]), Refused("other", 50)),
    (TakeOrQueue(HOLDER, TICKET), YES, Taken(50)),
    (
        TakeOrQueue(HOLDER, TICKET),
        nested(answer([MINE], succeeded=True)),
        Taken(40, by_earlier_send=True),
    ),
    (
        TakeOrQueue(HOLDER, TICKET),
        nested(nested(answer([], [OTHER], [OWN], [OWN, AHEAD], succeeded=True))),
        Queued(8, "ahead", "other", 50),
    ),
    (
        TakeOrQueue(HOLDER, TICKET),
        nested(nested(answer([], [], [OWN], [OWN], succeeded=True))),
        Queued(8, None, None, 50),
    ),
    (
        TakeOrQueue(HOLDER, TICKET),
        nested(nested(answer([], [OTHER], [OWN], [BEHIND, OWN], succeeded=True))),
        Queued(8, None, "other", 50, ambiguous=True),
    ),
    (TakeOrQueue(HOLDER, TICKET), nested(nested(answer())), Refused(None, 50, uuid_spent=True)),
    (
        GetPosition("a/b", "me", 8),
        answer([OWN], [OTHER], [AHEAD]),
        Position(True, "ahead", "other", 50),
    ),
    (GetPosition("a/b", "me", 8), answer([OWN], [], []), Position(True, None, None, 50)),
    (GetPosition("a/b", "me", 8), answer([], [OTHER], []), Position(False, None, "other", 50)),
    (GetPosition("a/b", "me", 6), answer([OWN], [OTHER], []), Position(False, None, "other", 50)),
    (
        GetPosition("a/b", "me", 8, "ahead"),
        answer([OWN], [OTHER], [AHEAD]),
        Position(True, "ahead", "other", 50),
    ),
    (
        GetPosition("a/b", "me", 8, "ahead"),
        answer([OWN], [OTHER], []),
        Position(True, None, "other", 50, ambiguous=True),
    ),
    (
        GetPosition("a/b", "me", 8, "ahead"),
        answer([OWN], [OTHER], [kv(f"{LINE}/ahead", "{}", 9, 9)]),
        Position(True, "ahead", "other", 50, ambiguous=True),
    ),
    (  # a foreign client's, which is not encoded as ours would be
        GetPosition("a/b", "me", 8),
        answer([OWN], [OTHER], [kv(f"{LINE}/h%2f7", "{}", 7, 7)]),
        Position(True, "h%2f7", "other", 50),
    ),
    (
        GetPosition("a/b", "me", 8, "ahead", 30),
        answer([OWN], [OTHER], [kv(UUID, "ahead", 30)]),
        Position(True, None, "other", 50),
    ),
    *(
        (
            GetPosition("a/b", "me", 8, "ahead", 30),
            answer([OWN], [OTHER], then),
            Position(True, None, "other", 50, ambiguous=True),
        )
        for then in ([], [kv(UUID, "ahead", 29)], [kv(UUID, "another", 30)])
    ),
    (Claim(HOLDER, 8), YES, Taken(50)),
    (Claim(HOLDER, 8), answer([MINE], []), Taken(40, by_earlier_send=True)),
    (Claim(HOLDER, 8), answer([OTHER], [OWN]), Refused("other", 50, ticket=True)),
    (Claim(HOLDER, 8), answer([], []), Refused(None, 50, ticket=False)),
    (Claim(HOLDER, 6), answer([], [OWN]), Refused(None, 50, ticket=False)),
    (PUSH, YES, Done(50)),
    (PUSH, answer([OTHER], [], []), NotHolder("other", None)),
    (PUSH, answer([OTHER], [], [kv(ALERT, "2.000", 45)]), NotHolder("other", None)),
    (PUSH, answer([], [RECORD], []), NotHolder(None, REMOVAL)),
    (PUSH, answer([OTHER], [RECORD], []), NotHolder("other", REMOVAL)),
    # An earlier sending has done it, and when: what is known is its revision, not this one's.
    (PUSH, answer([MINE], [], [kv(ALERT, "2.000", 45)]), Done(45)),
    *(
        (PUSH, answer([MINE], [], [kv(ALERT, other, 45)]), Conflict(45))
        for other in ("1.999", "2.001", "7200.000", "2", "soon", "")
    ),
    (Unlock("a/b", "me"), YES, Done(50)),
    (Unlock("a/b", "me"), answer([], []), NotHolder(None, None)),
    (Unlock("a/b", "me"), answer([], [RECORD]), NotHolder(None, REMOVAL)),
    (Withdraw("a/b", "me"), YES, Done(50)),
    (Withdraw("a/b", "me"), answer([]), Done(50)),
    (Remove(REMOVAL, (4, 4)), YES, Done(50)),
    (Remove(REMOVAL, (4, 4)), answer([], [RECORD]), Done(50)),
    (Remove(REMOVAL, (4, 4)), answer([MINE], []), NotHolder("me", None)),
    (Read("a/b"), answer(*lock_of()), ReadResult(None, (), None, 50)),
]


@pytest.mark.parametrize(("request_", "answered", "outcome"), READINGS)
def test_the_answer_is_read(
    transactions: Transactions, request_: Request, answered: wire.TxnAnswer, outcome: Outcome
) -> None:
    """What it means for the asker, and at which revision."""
    assert outcome_of(request_, answered, resent=False) == outcome


@pytest.mark.parametrize(
    ("request_", "answered", "outcome"),
    [each for each in READINGS if isinstance(each[2], NotHolder)],
)
def test_a_second_sending_is_told(
    transactions: Transactions, request_: Request, answered: wire.TxnAnswer, outcome: Outcome
) -> None:
    """Whoever finds its lock gone must know that the first sending may have done it."""
    read = outcome_of(request_, answered, resent=True)
    assert isinstance(read, NotHolder)
    assert read.resent is True


def test_a_lock_is_read_whole(transactions: Transactions) -> None:
    """Holder, token, stamps' revisions, the line in its order, removal."""
    keys = {f"locks/a%2Fb/{key}": text for key, text in HOLDER.subkeys().items()}
    moved = {"alert_at": 45, "auto_unlock_at": 60}
    lock = [kv(key, text, moved.get(key.rpartition("/")[2], 40)) for key, text in keys.items()]
    line = [kv(f"{LINE}/%F0%9F%94%92", "{}", 9, 9), AHEAD]
    seen = outcome_of(
        Read("a/b", "me", waiters=True), answer(*lock_of(*lock), line, [RECORD]), resent=False
    )
    assert isinstance(seen, ReadResult)
    assert seen.holder is not None
    assert (seen.holder.fencing_token, seen.holder.stamp_revisions) == (40, (45, 60))
    assert seen.revision == 50
    assert seen.holder.subkeys() == HOLDER.subkeys()
    assert [each.uuid for each in seen.waiters] == ["ahead", "🔒"]
    assert seen.removal == REMOVAL


def test_half_a_lock_is_read(transactions: Transactions) -> None:
    """A range without `uuid` is no holder with a token, but shows what there is."""
    half = answer(*lock_of(kv("locks/a%2Fb/hostname", "h")))
    seen = outcome_of(Read("a/b"), half, resent=False)
    assert isinstance(seen, ReadResult)
    assert seen.holder == Holder("a/b", hostname="h")


def test_leftovers_are_not_read(transactions: Transactions) -> None:
    """What was written before the `uuid` is somebody else's, and `about` is written with it."""
    lock = [kv("locks/a%2Fb/hostname", "h"), kv(UUID, "me", 40), kv(ALERT, "2.0", 39)]
    about = '{"identity": "w"}'
    for revision, problem in ((39, False), (40, False), (41, True)):
        answered = answer(*lock_of(*lock, kv("locks/a%2Fb/about", about, revision)))
        seen = outcome_of(Read("a/b"), answered, resent=False)
        assert isinstance(seen, ReadResult)
        assert seen.holder is not None
        assert (seen.holder.alert_at, seen.holder.stamp_revisions) == (None, (0, 0))
        assert seen.holder.identity == ("w" if revision == 40 else None)
        assert ("about" in seen.holder.problems) == problem
