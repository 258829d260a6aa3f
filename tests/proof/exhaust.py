"""All orders of events within bounds: `python -m tests.proof.exhaust [--faults N] [--clients N]`.

The real `Acquisition` and the real transactions, on the simulated etcd, without time: clients that
take, wait, push, release, give up and die, an unlocker that reads and removes, a foreign client
that ignores the queue. Each request may be answered, or (a fault) lose its answer and be sent
again, or be late, sent again, and arrive at any time after that. All states are visited; two that
differ only in their revisions count as one. Status 0: no state breaks a rule; 1: one does, and the
events that led to it.

The rules of each state:

- A held lock ends only by its holder, or by a removal whose stamps were not written since they were
  read. It is taken only when it is free, and only in the order of the queue.
- A holder whose lock was removed never has it again. Stamps never go back.
- A client that has withdrawn never has a lock or ticket again. A holder has no ticket.
- When no event is left, there is no waiter and no key.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

from lockclient.acquisition.state_machine import End, Step, Wait
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import PLANS
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.mutex_store import WatchEvent
from lockclient.stores.outcomes import Conflict, NotHolder
from lockclient.stores.request_types import (
    Claim,
    Push,
    Reclaim,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)
from tests.proof.clients import NAME, RUNTIME, Client
from tests.proof.states import normalised
from tests.simulation.etcd import Refusal, SimulatedEtcd
from tests.support.records import taker

_TAKING = (Take, TakeOrQueue, Reclaim)
FOREIGN = "foreign"
KEYS = Keys("/r")
OF = KEYS.keys_of(NAME)
Move = tuple[str, bool, Callable[["World"], None]]
"""What happens, whether it is a fault, and how."""


class Broken(Exception):
    """A state breaks a rule: which."""


class World:
    """One state."""

    def __init__(self, clients: int, *, foreign: bool) -> None:
        self.etcd = SimulatedEtcd()
        self.clients = [
            Client(f"u{number}", self.etcd.grant(wire.LeaseGrant(ttl=10**6)).id)
            for number in range(clients)
        ]
        self.late: tuple[tuple[str, Request, int], ...] = ()
        self.removed: frozenset[str] = frozenset()
        self.seen: tuple[str, tuple[int, int]] | None = None
        self.removals = 1
        self.barges = int(foreign)
        self.faults = 0
        self.records = self.etcd.grant(wire.LeaseGrant(ttl=10**6)).id
        for client in self.clients:
            self._follow(client, client.engine.begin(client.now()))

    def copied(self) -> World:
        """Return a world of its own in the same state."""
        twin = copy(self)
        twin.etcd = self.etcd.copied()
        twin.clients = [client.copied() for client in self.clients]
        return twin

    # ------------------------------------------------------------ what can happen

    def moves(self) -> Iterator[Move]:
        """All that can happen next."""
        for number, client in enumerate(self.clients):
            for name, fault, move in self._moves_of(client):
                yield f"{client.uuid} {name}", fault, partial(_on, number, move)
        for index, (uuid, _, _) in enumerate(self.late):
            yield f"late of {uuid}", False, partial(World.arrive_late, index=index)
        holder = self.uuid()
        if holder == FOREIGN:
            yield "foreign goes", False, World.foreign_goes
        elif holder is None and self.barges:
            yield "foreign comes", True, World.foreign_comes
        if holder not in (None, FOREIGN) and self.removals and self.seen is None:
            yield "unlocker looks", False, World.look
        if self.seen is not None:
            yield "unlocker removes", False, World.remove
            yield "unlocker's removal is late", True, partial(World.remove, late=True)

    def _moves_of(self, client: Client) -> Iterator[tuple[str, bool, Callable[..., None]]]:
        if client.withdraw is not None:
            yield "withdraws", False, World.withdraw
        if client.dead:
            if any(kv.lease == client.lease for kv in self.etcd.kept.values()):
                yield "lease ends", False, World.lease_ends
            return
        if client.over:
            return
        yield "dies", True, World.die
        if client.asking is not None:
            yield f"is answered {type(client.asking).__name__}", False, World.answer
            if not client.resent:
                yield "loses an answer", True, World.lose_answer
                yield "is delayed", True, World.delay
        elif client.waiting is not None:
            if self._news(client) is not None:
                yield "wakes", False, World.wake
        elif client.held:
            if not client.pushes:
                yield "pushes", False, World.push
            yield "releases", False, World.release
        if not client.held and client is self.clients[0]:  # one who gives up is enough
            yield "gives up", False, World.give_up

    # ------------------------------------------------------------ requests

    def uuid(self) -> str | None:
        """Return the holder."""
        kv = self.etcd.kept.get(OF.uuid)
        return None if kv is None else (kv.value or b"").decode()

    def tickets(self) -> dict[str, int]:
        """Return who stands in line, with the create revisions."""
        line = f"/r/queue/{NAME}/".encode()
        found = ((key, kv) for key, kv in self.etcd.kept.items() if key.startswith(line))
        return {key.rpartition(b"/")[2].decode(): kv.created for key, kv in found}

    def stamps(self) -> tuple[int, int]:
        """Return the revisions of the stamps."""
        found = (self.etcd.kept.get(OF.subkey(part)) for part in ("alert_at", "auto_unlock_at"))
        one, other = (0 if kv is None else kv.revision for kv in found)
        return one, other

    def apply(self, who: str, request: Request, lease: int, *, resent: bool = False) -> Any:
        """Let a request arrive, and look at what it has done."""
        before, line, stamps = self.uuid(), self.tickets(), self.stamps()
        alert = self.etcd.kept.get(OF.subkey("alert_at"))
        plan = PLANS[type(request)](KEYS, request)
        plan.bind(lease)
        outcome = plan.read(self.etcd.txn(plan.txn), resent)
        after = self.uuid()
        if before is not None and after != before:
            by_holder = who == before and isinstance(request, Unlock | Withdraw)
            due = isinstance(request, Remove) and (
                (request.removal.holder.uuid, request.stamp_revisions) == (before, stamps)
            )
            _hold(by_holder or due, f"{type(request).__name__} of {who} took it from {before}")
            self.removed |= {before} if isinstance(request, Remove) else set()
        if after is not None and after != before:
            _hold(before is None, f"{who} got it while {before} had it")
            _hold(after not in self.removed, f"{after} was removed, and got it again")
            oldest = min(line, key=lambda uuid: line[uuid], default=who)
            own = isinstance(request, Claim) and request.ticket_revision == line.get(who)
            _hold(oldest == who and (not line or own), f"{who} overtook {oldest}")
        pushed = isinstance(request, Push) and self.stamps() != stamps
        _hold(not pushed or who == before, f"{who} pushed the lock of {before}")
        stamp = self.etcd.kept.get(OF.subkey("alert_at"))
        if before == after and alert is not None and stamp is not None and before != FOREIGN:
            _hold(float(stamp.value or 0) >= float(alert.value or 0), f"{who} put stamps back")
        self.check()
        return outcome

    def check(self) -> None:
        """Look at what must hold now, whatever has just happened."""
        uuid, tickets = self.uuid(), self.tickets()
        _hold(uuid not in tickets, f"{uuid} has the lock, and a ticket")
        for client in self.clients:
            left = client.uuid == uuid or client.uuid in tickets
            _hold(not (client.gone and left), f"{client.uuid} is gone, and has something")

    def check_end(self) -> None:
        """Look at what must hold when nothing is left to happen."""
        for client in self.clients:
            done = client.over or client.dead
            _hold(done, f"{client.uuid} waits for ever")
        dead = [client.uuid for client in self.clients if client.dead]
        _hold(self.uuid() in (None, *dead), f"the lock of {self.uuid()} is left")
        _hold(not self.tickets(), f"tickets are left: {self.tickets()}")

    def _follow(self, client: Client, step: Step) -> None:
        client.asking = client.waiting = None
        client.resent = False
        if isinstance(step, Wait):
            client.waiting = step
        elif step is End.ACQUIRED:
            client.held = True
        elif step in (End.BUSY, End.UUID_SPENT):
            self._give_up(client)
        else:
            self._send(client, step)

    def _send(self, client: Client, request: Request) -> None:
        client.asking, client.resent = request, False
        client.engine.delivery.in_flight |= isinstance(request, _TAKING)

    def _give_up(self, client: Client) -> None:
        client.withdraw = client.engine.start_withdrawal()
        client.asking = client.waiting = None
        client.over = True
        client.gone = client.withdraw is None

    # ------------------------------------------------------------ moves

    def answer(self, client: Client) -> None:
        request, engine = client.asking, client.engine
        assert request is not None
        if (
            isinstance(request, TakeOrQueue)
            and not self.etcd.keep_alive(wire.LeaseKeepAlive(id=client.lease)).ttl
        ):
            client.lease = self.etcd.grant(wire.LeaseGrant(ttl=10**6)).id
        outcome = self.apply(client.uuid, request, client.lease, resent=client.resent)
        engine.delivery.in_flight &= not isinstance(request, _TAKING)
        if isinstance(request, Unlock):
            if isinstance(outcome, NotHolder):
                engine.note_unlock_refused(outcome)
            withdraw = engine.start_withdrawal()
            client.withdraw = withdraw if engine.may_arrive_late else None
            client.asking, client.over = None, True
            client.gone = client.withdraw is None
        elif isinstance(request, Push) and client.held:
            client.asking = None
            if not engine.pushed(request, outcome, 1000.0):
                assert isinstance(outcome, Conflict)
                self._send(client, engine.push(client.now()))
            elif engine.loss is not None:
                self._give_up(client)
        else:
            self._follow(client, engine.answered(outcome, client.now()))

    def _again(self, client: Client) -> None:
        client.resent = True
        client.engine.delivery.is_unknown |= isinstance(client.asking, _TAKING)

    def lose_answer(self, client: Client) -> None:
        assert client.asking is not None
        self.apply(client.uuid, client.asking, client.lease)
        self._again(client)

    def delay(self, client: Client) -> None:
        assert client.asking is not None
        self.late += ((client.uuid, client.asking, client.lease),)
        self._again(client)

    def arrive_late(self, index: int) -> None:
        uuid, request, lease = self.late[index]
        self.late = self.late[:index] + self.late[index + 1 :]
        try:
            self.apply(uuid, request, lease)
        except Refusal:
            return  # its lease is gone

    def _news(self, client: Client) -> WatchEvent | None:
        assert client.waiting is not None
        target, revision = client.waiting.target, client.waiting.revision
        key = OF.uuid if target.ticket is None else OF.ticket_as_read(target.ticket)
        for write in self.etcd.events(revision, key, b"", synced=True):
            if target.ticket is None or write.value is None:
                value = None if write.value is None else write.value.decode()
                return WatchEvent(write.revision, value)
        return None

    def wake(self, client: Client) -> None:
        self._follow(client, client.engine.woken(self._news(client), client.now()))

    def push(self, client: Client) -> None:
        client.pushes += 1
        self._send(client, client.engine.push(client.now()))

    def release(self, client: Client) -> None:
        self._send(client, client.engine.unlock_request())

    def give_up(self, client: Client) -> None:
        if client.asking is not None:
            self.late += ((client.uuid, client.asking, client.lease),)
        self._give_up(client)

    def withdraw(self, client: Client) -> None:
        assert client.withdraw is not None
        client.gone, withdraw, client.withdraw = True, client.withdraw, None
        self.apply(client.uuid, withdraw, self.records)

    def die(self, client: Client) -> None:
        if client.asking is not None:
            self.late += ((client.uuid, client.asking, client.lease),)
        client.dead, client.asking, client.waiting = True, None, None

    def lease_ends(self, client: Client) -> None:
        self.etcd.revoke(wire.LeaseRevoke(id=client.lease))

    def look(self) -> None:
        self.seen = self.uuid() or "", self.stamps()

    def remove(self, *, late: bool = False) -> None:
        assert self.seen is not None
        (uuid, stamps), self.seen = self.seen, None
        self.removals -= 1
        holder = taker(NAME, RUNTIME, uuid=uuid)
        request = Remove(Removal(holder, 2000.0, "unlocker", AUTO_UNLOCK, "silent"), stamps)
        if late:
            self.late += (("unlocker", request, self.records),)
        else:
            self.apply("unlocker", request, self.records)

    def foreign_comes(self) -> None:
        self.barges -= 1
        txn = wire.Txn()
        txn.success.add().put.CopyFrom(wire.Put(key=OF.uuid, value=FOREIGN.encode()))
        self.etcd.txn(txn)

    def foreign_goes(self) -> None:
        txn = wire.Txn()
        txn.success.add().delete.key = OF.uuid
        self.etcd.txn(txn)


def _on(number: int, move: Callable[[World, Client], None], world: World) -> None:
    move(world, world.clients[number])


def _hold(so: bool, otherwise: str) -> None:
    if not so:
        raise Broken(otherwise)


def explore(start: World, faults: int, until: float) -> tuple[int, bool]:
    """Visit all states; return how many, and whether it was all of them.

    Raises:
        Broken: one breaks a rule; how it came to be.
    """
    seen = {normalised(start)}
    todo: list[tuple[World, tuple[str, ...]]] = [(start, ())]
    while todo and time.monotonic() < until:
        world, path = todo.pop()
        ended = True
        for name, fault, move in world.moves():
            ended = ended and fault
            if fault and world.faults >= faults:
                continue
            after, way = world.copied(), (*path, name)
            after.faults += fault
            try:
                move(after)
            except Broken as broken:
                raise Broken(f"{broken}, after: {', '.join(way)}") from None
            if (state := normalised(after)) not in seen:
                seen.add(state)
                todo.append((after, way))
        if ended:
            try:
                world.check_end()
            except Broken as broken:
                raise Broken(f"{broken}, after: {', '.join(path)}") from None
    return len(seen), not todo


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.exhaust", description=__doc__)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--foreign", action="store_true", help="and one that knows no line")
    parser.add_argument("--faults", type=int, default=2, help="in a run, at most")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after that")
    said = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    begin = time.process_time()
    start = World(said.clients, foreign=said.foreign)
    try:
        states, all_of_them = explore(start, said.faults, time.monotonic() + said.seconds)
    except Broken as broken:
        print(f"exhaustion: {broken}")
        return 1
    spent = time.process_time() - begin
    print(f"{states} states in {spent:.0f} s, {'all' if all_of_them else 'not all'} there are")
    return 0 if all_of_them else 3


if __name__ == "__main__":
    sys.exit(main())
