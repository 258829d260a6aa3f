"""Section `handover`: from the call of `release()` to the next holder's return from `acquire()`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import waiters
from benchmarks.children import CONTEXT, children
from benchmarks.contenders import etcd_values, our_store
from benchmarks.floor import Wire, puts
from benchmarks.missing import Missing, module
from benchmarks.samples import compare, flat, summary
from benchmarks.servers import Servers, metrics
from benchmarks.waiters import HOLD, Plan, Turn
from lockclient import ClusterMutex
from lockclient.stores.etcd.wire import messages_pb2 as wire
from tests.support.processes import wait_until

PROCESSES = 4
OTHER_WRITES = 100
SPACING = 0.003
"""Seconds between two waiters that get in line, so that neighbours live in different processes."""
CONTENDERS = ("floor", "ours", "etcd3")


class Case(NamedTuple):
    """How one contender is measured: so many waiters, so many hand-overs, at most so long.

    With `busy` somebody else writes into the same etcd all the time, `OTHER_WRITES` a second.
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


def measure(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
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
    """How long hand-overs took, and the requests and watch messages for each of them."""

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

    def total(name: str, *label: str) -> float:
        return sum(
            count for (key, labels), count in found.items() if key == name and label in labels
        )

    return (
        total("grpc_server_started_total", "grpc_type", "unary"),
        total("grpc_server_msg_received_total", "grpc_method", "Watch"),
    )


@contextmanager
def _line(case: Case, endpoint: str, values: dict[str, str], turns: Any) -> Iterator[list[Any]]:
    """Yield the pipes to the processes in which the waiters are, when all are in line."""
    size = case.waiters + 1
    count = min(PROCESSES, size)
    plans = [
        Plan(case.contender, endpoint, tuple(range(i, size, count)), size, values)
        for i in range(count)
    ]
    with children(waiters.run, [(plan, turns) for plan in plans]) as pipes:
        for number in range(size):
            pipes[number % count].send(number)
            if case.contender != "floor":
                time.sleep(SPACING)
        if case.contender == "ours":
            with closing(our_store(endpoint)) as store:  # the one aside that has just released
                mutex = ClusterMutex("handover", store=store)
                wait_until(lambda: len(mutex.waiters()) >= case.waiters - 1, what="a full line")
        yield pipes


def _turns(pipes: list[Any]) -> list[Turn]:
    """Break a line off, and return all turns in their order; fail if two had the lock at once."""
    for pipe in pipes:
        pipe.send(None)
    turns: list[Turn] = sorted(
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
