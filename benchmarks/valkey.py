"""Section `valkey`: locks on one and on five servers, beside bare commands and other libraries.

All on the same servers, which write each change to the disk before they answer it. What is compared
is measured in turns: the callers in the main thread, whose requests a deputy does, and once more in
another thread, which does them itself.
"""

from __future__ import annotations

import select
import socket
import time
import uuid
from collections import namedtuple
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from hashlib import sha1
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from benchmarks.children import children
from benchmarks.contenders import FLOOR, OURS, TTL, Lock, holder_values, redlock_on, warm_cycles
from benchmarks.population import LASTING, names_of
from benchmarks.samples import Rounds, compare, flat, in_turns, summary
from benchmarks.servers import Missing, Servers, Service, module
from lockclient import ClusterMutex
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import Holder
from lockclient.stores.common.segments import encode
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.store import ValkeyStore
from tests.support import valkey_servers
from tests.support.processes import wait_until

FEW, MANY = 1, 5
WAITED = 0.06
"""Seconds after which a lock that is waited for is released: waiters are asleep by then."""
_AT_ONCE = 500
"""Locks that are written with one sending."""
_CHANNEL = "floor-released"
_UUID = 36
"""The length of what is compared: the value's beginning."""

_DROP = f"""if string.sub(redis.call('GET', KEYS[1]) or '', 1, {_UUID}) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0"""


_Plan = namedtuple("_Plan", "warm_up rounds calls_a_round lines handovers locks looks seconds")
"""How much is measured."""
_FULL = _Plan(60, 12, 40, 4, 25, 20_000, 5, 15.0)
_QUICK = _Plan(5, 2, 5, 2, 2, 200, 2, 1.0)


class _Some:
    """Some of the servers, with a keyspace of their own."""

    def __init__(self, servers: list[valkey_servers.Server]) -> None:
        on = valkey_servers.Servers(servers)
        self.ports = [server.port for server in servers]
        self.place, self.store = on.place(), on.store
        with self.store() as store:
            values = holder_values(store)
        self.value = values["uuid"] + "".join(f"{key}{text}" for key, text in values.items())
        """What a real holder writes, its uuid first."""


def valkey(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return the cycles, hand-overs and rounds on one set of servers; nothing without servers."""
    plan = _QUICK if quick else _FULL
    try:
        with servers.redis(MANY, fsync=True) as running:
            sets = {str(number): _Some(running.all[:number]) for number in (FEW, MANY)}
            return {
                "cycle": {number: _cycles(servers, some, plan) for number, some in sets.items()},
                "handover": {number: _handovers(some, plan) for number, some in sets.items()},
                "services": _services(sets[str(MANY)], plan),
            }
    except Missing as reason:
        servers.missing["locks in Valkey and Redis"] = str(reason)
        return {}


# ---------------------------------------------------------------- a cycle


def _cycles(servers: Servers, some: _Some, plan: _Plan) -> dict[str, Any]:
    """Take and release a free lock, all contenders in turns."""
    with ExitStack() as stack:
        locks: dict[str, Lock] = {
            OURS: ClusterMutex("bench", store=stack.enter_context(some.store())),
            FLOOR: stack.enter_context(closing(_Bare(some.ports, some.value))),
        }
        try:
            if len(some.ports) == MANY:
                locks["pottery Redlock"] = stack.enter_context(redlock_on(some.ports))
            for name in ("Valkey", "Redis") if len(some.ports) == FEW else ():
                make = getattr(module(name.lower()), name)
                client = stack.enter_context(make(port=some.ports[0]))
                locks[f"{name.lower()}-py Lock"] = client.lock(name, timeout=TTL)
        except Missing as reason:
            servers.missing[f"peers on {len(some.ports)} servers of section valkey"] = str(reason)
        work = warm_cycles(locks, plan.warm_up), plan.rounds, plan.calls_a_round
        deputed = in_turns(*work)
        with ThreadPoolExecutor(1) as thread:
            own = thread.submit(in_turns, *work).result()
    return {
        name: {
            "main": deputed[name].row(deputed[OURS]),
            "thread": own[name].row(own[OURS]),
        }
        for name in locks
    }


# ---------------------------------------------------------------- a hand-over


def _handovers(some: _Some, plan: _Plan) -> dict[str, Any]:
    """Measure from the call of `release()` to the return of the one waiter's `acquire()`."""
    found: dict[str, Rounds] = {OURS: [], FLOOR: []}
    work = [(kind, some.place, some.ports, some.value) for kind in found]
    with ExitStack() as stack:
        store = stack.enter_context(some.store())
        holders: dict[str, Any] = {
            OURS: ClusterMutex("handover", store=store),
            FLOOR: stack.enter_context(closing(_Bare(some.ports, some.value, "handover"))),
        }
        pipes = dict(zip(found, stack.enter_context(children(_wait, work)), strict=True))
        for _ in range(plan.lines):
            for kind, holder in holders.items():
                found[kind].append([_handover(holder, pipes[kind]) for _ in range(plan.handovers)])
    summaries = {kind: summary(flat(rounds)) for kind, rounds in found.items()}
    return {**summaries, "over_floor": compare(found[OURS], found[FLOOR])}


def _handover(holder: Any, pipe: Any) -> float:
    if holder.acquire() is False:
        raise AssertionError(f"{holder!r} could not be had, though nobody has it")
    pipe.send("wait")
    time.sleep(WAITED)
    released = monotonic()
    holder.release()
    if isinstance(holder, _Bare):
        holder.tell()
    got: float = pipe.recv()
    pipe.recv()  # it has released it
    return got - released


def _wait(kind: str, place: ValkeyLocation, ports: list[int], value: str, pipe: Connection) -> None:
    """Wait for the lock; runs in a child of the benchmark."""
    acquire: Callable[[], object]
    release: Callable[[], object]
    if kind == OURS:
        mutex = ClusterMutex("handover", store=ValkeyStore(place))
        acquire, release = mutex.acquire, mutex.release
    else:
        bare, ear = _Bare(ports, value, "handover"), _Wires(ports[:1])
        ear.all(_words("SUBSCRIBE", _CHANNEL))
        acquire, release = (lambda: ear.heard() and bare.acquire()), bare.release
    pipe.send("ready")
    while True:
        pipe.recv()
        if not acquire():
            raise AssertionError("the lock was reported free, and is not")
        pipe.send(monotonic())
        release()
        pipe.send("released")


# ---------------------------------------------------------------- the services


def _services(some: _Some, plan: _Plan) -> dict[str, Any]:
    """Let unlocker and dashboard look at very many locks, of which nothing changes."""
    with some.store() as store:
        with ClusterMutex("sample", store=store) as mutex:
            _fill(some, mutex.record, plan.locks)
        looks, spent = _looks(store, plan)
    found: dict[str, Any] = {"locks": plan.locks, "look": summary(looks), "look_cpu": median(spent)}
    for name in ("unlocker", "mutexdash"):
        with Service(name, some.place.url()) as program:
            program.wait_ready()
            found[name] = {"cpu": program.spends(plan.seconds), **program.memory()}
    return found


def _fill(some: _Some, sample: Holder, number: int) -> None:
    """Write so many locks that nobody holds into each server, with all that a real holder says."""
    keys, names, now = KeyNames(some.place.root), names_of(number), time.time()
    sample = replace(sample, alert_at=now + LASTING, auto_unlock_at=now + 2 * LASTING)
    for port in some.ports:
        with module("valkey").Valkey(port=port, socket_timeout=60) as client:
            for begin in range(0, number, _AT_ONCE):
                pipe = client.pipeline(transaction=False)
                for name in names[begin : begin + _AT_ONCE]:
                    own = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
                    fields = chain(*replace(sample, name=name, uuid=own).subkeys().items())
                    stamps = ("take", "1", "push", "0", "expiry", "0")
                    pipe.execute_command("HSET", keys.lock(name), *stamps, *fields)
                    pipe.execute_command("SADD", keys.lock_index, encode(name))
                pipe.execute()


def _looks(store: valkey_servers.ValkeyStore, plan: _Plan) -> tuple[list[float], list[float]]:
    """Return how long looks took, and the CPU time of this process for each."""
    batches = list(store.load(("locks", "removed", "unlockers"), Deadline.after(120)))
    if sum(len(batch.changes) for batch in batches) < plan.locks:
        raise AssertionError("not all locks were read")
    took: list[tuple[float, float]] = []
    store.poll = 0.05
    following = store.follow(
        batches[-1].revision + 1,
        lambda batch: took.append((monotonic() - batch.known_at, time.process_time())),
    )
    wait_until(lambda: len(took) > plan.looks, 120, "looks")
    following.close()
    spent = [after - before for (_, before), (_, after) in pairwise(took)]
    return [seconds for seconds, _ in took], spent


# ---------------------------------------------------------------- the floor
# Redlock's bare commands over plain sockets, built beforehand: `SET NX PX` with what a real holder
# writes, and a script that compares and deletes, sent to all servers at once, and all answers
# waited for. No library is in between, and nothing is undone.


def _words(*texts: str) -> bytes:
    """Return a command as it is sent."""
    parts = [text.encode() for text in texts]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class _Wires:
    """A connection to each of some servers on loopback."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._poll = select.poll()
        self._by_fd: dict[int, socket.socket] = {}
        for port in ports:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(connection, select.POLLIN)
            self._by_fd[connection.fileno()] = connection

    def all(self, command: bytes) -> list[bytes]:
        """Send a command to all at once; return all answers, each of which is short."""
        for connection in self._by_fd.values():
            connection.sendall(command)
        answers: list[bytes] = []
        while len(answers) < len(self._by_fd):
            answers += self.heard()
        return answers

    def heard(self) -> list[bytes]:
        """Wait until some of them tell something; return that."""
        return [self._by_fd[fd].recv(4096) for fd, _ in self._poll.poll()]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._by_fd.values():
            connection.close()


class _Bare(_Wires):
    """A lock on all these servers, with no library.

    Args:
        ports: the servers'.
        value: what is written; it begins with the uuid.
        key: the lock's.
    """

    def __init__(self, ports: Sequence[int], value: str, key: str = "floor") -> None:
        super().__init__(ports)
        self.all(_words("SCRIPT", "LOAD", _DROP))
        self._majority = len(ports) // 2 + 1
        self._take = _words("SET", key, value, "NX", "PX", f"{1000 * TTL}")
        name = sha1(_DROP.encode()).hexdigest()  # noqa: S324 - it is their name for it
        self._drop = _words("EVALSHA", name, "1", key, value[:_UUID])
        self._tell = _words("PUBLISH", _CHANNEL, value[:_UUID])

    def acquire(self) -> bool:
        """Take the lock; tell whether a majority gave it."""
        return self.all(self._take).count(b"+OK\r\n") >= self._majority

    def release(self) -> None:
        """Give it back."""
        if self.all(self._drop).count(b":1\r\n") < self._majority:
            raise AssertionError("the floor's lock was not held")

    def tell(self) -> None:
        """Tell those who listen that it is free."""
        self.all(self._tell)
