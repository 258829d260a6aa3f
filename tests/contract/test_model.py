"""Each store answers random requests as `lock_model` does, which has the rules of all requests.

A revision of the model stands for one of the store: the same one each time, in the same order. The
order is that of all writes where the store has fencing tokens, otherwise that of one acquisition's.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from hypothesis import Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from lockclient.model.clocks import Deadline, Runtime, Stamps
from lockclient.model.holder import STAMPS, Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.stores.common.segments import encode
from lockclient.stores.outcomes import (
    Conflict,
    Done,
    NotHolder,
    Position,
    Queued,
    ReadResult,
    Refused,
    Taken,
)
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
from lockclient.testing.lock_model import Lock, Model
from tests.contract.asking import NEVER, taker, ticket
from tests.contract.subject import Subject

EXAMPLES, STEPS = 25, 30
TIMES = (150.0, 250.0, 350.1234)
"""The wall-clock times of pushes: they need not rise."""
WRITTEN = (b"9999.000", b"1.000", b"soon", None)
TEXTS = ("thread", "identity", "process", "client", "backtrace", "reason")
USUAL = "usual"
WEIGHTS = {"take_or_queue": 3, "claim": 5, "push": 4, "unlock": 2, "remove": 4, "reclaim": 6}
WEIGHTS |= {"take": 2, "withdraw": 3, "get_position": 5, "send_again": 3, "write": 2}
WEIGHTS |= {"lose_tickets": 2}
"""The kinds of steps, and how often they come."""
WHO = (*[USUAL] * 9, "holder", "first", "second", 0, 1, 2, 3)
"""The sender of a request: as is usual, the holder, a waiter by its place, or any acquisition."""
_examples = count(1)


class Equivalence(RuleBasedStateMachine):
    """Sends each request to the model and to the store, and compares what they answer."""

    subject: Subject

    def __init__(self) -> None:
        super().__init__()
        self.store = self.subject.store
        self.model = Model()
        self.names = [f"model {next(_examples)}{end}" for end in ("", "/b")]
        self.lives = {(name, number): 0 for name in self.names for number in range(4)}
        self.holders: dict[str, Holder] = {}
        self.steps = 0
        self.spent: set[str] = set()
        self.sent: list[Request] = []
        self.lease = 1
        self.has_lease = self.store.has_ticket_lease()
        self.revisions: dict[object, dict[int, int]] = {}
        """By its scope, the store's revisions of the model's."""
        self.seen: dict[str, Holder] = {}
        """By the lock, its last holder."""
        self.as_seen: dict[str, Holder] = {}
        """By the uuid, holders as they were read last."""
        self.stamped: dict[str, list[tuple[int, int]]] = {}
        """By the uuid, the revisions of its stamps so far."""
        self.ticket_revisions: dict[str, list[int]] = {}
        """By the uuid, the revisions of its tickets so far."""
        self.left: dict[str, list[tuple[str, int]]] = {}
        """By the lock, tickets that went, and the revision at which they did."""

    # ------------------------------------------------------------ who asks

    def lock(self, name: int) -> Lock:
        return self.model.lock(self.names[name])

    def acquisition(self, lock: Lock, who: str | int, *, before: bool = False) -> Holder:
        """Return the acquisition that is meant; `before`: the one in whose place it came."""
        waiting = [waiter.uuid for waiter in lock.queue()]
        last = self.seen[lock.name].uuid if lock.name in self.seen else None
        uuids = dict(zip(("first", "second"), waiting, strict=False))
        uuids["holder"] = lock.uuid() or last or ""
        if isinstance(who, str) and (uuid := uuids.get(who)):
            return self.holders[uuid]
        number = who if isinstance(who, int) else 0
        life = self.lives[lock.name, number]
        uuid = uuid_of(lock.name, number, max(life - before, 0))
        if uuid not in self.holders:
            facts: dict[str, Any]
            facts = dict.fromkeys(TEXTS, '"\\a\nb ✓') if number % 2 else {"format": 2}
            facts |= NEVER if number == 3 else {}
            runtime = Runtime(100.0, 200.0)
            self.holders[uuid] = taker(lock.name, runtime, 100.0, uuid=uuid, **facts)
        return self.holders[uuid]

    def taker(self, lock: Lock, who: str | int, rare: bool) -> Holder:
        """Return the acquisition that is meant, or a new one where it was given up; `rare`: one
        that was given up, where the store promises that it gets nothing."""
        if rare and lock.marks and self.store.can.fencing:
            return self.holders[min(lock.marks)]
        mine = self.acquisition(lock, len(self.sent) % 4 if who == USUAL else who)
        if mine.uuid in self.spent | lock.marks:
            number = int((mine.uuid or "")[0])
            self.lives[lock.name, number] += 1
            mine = self.acquisition(lock, number)
        return mine

    # ------------------------------------------------------------ revisions

    def scope(self, name: str, uuid: str | None) -> object:
        return None if self.store.can.fencing else (name, uuid)

    def pair(self, name: str, uuid: str | None, expected: int, got: int) -> None:
        """See that a revision of the store is the one that the model's stands for."""
        if 0 in (expected, got):
            assert expected == got
            return
        known = self.revisions.setdefault(self.scope(name, uuid), {})
        assert known.setdefault(expected, got) == got, (expected, got)
        revisions = [known[revision] for revision in sorted(known)]
        assert revisions == sorted(set(revisions)), "in another order"

    def revision(self, name: str, uuid: str | None, revision: int) -> int:
        """Return what a revision of the model is in the store."""
        return self.revisions.get(self.scope(name, uuid), {}).get(revision, 0)

    def at_state(self, got: int) -> None:
        """See that the revision of an answer is not before a write that it is to know."""
        if self.store.can.fencing:
            assert got >= max(self.revisions.get(None, {}).values(), default=0)

    def in_store(self, request: Request) -> Request:
        """Return a request with the store's revisions."""
        match request:
            case Claim(holder=holder, ticket_revision=at):
                return replace(request, ticket_revision=self.revision(holder.name, holder.uuid, at))
            case GetPosition(name=name, uuid=uuid, ticket_revision=at, predecessor_deleted_at=left):
                at = self.revision(name, uuid, at)
                left = left and self.revision(name, request.predecessor, left)
                return replace(request, ticket_revision=at, predecessor_deleted_at=left)
            case Push(name=name, uuid=uuid, revision=at):
                return replace(request, revision=self.revision(name, uuid, at))
            case Reclaim(previous=holder):
                return replace(request, previous=self.holder_in_store(holder))
            case Remove(removal=removal, stamp_revisions=stamped):
                holder = self.holder_in_store(removal.holder)
                if stamped is not None:
                    stamped = self.stamps_in_store(replace(removal.holder, stamp_revisions=stamped))
                removal = replace(removal, holder=holder)
                return replace(request, removal=removal, stamp_revisions=stamped)
            case _:
                return request

    def holder_in_store(self, holder: Holder) -> Holder:
        token = self.revision(holder.name, holder.uuid, holder.fencing_token)
        return replace(holder, fencing_token=token, stamp_revisions=self.stamps_in_store(holder))

    def stamps_in_store(self, holder: Holder) -> tuple[int, int]:
        alert, unlock = holder.stamp_revisions
        name, uuid = holder.name, holder.uuid
        return self.revision(name, uuid, alert), self.revision(name, uuid, unlock)

    # ------------------------------------------------------------ asking and comparing

    def ask(self, request: Request) -> None:
        """Ask both, and see that they answer the same."""
        sent, before = self.in_store(request), self.model.revision
        waiting = {uuid for lock in self.model.locks.values() for uuid in lock.tickets}
        expected = self.model.apply(request, self.lease)
        got = self.store.ask(sent, Deadline.after(30))
        assert type(got) is type(expected), (request, expected, got)
        written = self.model.since(before + 1)
        self.compare(request, expected, got, writes=bool(written))
        for change in written:
            if change.kind == "queue" and change.part in waiting and change.value is None:
                self.left.setdefault(change.name, []).append((change.part, change.revision))
        if isinstance(expected, Queued):
            self.has_lease = True
            revisions = self.ticket_revisions.setdefault(name_and_uuid(request)[1], [])
            if expected.ticket_revision not in revisions:
                revisions.append(expected.ticket_revision)
        if not self.store.can.fencing:  # it does not promise that a uuid gets nothing ever
            if isinstance(request, Unlock | Withdraw | Remove) and isinstance(expected, Done):
                self.spent.add(name_and_uuid(request)[1])
            if isinstance(request, Reclaim) and isinstance(expected, Taken):
                self.spent.add(request.previous.uuid or "")

    def compare(self, request: Request, expected: Any, got: Any, *, writes: bool) -> None:
        name, uuid = name_and_uuid(request)
        match expected:
            case Taken():
                self.pair(name, uuid, expected.token, got.token)
                if expected.by_earlier_send or self.store.can.fencing:  # others send again in haste
                    assert got.by_earlier_send == expected.by_earlier_send
            case Refused():
                assert (got.holder, got.ticket) == (expected.holder, expected.ticket)
                if got.uuid_spent != expected.uuid_spent:  # more than it has to say
                    assert got.uuid_spent
                    assert uuid in self.model.lock(name).marks
                self.at_state(got.revision)
            case Queued():
                self.pair(name, uuid, expected.ticket_revision, got.ticket_revision)
                assert without_revisions(got) == without_revisions(expected)
                self.at_state(got.revision)
            case Position():
                assert without_revisions(got) == without_revisions(expected)
                self.at_state(got.revision)
            case Conflict():
                self.pair(name, uuid, expected.revision, got.revision)
            case Done():
                if isinstance(request, Push) or (writes and self.store.can.fencing):
                    self.pair(name, uuid, expected.revision, got.revision)
                else:
                    self.at_state(got.revision)
            case NotHolder():
                assert got.holder == expected.holder
                self.compare_removals(expected.removal, got.removal)
            case ReadResult():
                self.compare_holders(expected.holder, got.holder)
                self.compare_removals(expected.removal, got.removal)
                for mine, there in zip(expected.waiters, got.waiters, strict=True):
                    self.pair(name, mine.uuid, mine.revision, there.revision)
                    assert replace(there, revision=0) == replace(mine, revision=0)
                self.at_state(got.revision)

    def compare_holders(self, expected: Holder | None, got: Holder | None) -> None:
        if expected is None or got is None:
            assert got == expected
            return
        token, stamped = expected.fencing_token, expected.stamp_revisions
        assert replace(got, fencing_token=token, stamp_revisions=stamped) == expected
        name, uuid = expected.name, expected.uuid
        self.pair(name, uuid, expected.fencing_token, got.fencing_token)
        for mine, there in zip(expected.stamp_revisions, got.stamp_revisions, strict=True):
            self.pair(name, uuid, mine, there)

    def compare_removals(self, expected: Removal | None, got: Removal | None) -> None:
        if expected is None or got is None:
            assert got == expected
            return
        assert got.without_token().facts() == expected.without_token().facts()
        if self.store.can.fencing:
            token = expected.holder.fencing_token
            assert got.holder.fencing_token == self.revision("", None, token)
        else:
            assert got.holder.fencing_token == 0

    # ------------------------------------------------------------ the requests

    def send(self, request: Request) -> None:
        note(f"# {type(request).__name__} {name_and_uuid(request)}")
        self.sent.append(request)
        self.ask(request)

    @initialize(waiting=st.sampled_from((2, 3, 1, 0)))
    def begin(self, waiting: int) -> None:
        """A lock is held, and so many wait for it."""
        for number in range(1 + waiting if waiting and self.store.can.queue else waiting):
            kind = "take_or_queue" if self.store.can.queue else "take"
            getattr(self, kind)(self.lock(0), number, 0, False)

    @rule(seed=st.integers(0, 1 << 40))
    def step(self, seed: int) -> None:
        """Send one request, drawn by a generator of our own: Hypothesis would leave some kinds out
        of each example, and repeat others."""
        self.steps += 1
        draw = Random(f"{self.steps} {seed}")
        (kind,) = draw.choices([*WEIGHTS], [*WEIGHTS.values()])
        lock, who = self.lock(draw.choice((0, 0, 0, 0, 1))), draw.choice(WHO)
        pick, rare = draw.randrange(12), draw.random() < 0.2
        if kind in ("claim", "get_position") and not lock.tickets:
            kind = "take_or_queue"
        if kind in ("push", "unlock", "remove") and not self.seen.get(lock.name):
            kind = "take"
        if kind == "take_or_queue" and not self.store.can.queue:
            kind = "take"
        if kind == "lose_tickets" and not (self.subject.lose_tickets and any_tickets(self.model)):
            kind = "push"
        getattr(self, kind)(lock, who, pick, rare)

    def take(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        self.send(Take(self.taker(lock, who, rare)))

    def take_or_queue(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        again = who == USUAL and pick < 3 and lock.tickets
        mine = self.taker(lock, "first" if again else who, rare)
        self.send(TakeOrQueue(mine, ticket(mine)))

    def claim(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.waiter(lock, who, rare)
        if lock.uuid() is not None and pick > 2:
            self.send(Unlock(lock.name, lock.uuid() or ""))
        if place := self.place_of(mine, late=rare):
            self.send(Claim(mine, place))

    def reclaim(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.taker(lock, who, rare or pick > 8)
        # In Valkey one that nobody has is taken: its servers vote for the first that comes.
        previous = lock.holder or (self.seen.get(lock.name) if self.store.can.fencing else None)
        if previous is None or previous.uuid == mine.uuid:
            return
        if pick < 3:
            previous = replace(previous, uuid=self.acquisition(lock, 1).uuid)
        if pick in (3, 4) and self.store.can.fencing:
            known = self.revisions[None]
            token = min(known) if min(known) != previous.fencing_token else max(known)
            previous = replace(previous, fencing_token=token)
        if previous.uuid != mine.uuid:
            self.send(Reclaim(mine, previous))

    def get_position(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.waiter(lock, who, rare)
        if not (place := self.place_of(mine, late=rare)):
            return
        request = GetPosition(lock.name, mine.uuid or "", place)
        left = self.left.get(lock.name, ())
        if pick < 5 and left:
            uuid, at = left[(0, -1, len(left) // 2)[pick % 3]]
            if pick == 3:
                uuid = "nobody"
            elif pick == 4:
                uuid, at = lock.uuid() or "", max(self.revisions[None])
            request = replace(request, predecessor=uuid, predecessor_deleted_at=at)
        elif pick < 8:
            others = [waiter.uuid for waiter in lock.queue() if waiter.uuid != mine.uuid]
            ahead = others[pick % len(others)] if others else "nobody"
            request = replace(request, predecessor=ahead)
        self.send(request)

    def push(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.acquisition(lock, "holder" if who == USUAL else who, before=rare)
        stamped = self.stamped.get(mine.uuid or "")
        times = [TIMES[pick % 3 - late] for late in (1, 0)]
        for at in times if pick < 4 else times[:1]:  # the second one comes late
            stamps = Stamps(at, None if mine.auto_unlock_at is None else at + 100)
            if stamped:
                self.send(Push(mine.name, mine.uuid or "", stamps, stamped[-1][0]))

    def unlock(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.acquisition(lock, "holder" if who == USUAL else who, before=rare)
        self.send(Unlock(mine.name, mine.uuid or ""))

    def withdraw(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        usual = ("first", "second", "holder")[pick % 3]
        mine = self.acquisition(lock, usual if who == USUAL else who, before=rare)
        tombstone = pick < 4
        if lock.uuid() not in (None, mine.uuid):
            tombstone &= self.store.can.fencing  # a bucket's stands on the other one's lock
        self.send(Withdraw(mine.name, mine.uuid or "", tombstone))

    def remove(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        mine = self.acquisition(lock, "holder" if who == USUAL else who)
        mine = self.as_seen.get(mine.uuid or "", mine)
        removal = Removal(mine, 400.0, f"unlocker-{pick % 2}", AUTO_UNLOCK, "No heartbeat.")
        stamped = self.stamped.get(mine.uuid or "")
        seen = stamped[-1] if stamped and pick < 9 else None
        if seen and pick < 3:  # it comes after a push that it has not seen
            self.push(lock, who, 5, rare)
        recorded = not (mine.uuid or "").startswith("2")  # the same when it is sent again
        self.send(Remove(removal, seen, recorded))

    def write(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        """Another hand writes one stamp, or deletes it."""
        part, value = STAMPS[pick % 2], WRITTEN[pick % len(WRITTEN)]
        if self.subject.write is None or lock.uuid() is None or not self.store.can.fencing:
            return
        if value or part in lock.parts:
            self.subject.write(lock.name, part, value)
            self.model.write(("locks", lock.name, part, value))

    def send_again(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        """A request that is repeated, or comes late."""
        if not self.sent:
            return
        request = self.sent[-1 - min(pick // 4, len(self.sent) - 1)]
        if not isinstance(request, Take | Reclaim) or request.holder.uuid not in self.spent:
            self.ask(request)

    def lose_tickets(self, lock: Lock, who: str | int, pick: int, rare: bool) -> None:
        assert self.subject.lose_tickets is not None
        self.subject.lose_tickets()
        assert self.store.extend_tickets(None, Deadline.after(30)) is False
        self.tickets_expired()

    def tickets_expired(self) -> None:
        self.model.expire(self.lease)
        self.lease += 1
        self.has_lease = False

    def waiter(self, lock: Lock, who: str | int, rare: bool) -> Holder:
        """Return the acquisition that is meant; `rare`: one that has another ticket by now."""
        for waiting in lock.queue():
            if rare and len(self.ticket_revisions[waiting.uuid]) > 1:
                return self.holders[waiting.uuid]
        return self.acquisition(lock, "first" if who == USUAL else who)

    def place_of(self, mine: Holder, *, late: bool) -> int:
        """Return the revision of its ticket, or `late` of its first one; 0: it has had none."""
        return self.ticket_revisions.get(mine.uuid or "", [0])[0 if late else -1]

    # ------------------------------------------------------------ what stands there afterwards

    @invariant()
    def the_same_stands_there(self) -> None:
        if self.has_lease and not self.store.extend_tickets(None, Deadline.after(30)):
            self.tickets_expired()  # a machine stood still for seconds
        for name in self.names:
            lock = self.model.lock(name)
            _, uuid = name_and_uuid(self.sent[-1]) if self.sent else ("", None)
            self.ask(Read(name, uuid, waiters=True))
            if (holder := lock.holder) is not None:
                self.seen[name] = self.as_seen[holder.uuid or ""] = holder
                stamped = self.stamped.setdefault(holder.uuid or "", [])
                if holder.stamp_revisions not in stamped:
                    stamped.append(holder.stamp_revisions)


def uuid_of(name: str, number: int, life: int) -> str:
    return f"{number}-{life}-{encode(name)}".replace("%", "-")


def name_and_uuid(request: Request) -> tuple[str, str]:
    """Return the lock and the acquisition that a request is about."""
    match request:
        case Take(holder=holder) | TakeOrQueue(holder=holder) | Claim(holder=holder):
            return holder.name, holder.uuid or ""
        case Reclaim(holder=holder):
            return holder.name, holder.uuid or ""
        case Remove(removal=removal):
            return removal.holder.name, removal.holder.uuid or ""
        case _:
            return request.name, request.uuid or ""


def without_revisions(outcome: Queued | Position) -> Queued | Position:
    """Return what is to be equal; where the store is unsure, the predecessor is to be looked up."""
    ahead = None if outcome.is_unsure else outcome.predecessor
    bare = replace(outcome, revision=0, predecessor=ahead)
    return replace(bare, ticket_revision=0) if isinstance(bare, Queued) else bare


def any_tickets(model: Model) -> bool:
    return any(lock.tickets for lock in model.locks.values())


def test_the_store_answers_as_the_model_does(subject: Subject) -> None:
    class OfThisStore(Equivalence):
        pass

    OfThisStore.subject = subject
    # Nothing would be shrunk: what a step draws depends on those before it.
    how = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, phases=(Phase.generate,))
    run_state_machine_as_test(OfThisStore, settings=how)
