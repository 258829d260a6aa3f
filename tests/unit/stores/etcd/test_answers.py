"""What each answer of etcd means, also when the request was sent more than once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import SUBKEYS, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.answers import outcome_of
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


def kv(key: str, value: str, mod: int = 3, create: int = 3) -> wire.KeyValue:
    return wire.KeyValue(
        key=f"/r/{key}".encode(), value=value.encode(), mod_revision=mod, create_revision=create
    )


def answer(*ranges: list[wire.KeyValue], succeeded: bool = False) -> wire.TxnAnswer:
    """An answer at revision 50 whose responses are these ranges."""
    responses = [wire.Answer(range=wire.RangeAnswer(kvs=found)) for found in ranges]
    return wire.TxnAnswer(header=wire.Header(revision=50), succeeded=succeeded, responses=responses)


def lock_of(*kvs: wire.KeyValue) -> list[list[wire.KeyValue]]:
    """The first answers to a `Read`: one for each subkey that is known."""
    return [[found for found in kvs if found.key.endswith(f"/{part}".encode())] for part in SUBKEYS]


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
TAKE, RECLAIM, QUEUE = Take(HOLDER), Reclaim(HOLDER, DEAD), TakeOrQueue(HOLDER, TICKET)
LOOK, LOOK_AHEAD = GetPosition("a/b", "me", 8), GetPosition("a/b", "me", 8, "ahead")
STEP_UP = GetPosition("a/b", "me", 8, "ahead", 30)
CLAIM, UNLOCK, WITHDRAW = Claim(HOLDER, 8), Unlock("a/b", "me"), Withdraw("a/b", "me")
REMOVE = Remove(REMOVAL, (4, 4))
AGAIN = Taken(40, by_earlier_send=True)
UNSURE = Position(True, None, "other", 50, ambiguous=True)


def line(
    holder: list[wire.KeyValue], own: list[wire.KeyValue], youngest: list[wire.KeyValue], count: int
) -> wire.TxnAnswer:
    """The answer to a client that joined a queue of so many tickets."""
    inner = answer([], holder, own, youngest, succeeded=True)
    inner.responses[3].range.count = count
    return nested(nested(inner))


READINGS: list[tuple[Request, wire.TxnAnswer, Outcome]] = [
    (TAKE, YES, Taken(50)),
    (TAKE, answer([MINE]), AGAIN),
    (TAKE, answer([OTHER]), Refused("other", 50)),
    (TAKE, answer([]), Refused(None, 50)),
    (RECLAIM, YES, Taken(50)),
    (RECLAIM, answer([MINE]), AGAIN),
    (RECLAIM, answer([OTHER]), Refused("other", 50)),
    (QUEUE, YES, Taken(50)),
    (QUEUE, nested(answer([MINE], succeeded=True)), AGAIN),
    (QUEUE, line([OTHER], [OWN], [OWN, AHEAD], 7), Queued(8, "ahead", "other", 50, waiters=7)),
    (QUEUE, line([], [OWN], [OWN], 1), Queued(8, None, None, 50, waiters=1)),
    (QUEUE, line([OTHER], [OWN], [BEHIND, OWN], 2), Queued(8, None, "other", 50, True, 2)),
    (QUEUE, nested(nested(answer())), Refused(None, 50, uuid_spent=True)),
    (LOOK, answer([OWN], [OTHER], [AHEAD]), Position(True, "ahead", "other", 50)),
    (LOOK, answer([OWN], [], []), Position(True, None, None, 50)),
    (LOOK, answer([], [OTHER], []), Position(False, None, "other", 50)),
    (replace(LOOK, ticket_revision=6), answer([OWN], [], []), Position(False, None, None, 50)),
    (LOOK_AHEAD, answer([OWN], [OTHER], [AHEAD]), Position(True, "ahead", "other", 50)),
    (LOOK_AHEAD, answer([OWN], [OTHER], []), UNSURE),
    (
        LOOK_AHEAD,
        answer([OWN], [OTHER], [kv(f"{LINE}/ahead", "{}", 9, 9)]),
        replace(UNSURE, predecessor="ahead"),
    ),
    (  # a foreign client's, which is not encoded as ours would be
        LOOK,
        answer([OWN], [OTHER], [kv(f"{LINE}/h%2f7", "{}", 7, 7)]),
        Position(True, "h%2f7", "other", 50),
    ),
    (
        STEP_UP,
        answer([OWN], [OTHER], [kv(UUID, "ahead", 30)]),
        Position(True, None, "other", 50),
    ),
    *(
        (STEP_UP, answer([OWN], [OTHER], then), UNSURE)
        for then in ([], [kv(UUID, "ahead", 29)], [kv(UUID, "another", 30)])
    ),
    (CLAIM, YES, Taken(50)),
    (CLAIM, answer([MINE], []), AGAIN),
    (CLAIM, answer([OTHER], [OWN]), Refused("other", 50, ticket=True)),
    (CLAIM, answer([], []), Refused(None, 50, ticket=False)),
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
    (UNLOCK, YES, Done(50)),
    (UNLOCK, answer([], []), NotHolder(None, None)),
    (UNLOCK, answer([], [RECORD]), NotHolder(None, REMOVAL)),
    (WITHDRAW, YES, Done(50)),
    (WITHDRAW, answer([]), Done(50)),
    (REMOVE, YES, Done(50)),
    (REMOVE, answer([], [RECORD]), Done(50)),
    (REMOVE, answer([MINE], []), NotHolder("me", None)),
    (Read("a/b"), answer(*lock_of()), ReadResult(None, (), None, 50)),
]


@pytest.mark.parametrize(("request_", "answered", "outcome"), READINGS)
def test_the_answer_is_read(request_: Request, answered: wire.TxnAnswer, outcome: Outcome) -> None:
    """What it means for the asker, at which revision; and whoever finds its lock gone must know
    that the first of two sendings may have done it."""
    assert outcome_of(request_, answered, resent=False) == outcome
    if isinstance(outcome, NotHolder):
        assert outcome_of(request_, answered, resent=True) == replace(outcome, resent=True)


def test_a_lock_is_read_whole() -> None:
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
    assert [waiter.uuid for waiter in seen.waiters] == ["ahead", "🔒"]
    assert seen.removal == REMOVAL


def test_half_a_lock_is_read() -> None:
    """A range without `uuid` is no holder with a token, but shows what there is."""
    half = answer(*lock_of(kv("locks/a%2Fb/hostname", "h")))
    seen = outcome_of(Read("a/b"), half, resent=False)
    assert isinstance(seen, ReadResult)
    assert seen.holder == Holder("a/b", hostname="h")


def test_leftovers_are_not_read() -> None:
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
