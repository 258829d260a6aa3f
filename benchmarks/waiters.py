"""A process full of waiters, for section `handover`; runs in a child of the benchmark.

Every waiter takes the lock, holds it for a moment, releases it and, when the next one has it, gets
in line again, so that the line is as long as it was. CLOCK_MONOTONIC is one clock for all processes
of a host: the times of a release here and of an acquisition there can be compared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from benchmarks.contenders import TTL, Lock, our_store
from benchmarks.floor import Floor, Wire
from benchmarks.missing import module
from lockclient import ClusterMutex
from lockclient.stores.etcd.wire import messages_pb2 as wire

HOLD = 0.010
"""Seconds for which each holder keeps the lock: the waiter behind the next one has time to step up,
as it has in real life, where a lock that is held for no time at all protects nothing."""
REST = 0.005
"""Seconds after which a holder that has released gets in line again."""


class Plan(NamedTuple):
    """What the waiters of one process are to do.

    Attributes:
        contender: `ours`, `floor` or `etcd3`.
        endpoint: of the etcd.
        numbers: which waiters live in this process.
        size: how many there are in all, the holder included.
        values: what a real holder writes, for the floor.
    """

    contender: str
    endpoint: str
    numbers: tuple[int, ...]
    size: int
    values: dict[str, str]


class Turn(NamedTuple):
    """One acquisition: its number in the order of acquisitions, and its times, seconds."""

    number: int
    got: float
    released: float


class Waiters:
    """The waiters of this process; `turns` is shared by all processes and counts acquisitions."""

    def __init__(self, turns: Any) -> None:
        self.done: list[Turn] = []
        self._turns = turns

    def turn(self, release: Callable[[], object]) -> None:
        """Be the holder: called right after the lock was taken."""
        got = time.monotonic()
        number = self._turns.value
        self._turns.value = number + 1  # nobody else does: that is what the lock is for
        time.sleep(HOLD)
        released = time.monotonic()
        release()
        self.done.append(Turn(number, got, released))

    def contend(self, lock: Lock) -> None:
        """Take the lock, again and again."""
        while True:
            if lock.acquire() is False:
                raise AssertionError("a waiter gave up, though it has no timeout")
            self.turn(lock.release)
            time.sleep(REST)


def run(plan: Plan, turns: Any, pipe: Connection) -> None:
    """Let the waiters wait, start and report as the parent says."""
    waiters = Waiters(turns)
    start = (_ring if plan.contender == "floor" else _queue)(waiters, plan)
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        start(number)
    pipe.send(waiters.done)
    os._exit(0)  # threads that wait for a lock don't end otherwise


def _queue(waiters: Waiters, plan: Plan) -> Callable[[int], None]:
    """Return what lets a waiter get in line."""
    if plan.contender == "ours":
        store = our_store(plan.endpoint)
        return lambda _: _thread(waiters.contend, ClusterMutex("handover", store=store))
    host, _, port = plan.endpoint.partition(":")
    client: Any = module("etcd3").client(host=host, port=int(port))

    def start(_number: int) -> None:
        lock = client.lock("handover", ttl=TTL)
        lock.acquire = partial(lock.acquire, timeout=None)  # in place of its ten seconds
        _thread(waiters.contend, lock)

    return start


def _ring(waiters: Waiters, plan: Plan) -> Callable[[int], None]:
    """Make a ring without a line: each waiter watches the one before it, from the beginning.

    A release is a delete by the holder, an event for the next one, and its transaction. As in any
    process with one watch stream, a thread reads it and wakes the thread of the waiter.
    """
    wire_to = Wire(plan.endpoint)
    locks = [
        Floor(wire_to, f"handover-{number}", plan.values, ticket=True)
        for number in range(plan.size)
    ]
    inboxes: dict[int, SimpleQueue[None]] = {number: SimpleQueue() for number in plan.numbers}
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

    for number in plan.numbers:
        before, noput = locks[number - 1].uuid_key, wire.WatchCreate.NOPUT
        create = wire.WatchCreate(key=before, watch_id=number + 1, filters=[noput])
        requests.put(wire.WatchRequest(create=create))
    _thread(read)
    for number in plan.numbers:
        created.get()
        _thread(contend, number)

    def start(number: int) -> None:
        if number == 0:  # the first holder; all others are in the ring already
            inboxes[0].put(None)

    return start


def _thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()
