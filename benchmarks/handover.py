"""Section `handover`: from the call of `release()` to the next holder's return from `acquire()`.

CLOCK_MONOTONIC is one clock for all processes of a host: the times of a release in one and of an
acquisition in another can be compared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from queue import SimpleQueue
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.children import CONTEXT, children
from benchmarks.contenders import TTL, Lock, etcd_values, our_store
from benchmarks.floor import Floor, Wire, puts
from benchmarks.samples import compare, flat, summary
from benchmarks.servers import Missing, Servers, metrics, module
from lockclient import ClusterMutex
from lockclient.stores.etcd.wire import messages_pb2 as wire
from tests.support.processes import wait_until

PROCESSES = 4
OTHER_WRITES = 100
SPACING = 0.003
"""Seconds between two waiters that get in line, so that neighbours live in different processes."""
HOLD = 0.010
"""Seconds for which each holder keeps the lock: the waiter behind the next one has time to step up,
as it has in real life, where a lock that is held for no time at all protects nothing."""
REST = 0.005
"""Seconds after which a holder that has released gets in line again."""
CONTENDERS = ("floor", "ours", "etcd3")


class Case(NamedTuple):
    """One measurement of a contender: its waiters, its hand-overs, and the longest time for them.

    With `busy` another client writes into the same etcd all the time, `OTHER_WRITES` a second.
    """

    contender: str
    waiters: int
    busy: bool = False
    handovers: int = 120
    longest: float = 15.0


def cases(*, quick: bool) -> list[Case]:
    """Return what is measured, in the order of one round."""
    if quick:
        return [Case(contender, 3, handovers=10) for contender in CONTENDERS]
    lines = ((1, False), (10, False), (10, True), (100, False), (1000, False))
    many = [Case(contender, *line) for line in lines for contender in CONTENDERS]
    slow = Case("etcd3", 100, handovers=30, longest=6.0)
    some = [slow if case[:2] == slow[:2] else case for case in many]
    return [case for case in some if case[:2] != ("etcd3", 1000)]


def handover(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each contender and number of waiters."""
    with servers.etcd() as server:
        values = etcd_values(server.endpoint)
    todo = cases(quick=quick)
    try:
        module("etcd3")
    except Missing as reason:
        servers.missing["etcd3 Lock"] = str(reason)
        todo = [case for case in todo if case.contender != "etcd3"]
    found: dict[tuple[str, int, bool], list[_Round]] = {case[:3]: [] for case in todo}
    for _ in range(1 if quick else 3):
        for case in todo:
            found[case[:3]].append(_round(servers, case, values))
    took = {key: [done.took for done in rounds] for key, rounds in found.items()}
    rows = []
    for (contender, size, busy), rounds in found.items():
        own = took[contender, size, busy]
        others = {
            "over_floor": took.get(("floor", size, busy)),  # in the same line
            "over_one_waiter": took.get((contender, 1, False)),
        }
        rows.append(
            {
                "contender": contender,
                "waiters": size,
                "busy": busy,
                "hold": HOLD,
                **summary(flat(own)),
                "requests": fmean(done.requests for done in rounds),
                "watch_messages": fmean(done.watch_messages for done in rounds),
                **{name: compare(own, other) for name, other in others.items() if other},
            }
        )
    return rows


class _Round(NamedTuple):
    """Times of hand-overs, and the requests and watch messages for each of them."""

    took: list[float]
    requests: float
    watch_messages: float


def _round(servers: Servers, case: Case, values: dict[str, str]) -> _Round:
    """Measure on an etcd of its own: what is left of a line that was broken off must not disturb
    the next one."""
    turns = CONTEXT.RawValue("q", 0)

    def wait(number: int, patience: float) -> None:
        until = time.monotonic() + patience
        while turns.value < number and time.monotonic() < until:
            time.sleep(0.005)

    with ExitStack() as stack:
        endpoint = stack.enter_context(servers.etcd()).endpoint
        pipes = stack.enter_context(_line(case, endpoint, values, turns))
        others = stack.enter_context(_other_writes(endpoint)) if case.busy else [0]
        wait(turns.value + 2 * PROCESSES, 120)
        before, first, written = _served(endpoint), turns.value, others[0]
        wait(first + case.handovers, case.longest)
        after, last, writing = _served(endpoint), turns.value, others[0]
        done = _turns(pipes)
    took = [
        following.got - turn.released
        for turn, following in pairwise(done)
        if following.number == turn.number + 1 and first <= turn.number <= last
    ]
    unary, watch = (new - old for old, new in zip(before, after, strict=True))
    count = max(1, last - first)
    return _Round(took, (unary - (writing - written)) / count, watch / count)


def _served(endpoint: str) -> tuple[float, float]:
    """Return what an etcd has served so far, by its own count: unary requests, which are what a
    hand-over costs, and messages on watch streams. (Keep-alives of leases are streams, too.)"""
    found = metrics(endpoint)

    def total(name: str, label: str) -> float:
        return sum(count for key, count in found.items() if key.startswith(name) and label in key)

    unary = total("grpc_server_started_total{", 'grpc_type="unary"')
    return unary, total("grpc_server_msg_received_total{", 'grpc_method="Watch"')


@contextmanager
def _line(case: Case, endpoint: str, values: dict[str, str], turns: Any) -> Iterator[list[Any]]:
    """Yield the pipes to the processes in which the waiters are, when all are in line."""
    size = case.waiters + 1
    count = min(PROCESSES, size)
    work = [
        (case.contender, endpoint, range(first, size, count), size, values, turns)
        for first in range(count)
    ]
    with children(_run, work) as pipes:
        for number in range(size):
            pipes[number % count].send(number)
            if case.contender != "floor":
                time.sleep(SPACING)
        if case.contender == "ours":
            with closing(our_store(endpoint)) as store:  # the one aside that has just released
                mutex = ClusterMutex("handover", store=store)
                wait_until(lambda: len(mutex.waiters()) >= case.waiters - 1, what="a full line")
        yield pipes


def _turns(pipes: list[Any]) -> list[_Turn]:
    """Break a line off, and return all turns in their order; fail if two had the lock at once."""
    for pipe in pipes:
        pipe.send(None)
    turns: list[_Turn] = sorted(
        (turn for pipe in pipes for turn in pipe.recv()), key=lambda turn: turn.got
    )
    for turn, following in pairwise(turns):
        if following.got < turn.released or following.number <= turn.number:
            raise AssertionError(f"two holders at once: {turn} and {following}")
    return turns


@contextmanager
def _other_writes(endpoint: str) -> Iterator[list[int]]:
    """Write keys of no concern, again and again; yield the count so far, in a list of one."""
    done, end, put = [0], threading.Event(), wire.Txn(success=puts(b"/", {"other": "write"}))

    def write() -> None:
        while not end.wait(1 / OTHER_WRITES):
            wire_to.txn(put)
            done[0] += 1

    with closing(Wire(endpoint)) as wire_to:
        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield done
        finally:
            end.set()
            thread.join()


# ---------------------------------------------------------------- a process full of waiters


class _Turn(NamedTuple):
    """One acquisition: its number in the order of acquisitions, and its times, seconds."""

    number: int
    got: float
    released: float


class _Waiters:
    """The waiters of a process; `turns` is shared by all processes and counts acquisitions.

    Every waiter takes the lock, holds it for a moment, releases it and, when the next one has it,
    gets in line again, so that the line is as long as it was.
    """

    def __init__(self, turns: Any) -> None:
        self.done: list[_Turn] = []
        self._turns = turns

    def turn(self, release: Callable[[], object]) -> None:
        """Be the holder: called right after the lock was taken."""
        got = time.monotonic()
        number = self._turns.value
        self._turns.value = number + 1  # the lock keeps others from doing so
        time.sleep(HOLD)
        released = time.monotonic()
        release()
        self.done.append(_Turn(number, got, released))

    def contend(self, lock: Lock) -> None:
        """Take the lock, again and again."""
        while True:
            if lock.acquire() is False:
                raise AssertionError("a waiter gave up, though it has no timeout")
            self.turn(lock.release)
            time.sleep(REST)


def _run(
    contender: str,
    endpoint: str,
    numbers: range,
    size: int,
    values: dict[str, str],
    turns: Any,
    pipe: Connection,
) -> None:
    """Let the waiters of a process wait, start and report as the parent says.

    Args:
        numbers: which waiters these are.
        size: how many there are in all, the holder included.
        values: what a real holder writes, for the floor.
    """
    waiters = _Waiters(turns)
    if contender == "floor":
        start = _ring(waiters, Wire(endpoint), numbers, size, values)
    else:
        start = _queue(waiters, contender, endpoint)
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        start(number)
    pipe.send(waiters.done)
    os._exit(0)  # threads that wait for a lock don't end otherwise


def _queue(waiters: _Waiters, contender: str, endpoint: str) -> Callable[[int], None]:
    """Return what lets a waiter get in line."""
    if contender == "ours":
        store = our_store(endpoint)
        return lambda _: _thread(waiters.contend, ClusterMutex("handover", store=store))
    host, _, port = endpoint.partition(":")
    client: Any = module("etcd3").client(host=host, port=int(port))

    def start(_number: int) -> None:
        lock = client.lock("handover", ttl=TTL)
        lock.acquire = partial(lock.acquire, timeout=None)  # in place of its ten seconds
        _thread(waiters.contend, lock)

    return start


def _ring(
    waiters: _Waiters, wire_to: Wire, numbers: range, size: int, values: dict[str, str]
) -> Callable[[int], None]:
    """Make a ring without a line: each waiter watches the one before it, from the beginning.

    A release is a delete by the holder, an event for the next one, and its transaction. As in any
    process with one watch stream, a thread reads it and wakes the thread of the waiter.
    """
    locks = [Floor(wire_to, f"handover-{number}", values, ticket=True) for number in range(size)]
    inboxes: dict[int, SimpleQueue[None]] = {number: SimpleQueue() for number in numbers}
    requests: SimpleQueue[wire.WatchRequest] = SimpleQueue()
    created: SimpleQueue[int] = SimpleQueue()

    def read() -> None:
        for answer in wire_to.watch(requests):
            if answer.created:
                created.put(answer.watch_id)
            for _ in answer.events:
                inboxes[answer.watch_id - 1].put(None)

    def contend(number: int) -> None:
        lock, inbox = locks[number], inboxes[number]
        while True:
            inbox.get()
            lock.acquire()
            waiters.turn(lock.release)

    for number in numbers:
        before, noput = locks[number - 1].uuid_key, wire.WatchCreate.NOPUT
        create = wire.WatchCreate(key=before, watch_id=number + 1, filters=[noput])
        requests.put(wire.WatchRequest(create=create))
    _thread(read)
    for number in numbers:
        created.get()
        _thread(contend, number)

    def start(number: int) -> None:
        if number == 0:  # the first holder; all others are in the ring already
            inboxes[0].put(None)

    return start


def _thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()
