"""Each request of a store in a bucket: under each fault of HTTP requests, and with each write of
another program between its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.stores.mutex_store import MutexStore
from lockclient.stores.outcomes import Done, NotHolder, Taken
from lockclient.stores.request_types import Push, Reclaim, Remove, Request, Take, Unlock, Withdraw
from lockclient.stores.service_store import ServiceStore
from lockclient.testing import MemoryStore
from tests.contract.asking import NAME, holder, removal
from tests.support.bucket.server import DROP, LATE, LOSE, REPEAT, TWICE, Asked, BucketServer, Fault
from tests.support.bucket_store import OBJECT
from tests.support.locks import ask, has, read, soon, take

FAULTS = (LOSE, DROP, LATE, TWICE, REPEAT, 503, 409, 429)
WRITES_ONLY = (LATE, TWICE, REPEAT, 409)


@dataclass
class Case:
    """A request, of the lock's holder or of the one that wants to be it, and what it leads to."""

    request: Callable[[Holder, Holder], Request]
    free: bool = False
    """Whether nobody holds the lock before."""
    holder_after: str = ""
    """`mine`, `heir` or nobody."""


CASES = {
    "take": Case(lambda _, heir: Take(heir), free=True, holder_after="heir"),
    "push": Case(
        lambda mine, _: Push(NAME, mine.uuid or "", Stamps(250.0, 350.0), mine.fencing_token),
        holder_after="mine",
    ),
    "unlock": Case(lambda mine, _: Unlock(NAME, mine.uuid or "")),
    "withdraw": Case(lambda mine, _: Withdraw(NAME, mine.uuid or "", tombstone=True)),
    "withdraw another": Case(
        lambda _, heir: Withdraw(NAME, heir.uuid or "", tombstone=True), holder_after="mine"
    ),
    "remove": Case(lambda mine, _: Remove(removal(mine), None)),
    "remove as seen": Case(
        lambda mine, _: Remove(removal(mine), (mine.fencing_token, mine.fencing_token))
    ),
    "reclaim": Case(lambda mine, heir: Reclaim(heir, mine), holder_after="heir"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("what", CASES)
def test_each_request_is_done_once_with_a_known_outcome(
    server: BucketServer, store: ServiceStore, other: ServiceStore, what: str, fault: str | int
) -> None:
    for tombstone in (False, True):
        case, mine, heir = CASES[what], holder(identity="me"), holder(identity="me")
        if tombstone:
            ask(other, Withdraw(NAME, "nobody", tombstone=True))
        if not case.free:
            mine = replace(mine, fencing_token=take(store, mine)[1])
        met = Counter[str]()

        def trouble(
            asked: Asked, met: Counter[str] = met, times: int = 1 + tombstone
        ) -> Fault | None:
            met[asked.method] += 1
            spared = fault in WRITES_ONLY and asked.method == "GET"
            is_met = not spared and met[asked.method] <= times
            return Fault(asked.method, fault) if is_met else None

        server.trouble = trouble
        outcome = ask(store, case.request(mine, heir))
        server.trouble = lambda _: None
        if what == "unlock":
            gone = isinstance(outcome, NotHolder) and outcome.removal is None is outcome.holder
            assert isinstance(outcome, Done) or (gone and fault in (LOSE, REPEAT))
        else:
            assert isinstance(outcome, Taken | Done)
        for _ in range(2):  # before and after late requests have arrived
            holders = {"mine": mine.uuid, "heir": heir.uuid}
            assert has(other) == has(store) == holders.get(case.holder_after)
            assert set(server.deliver()) <= {404, 412}
        if what.startswith("remove"):
            kept = read(other, NAME, mine.uuid).removal
            assert kept is not None
            assert kept.removed_by == "unlocker-1"
            lost = ask(store, Unlock(NAME, mine.uuid or ""))
            assert isinstance(lost, NotHolder)
            assert lost.removal == kept
        ask(other, Withdraw(NAME, has(other) or ""))  # the next one finds the lock free


@pytest.mark.parametrize("fault", FAULTS)
def test_a_document_is_written_once(
    server: BucketServer, store: ServiceStore, other: ServiceStore, fault: str | int
) -> None:
    for value in (b"first", b"second", b"", b"third"):
        seen = store.read_document("sent/ops", soon())
        server.fault("POST" if value else "DELETE", fault)
        is_written = store.write_document("sent/ops", value, seen, soon())
        assert is_written or fault in (LOSE, REPEAT)
        for _ in range(2):  # before and after late requests have arrived
            assert other.read_document("sent/ops", soon()).value == value
            assert not other.write_document("sent/ops", b"late", seen, soon())
            assert set(server.deliver()) <= {404, 412}


@pytest.mark.parametrize("fault", [LATE, TWICE])
def test_a_replaced_holder_changes_nothing(
    server: BucketServer, store: ServiceStore, other: ServiceStore, fault: str
) -> None:
    uuid, token = take(store)
    server.fault("PATCH", fault)
    ask(store, Push(NAME, uuid, Stamps(250.0, 350.0), token))
    server.fault("DELETE", fault)
    ask(store, Unlock(NAME, uuid))
    successor, _ = take(other)
    before = server.bucket.get(OBJECT)
    assert before[0]["metageneration"] == "1"
    assert set(server.deliver()) <= {404, 412}
    assert isinstance(ask(store, Unlock(NAME, uuid)), NotHolder)
    assert server.bucket.get(OBJECT) == before
    assert has(other) == successor


@pytest.mark.parametrize("between", ["push", "unlock", "remove", "reclaim"])
@pytest.mark.parametrize("what", [what for what, case in CASES.items() if not case.free])
def test_a_write_between_two_steps_has_a_serial_outcome(
    server: BucketServer, store: ServiceStore, other: ServiceStore, what: str, between: str
) -> None:
    ends = []
    memory = MemoryStore()
    for first, second in ((memory, memory), (store, other)):
        mine, heir, rival = (holder(identity="me") for _ in range(3))
        mine = replace(mine, fencing_token=take(first, mine)[1])
        roles = {mine.uuid: "mine", heir.uuid: "heir", rival.uuid: "rival", None: ""}

        def intrude(second: MutexStore = second, of: tuple[Holder, Holder] = (mine, rival)) -> None:
            assert isinstance(ask(second, CASES[between].request(*of)), Taken | Done)

        def trouble(asked: Asked, intrude: Callable[[], None] = intrude) -> None:
            if asked.method != "GET":
                server.trouble = lambda _: None
                intrude()

        if first is memory:
            intrude()
        else:
            server.trouble = trouble
        outcome = ask(first, CASES[what].request(mine, heir))
        told = roles[getattr(outcome, "holder", None)]
        ends.append((type(outcome).__name__, told, roles[has(second)]))
    assert ends[0] == ends[1]
