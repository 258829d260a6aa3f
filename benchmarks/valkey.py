"""Section `valkey`: locks on one and on five servers, beside bare commands and other libraries.

All on the same servers, which write each change to the disk before they answer it. What is compared
is measured in turns: the callers in the main thread, whose requests a deputy does, and once more in
another thread, which does them itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

from benchmarks import valkey_population
from benchmarks.children import children
from benchmarks.contenders import TTL, Lock, cycle_of
from benchmarks.missing import Missing, module
from benchmarks.samples import Measured, Rounds, compare, flat, in_turns, summary, timed
from benchmarks.servers import Servers
from benchmarks.services import Service, serve, spends
from benchmarks.valkey_floor import CHANNEL, Bare, Wires, words
from lockclient import ClusterMutex
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.service_protocol import ServiceStore
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.store import ValkeyStore

OURS, FLOOR = "ClusterMutex", "bare floor"
REDLOCK = "pottery Redlock"
FEW, MANY = 1, 5
WAITED = 0.06
"""Seconds after which a lock that is waited for is released: who waits is asleep by then."""


class _Plan(NamedTuple):
    """How much is measured."""

    warm_up: int
    rounds: int
    calls_a_round: int
    handovers: int
    locks: int
    looks: int
    seconds: float


_FULL = _Plan(60, 12, 40, 100, 20_000, 5, 15.0)
_QUICK = _Plan(5, 2, 5, 4, 200, 2, 1.0)


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return the cycles, hand-overs and rounds on one set of servers; nothing without servers."""
    plan = _QUICK if quick else _FULL
    with ExitStack() as stack:
        try:
            ports = [stack.enter_context(servers.redis(fsync=True)) for _ in range(MANY)]
        except Missing as reason:
            servers.missing["locks in Valkey and Redis"] = str(reason)
            return {}
        return {
            "cycle": {
                str(number): _cycles(servers, ports[:number], plan) for number in (FEW, MANY)
            },
            "handover": {str(number): _handovers(ports[:number], plan) for number in (FEW, MANY)},
            "services": _services(servers, ports, plan),
        }


# ---------------------------------------------------------------- a cycle


def _cycles(servers: Servers, ports: Sequence[int], plan: _Plan) -> dict[str, Any]:
    """Take and release a free lock, all contenders in turns."""
    with ExitStack() as stack:
        locks: dict[str, Lock] = {
            OURS: stack.enter_context(_ours(ports)),
            FLOOR: stack.enter_context(_bare(ports)),
        }
        others = _libraries if len(ports) == FEW else _redlock
        try:
            locks |= stack.enter_context(others(ports))
        except Missing as reason:
            servers.missing[f"peers on {len(ports)} servers of section valkey"] = str(reason)
        cycles = {name: cycle_of(lock) for name, lock in locks.items()}
        for cycle in cycles.values():
            timed(cycle, plan.warm_up)
        deputed = in_turns(cycles, plan.rounds, plan.calls_a_round)
        with ThreadPoolExecutor(1) as thread:
            own = thread.submit(in_turns, cycles, plan.rounds, plan.calls_a_round).result()
    return {
        name: {
            "main": _row(deputed[name], deputed[OURS]),
            "thread": _row(own[name], own[OURS]),
        }
        for name in cycles
    }


def _row(measured: Measured, ours: Measured) -> dict[str, Any]:
    return {
        **summary(flat(measured.rounds)),
        "client_cpu": median(measured.cpu),
        "ours_over_this": compare(ours.rounds, measured.rounds),
    }


def _place(ports: Sequence[int]) -> ValkeyLocation:
    return ValkeyLocation(tuple(f"127.0.0.1:{port}" for port in ports), root=f"ours-{len(ports)}")


@contextmanager
def _ours(ports: Sequence[int]) -> Iterator[Lock]:
    store = _vouched(_place(ports))
    yield ClusterMutex("bench", store=store)
    store.close()


def _vouched(place: ValkeyLocation) -> ValkeyStore:
    store = ValkeyStore(place)
    store.vouch()  # they are new: nobody holds a lock there
    return store


@contextmanager
def _bare(ports: Sequence[int], key: str = "floor") -> Iterator[Bare]:
    bare = Bare(ports, _value(ports), key)
    yield bare
    bare.close()


def _value(ports: Sequence[int]) -> str:
    """Return what a real holder writes, its uuid first."""
    store = _vouched(_place(ports))
    with ClusterMutex("sample", store=store) as mutex:
        values = mutex.record.subkeys()
    store.close()
    return values["uuid"] + "".join(f"{key}{value}" for key, value in values.items())


@contextmanager
def _libraries(ports: Sequence[int]) -> Iterator[dict[str, Lock]]:
    clients: dict[str, Any] = {
        "valkey-py Lock": module("valkey").Valkey(port=ports[0]),
        "redis-py Lock": module("redis").Redis(port=ports[0]),
    }
    yield {name: client.lock(name, timeout=TTL) for name, client in clients.items()}
    for client in clients.values():
        client.close()


@contextmanager
def _redlock(ports: Sequence[int]) -> Iterator[dict[str, Lock]]:
    pottery, redis = module("pottery"), module("redis")
    masters = {redis.Redis(port=port) for port in ports}
    yield {REDLOCK: pottery.Redlock(key="redlock", masters=masters, auto_release_time=TTL)}
    for master in masters:
        master.close()


# ---------------------------------------------------------------- a hand-over


def _handovers(ports: Sequence[int], plan: _Plan) -> dict[str, Any]:
    """Measure from the call of `release()` to the return of the one waiter's `acquire()`."""
    rounds = 2 if plan is _QUICK else 4
    found: dict[str, Rounds] = {OURS: [], FLOOR: []}
    work = [(kind, tuple(ports), _value(ports)) for kind in found]
    with ExitStack() as stack:
        store = _vouched(_place(ports))
        stack.callback(store.close)
        holders: dict[str, Any] = {
            OURS: ClusterMutex("handover", store=store),
            FLOOR: stack.enter_context(_bare(ports, "handover")),
        }
        pipes = dict(zip(found, stack.enter_context(children(_wait, work)), strict=True))
        for _ in range(rounds):
            for kind, holder in holders.items():
                times = plan.handovers // rounds
                found[kind].append([_handover(holder, pipes[kind]) for _ in range(times)])
    return {
        **{kind: summary(flat(rounds_of_one)) for kind, rounds_of_one in found.items()},
        "over_floor": compare(found[OURS], found[FLOOR]),
    }


def _handover(holder: Any, pipe: Any) -> float:
    if holder.acquire() is False:
        raise AssertionError(f"{holder!r} could not be had, though nobody has it")
    pipe.send("wait")
    time.sleep(WAITED)
    released = monotonic()
    holder.release()
    if isinstance(holder, Bare):
        holder.tell()
    got: float = pipe.recv()
    pipe.recv()  # it has released it
    return got - released


def _wait(kind: str, ports: tuple[int, ...], value: str, pipe: Connection) -> None:
    """Be the one who waits; runs in a child of the benchmark."""
    acquire: Callable[[], object]
    if kind == OURS:
        mutex = ClusterMutex("handover", store=_vouched(_place(ports)))
        acquire, release = mutex.acquire, mutex.release
    else:
        bare, ear = Bare(ports, value, "handover"), Wires(ports[:1])
        ear.all(words("SUBSCRIBE", CHANNEL))
        acquire, release = (lambda: _told(ear, bare)), bare.release
    pipe.send("ready")
    while True:
        pipe.recv()
        acquire()
        pipe.send(monotonic())
        release()
        pipe.send("released")


def _told(ear: Wires, bare: Bare) -> None:
    """Wait until a server tells that it is free, and take it."""
    ear.heard()
    if not bare.acquire():
        raise AssertionError("the floor's lock was told to be free, and is not")


# ---------------------------------------------------------------- the services


def _services(servers: Servers, ports: Sequence[int], plan: _Plan) -> dict[str, Any]:
    """Let unlocker and dashboard look at very many locks, of which nothing changes."""
    place = _place(ports)
    store = _vouched(place)
    with ClusterMutex("sample", store=store) as mutex:
        valkey_population.fill(ports, place, mutex.record, plan.locks)
    looks, spent = _looks(store, plan)
    store.close()
    found: dict[str, Any] = {"locks": plan.locks, "look": summary(looks), "look_cpu": median(spent)}
    for name in ("unlocker", "mutexdash"):
        with serve(name, place.url(), servers.new_folder(name)) as program:
            found[name] = {"cpu": _share(program, plan.seconds), **program.memory()}
    return found


def _looks(store: ServiceStore, plan: _Plan) -> tuple[list[float], list[float]]:
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
    until = Deadline.after(120)
    while len(took) <= plan.looks and not until.expired():
        time.sleep(0.05)
    following.close()
    spent = [after - before for (_, before), (_, after) in pairwise(took)]
    return [seconds for seconds, _ in took], spent


def _share(program: Service, seconds: float) -> float:
    program.wait_ready()
    return spends(program.pid, seconds)
