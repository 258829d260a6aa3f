"""Any order of events: several acquisitions on a store in memory, whatever happens to them.

Acquisitions come, wait, get the lock, push, release, give up and die; requests and answers get
lost, are sent again, or arrive long after anyone expects them; leases run out; revisions are
compacted; a client that does not know the line barges in; hands write and delete stamps; an
unlocker removes. A seeded random choice says what is next, and after each event the promises of
README must hold. In the end everything calms down, and nobody may be left waiting, and nothing
be left in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random

import pytest

from lockclient.acquisition.state_machine import Acquisition
from lockclient.acquisition.steps import Acquired, Busy, Pause, Step, UsedUp, Wait
from lockclient.model.clocks import Now, Runtime
from lockclient.model.holder import Holder
from lockclient.stores.common.lock_model import Model
from lockclient.stores.outcomes import Done, NotHolder, Taken
from lockclient.stores.protocol import WatchEvent
from lockclient.stores.requests import (
    Claim,
    Push,
    Reclaim,
    Request,
    RequestState,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from tests.support.records import taker

NAME = "x"
FOREIGN = "foreign"
RUNTIME = Runtime(300.0, 900.0)


@dataclass
class Process:
    """A process and the lease that its tickets are bound to."""

    lease: int
    alive: bool = True
    has_line: bool = False


class Actor:
    """One acquisition and who drives it."""

    def __init__(self, process: Process, uuid: str, *, queue: bool, identity: str | None) -> None:
        self.process = process
        self.uuid = uuid
        self.engine = Acquisition(
            taker(NAME, RUNTIME, uuid=uuid, identity=identity),
            RUNTIME,
            queue=queue,
            lease_ready=process.has_line,
        )
        self.asking: Request | None = None
        """What a store is asked; of a take, `sending` says what is not known of it."""
        self.resent = False
        self.waiting: Wait | None = None
        self.missed = False
        self.held = False
        self.over = False
        self.sent_at = 0.0
        self.touched_at = 0
        """The revision at which somebody else wrote its stamps after its last push."""
        self.removed = False
        """Its lock was taken away, by whoever may do that, or by itself."""

    def sending(self) -> RequestState | None:
        """What the engine keeps of the request that is asked."""
        sending = self.engine.sending
        return sending if sending is not None and sending.request is self.asking else None

    def believes(self) -> bool:
        """Whether it works as the lock's holder, and is right to."""
        return self.held and not self.over and not self.removed


class World:
    """The store, the network and everyone on it."""

    def __init__(self) -> None:
        self.model = Model()
        self.actors: list[Actor] = []
        self.late: list[tuple[Actor, Request, int]] = []
        """Requests that are still under way somewhere, though nobody waits for an answer."""
        self.to_withdraw: list[tuple[Actor, Withdraw]] = []
        self.dead_leases: set[int] = set()
        self.leases = count(1)
        self.processes = [Process(next(self.leases)) for _ in range(3)]
        self.last_token = 0
        self.time = 1000.0

    # ------------------------------------------------------------ the network

    def now(self) -> Now:
        self.time += 0.01
        return Now(self.time, self.time)

    def apply(self, actor: Actor, request: Request, lease: int, *, resent: bool = False) -> object:
        """Let a request reach the store, and check what it may do there."""
        lock = self.model.lock(NAME)
        before, line = lock.uuid(), [each.revision for each, _ in lock.tickets.values()]
        token = lock.holder and lock.holder.fencing_token
        outcome = self.model.apply(request, lease, resent=resent)
        after = lock.uuid()
        if token == (lock.holder and lock.holder.fencing_token):
            return outcome
        if before not in (None, after):  # unlocked, withdrawn, or taken over
            for other in self.actors:
                if other.uuid == before:
                    other.removed = True
        if after is not None and lock.holder is not None:
            assert lock.holder.fencing_token > self.last_token, "tokens rise"
            self.last_token = lock.holder.fencing_token
            if isinstance(request, Claim):
                assert min(line) == request.ticket_revision, "only the oldest ticket gets the lock"
            elif not isinstance(request, Reclaim):
                assert not line, "nobody overtakes the line"
            if isinstance(request, TakeOrQueue | Take | Claim):
                assert before is None, "a held lock is not had"
        return outcome

    def follow(self, actor: Actor, step: Step) -> None:
        """Do what the engine says."""
        actor.asking = actor.waiting = None
        if isinstance(step, Wait):
            actor.waiting, actor.missed = step, False
        elif isinstance(step, Busy | UsedUp):
            self.abandon(actor)
        elif isinstance(step, Acquired):
            actor.held = True
            assert actor.removed or self.model.lock(NAME).uuid() == actor.uuid
            assert actor.engine.token > 0
        else:
            assert not isinstance(step, Pause)  # there is a line
            self.send(actor, step)

    def send(self, actor: Actor, request: Request) -> None:
        actor.asking, actor.resent, actor.sent_at = request, False, self.time
        if (sending := actor.sending()) is not None:
            sending.in_flight = True
        actor.process.has_line |= isinstance(request, TakeOrQueue)

    def abandon(self, actor: Actor) -> None:
        """As `ClusterMutex` does when it does not get the lock, or can't release it."""
        withdraw = actor.engine.abandon()
        if withdraw is not None:
            self.to_withdraw.append((actor, withdraw))
        actor.asking = actor.waiting = None
        actor.over = True

    def ended(self, actor: Actor) -> None:
        """As `Holding.release` does after its unlock was answered."""
        withdraw = actor.engine.abandon()
        if actor.engine.may_be_out_there and withdraw is not None:
            self.to_withdraw.append((actor, withdraw))
        actor.asking = None
        actor.over = True

    # ------------------------------------------------------------ what can happen

    def events(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Everything that can happen next."""
        for process in self.processes:
            mine = [each for each in self.living() if each.process is process]
            if process.alive and len(self.actors) < 8:
                yield "arrive", partial(self.arrive, process, queue=True)
                yield "try", partial(self.arrive, process, queue=False)
                yield "heir", partial(self.arrive, process, True, "worker")
            if mine:
                yield "die", partial(self.die, process)
                yield "lease lost", partial(self.lose_lease, process, told=True)
                yield "not told", partial(self.lose_lease, process, told=False)
        for actor in self.living():
            yield from self.events_of(actor)
        for index in range(len(self.late)):
            yield "arrives late", partial(self.arrives_late, index)
            yield "never arrives", partial(self.late.pop, index)
        for index in range(len(self.to_withdraw)):
            yield "withdraw", partial(self.withdraw_one, index)
        holder = self.model.lock(NAME).uuid()
        if holder is None:
            yield "barge in", self.barge
        elif holder == FOREIGN:
            yield "foreigner goes", self.remove
        else:
            yield "removed", self.remove
            yield "by hand", partial(self.by_hand, holder, "alert_at", b"9999999.000")
            yield "by hand", partial(self.by_hand, holder, "auto_unlock_at", b"5.000")
            yield "deleted", partial(self.by_hand, holder, "alert_at", None)
        yield "compaction", lambda: setattr(self.model, "compacted", self.model.revision)
        if self.living():
            yield "time passes", lambda: setattr(self, "time", self.time + 5)

    def events_of(self, actor: Actor) -> Iterator[tuple[str, Callable[[], object]]]:
        if actor.asking is not None:
            yield from [("answer", partial(self.answer, actor))] * 8
            yield "answer lost, sent again", lambda: self.resend(actor, arrives=True)
            yield "delayed, sent again", lambda: self.resend(actor, arrives=False)
            yield "no answer", lambda: self.no_answer(actor, unknown=True)
            yield "not sent", lambda: self.no_answer(actor, unknown=False)
        if actor.waiting is not None:
            if self.news(actor):
                yield from [("wake", partial(self.wake, actor))] * 8
            yield "look", lambda: self.follow(actor, actor.engine.woken(None, self.now()))
        if not actor.held:
            yield "give up", lambda: self.give_up(actor)
        elif actor.asking is None:
            yield "push", lambda: self.send(actor, actor.engine.push(self.now()))
            yield from [("release", lambda: self.send(actor, actor.engine.release()))] * 3

    def living(self) -> list[Actor]:
        return [each for each in self.actors if each.process.alive and not each.over]

    def arrive(self, process: Process, queue: bool, identity: str | None = None) -> None:
        actor = Actor(process, f"u{len(self.actors)}", queue=queue, identity=identity)
        self.actors.append(actor)
        self.follow(actor, actor.engine.begin(self.now()))

    def die(self, process: Process) -> None:
        process.alive = False
        self.dead_leases.add(process.lease)
        for actor in self.actors:
            if actor.process is process:
                if actor.asking is not None:
                    self.late.append((actor, actor.asking, process.lease))
                actor.over = True
        self.to_withdraw = [each for each in self.to_withdraw if each[0].process is not process]
        self.processes.append(Process(next(self.leases)))
        self.processes.remove(process)

    def lose_lease(self, process: Process, *, told: bool) -> None:
        self.model.expire(process.lease)
        self.dead_leases.add(process.lease)
        process.lease, process.has_line = next(self.leases), False
        for actor in self.living():
            actor.missed |= told and actor.process is process and actor.waiting is not None

    def answer(self, actor: Actor) -> None:
        request, engine = actor.asking, actor.engine
        assert request is not None
        outcome = self.apply(actor, request, actor.process.lease, resent=actor.resent)
        if (sending := actor.sending()) is not None:
            sending.in_flight = False
        if isinstance(request, Unlock):
            if isinstance(outcome, NotHolder):
                engine.released(outcome)
            lock = self.model.lock(NAME)
            assert lock.uuid() != actor.uuid
            assert engine.loss is None or actor.removed, "no false loss"
            self.ended(actor)
        elif isinstance(request, Push) and actor.held:
            actor.asking = None
            if not engine.pushed(request, outcome, actor.sent_at):  # type: ignore[arg-type]
                self.send(actor, engine.push(self.now()))
            if isinstance(outcome, Done) and outcome.revision > actor.touched_at:
                actor.touched_at = 0
            has_it = self.model.lock(NAME).uuid() == actor.uuid
            assert (engine.loss is None) == has_it, "a push tells the truth"
        else:
            assert not isinstance(outcome, Taken) or outcome.token == self.last_token
            self.follow(actor, engine.answered(outcome, self.now()))  # type: ignore[arg-type]

    def resend(self, actor: Actor, *, arrives: bool) -> None:
        """Within one call of the store: the caller only learns that it was sent more than once."""
        assert actor.asking is not None
        if arrives:
            self.apply(actor, actor.asking, actor.process.lease)
        else:
            self.late.append((actor, actor.asking, actor.process.lease))
        actor.resent = True
        if (sending := actor.sending()) is not None:
            sending.ambiguous = True

    def no_answer(self, actor: Actor, *, unknown: bool) -> None:
        """The store is given up on, and asked anew."""
        assert actor.asking is not None
        if unknown:
            self.late.append((actor, actor.asking, actor.process.lease))
        if (sending := actor.sending()) is not None:
            sending.in_flight = False
            sending.ambiguous |= unknown
        if not actor.held:
            self.follow(actor, actor.engine.again(self.now()))
        elif isinstance(actor.asking, Unlock):
            self.abandon(actor)
        else:
            actor.asking = None  # a push: the next one tells

    def news(self, actor: Actor) -> WatchEvent | None:
        """The next event that a waiter's watch has for it."""
        assert actor.waiting is not None
        if actor.missed:
            return WatchEvent(0, gap=True)
        found = self.model.events(actor.waiting.target, actor.waiting.revision)
        if actor.waiting.target.ticket is not None:
            found = [each for each in found if each.uuid is None]
        return found[0] if found else None

    def wake(self, actor: Actor) -> None:
        self.follow(actor, actor.engine.woken(self.news(actor), self.now()))

    def give_up(self, actor: Actor) -> None:
        if actor.asking is not None:  # interrupted while it was under way
            self.late.append((actor, actor.asking, actor.process.lease))
        self.abandon(actor)

    def arrives(self, actor: Actor, request: Request, lease: int) -> None:
        if isinstance(request, TakeOrQueue) and lease in self.dead_leases:
            return  # refused: there is no such lease
        self.apply(actor, request, lease)

    def arrives_late(self, index: int) -> None:
        self.arrives(*self.late.pop(index))

    def withdraw_one(self, index: int) -> None:
        self.withdraw(*self.to_withdraw.pop(index))

    def withdraw(self, actor: Actor, request: Withdraw) -> None:
        self.apply(actor, request, actor.process.lease)

    def barge(self) -> None:
        values = Holder(NAME, FOREIGN, hostname="h").subkeys()
        self.last_token = self.model.write(
            *(("locks", NAME, part, value.encode()) for part, value in values.items())
        )

    def remove(self) -> None:
        uuid = self.model.lock(NAME).uuid()
        for actor in self.actors:
            actor.removed |= actor.uuid == uuid
        self.model.remove_holder(NAME)

    def by_hand(self, uuid: str, stamp: str, value: bytes | None) -> None:
        """Somebody writes or deletes a stamp."""
        self.model.write(("locks", NAME, stamp, value))
        for actor in self.actors:
            if actor.uuid == uuid:
                actor.touched_at = self.model.revision

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """At most one believes that it holds the lock, rightly, and no longer than is said of it.

        Whatever pushes of its own came how late: only another's hand may take time from it.
        """
        holders = [each for each in self.actors if each.believes()]
        assert [each.uuid for each in holders] in ([], [self.model.lock(NAME).uuid()])
        said = self.model.lock(NAME).holder
        for actor in holders:
            if not actor.touched_at:
                assert said is not None
                assert not said.broken()
                assert said.undecided() == ""
                assert (said.auto_unlock_at or 0) > actor.engine.deadline - 0.001, "its own time"

    def calm_down(self) -> None:
        """No more faults: everyone gets on, nobody new comes, and what is under way arrives.

        At the very end, when all is over: no clean-up comes after it but that of the dead.
        """
        for _ in range(2):
            for _ in range(300):
                if not self.get_on():
                    break
                self.check()
            while self.late:
                self.arrives(*self.late.pop(0))
                self.check()
        self.get_on()
        assert [each.uuid for each in self.living()] == [], "nobody waits for ever"
        lock = self.model.lock(NAME)
        assert (lock.uuid(), list(lock.tickets)) == (None, []), "nothing is left behind"

    def get_on(self) -> bool:
        """One round; without the look that each waiter takes once a minute."""
        for lease in self.dead_leases:
            self.model.expire(lease)
        moved = bool(self.to_withdraw)
        while self.to_withdraw:
            self.withdraw(*self.to_withdraw.pop(0))
        for actor in self.living():
            if actor.asking is not None:
                self.answer(actor)
            elif actor.waiting is None:
                self.send(actor, actor.engine.release())
            elif self.news(actor):
                self.wake(actor)
            else:
                continue
            moved = True
        uuid = self.model.lock(NAME).uuid()
        dead = [each.uuid for each in self.actors if not each.process.alive]
        if uuid == FOREIGN or uuid in dead:  # the unlocker sees to it
            self.remove()
            moved = True
        return moved


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The engine's log lines about each lost place are no news here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(0, 2400, 400))
def test_the_promises_hold_in_any_order_of_events(block: int) -> None:
    """Mutual exclusion, the order of the line, rising tokens; no lost wake-up, no leftovers."""
    for seed in range(block, block + 400):
        world, happened = World(), list[str]()
        choose = Random(seed)
        try:
            for _ in range(choose.randrange(10, 90)):
                name, event = choose.choice(list(world.events()))
                happened.append(name)
                event()
                world.check()
            world.calm_down()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{', '.join(happened)}") from error
