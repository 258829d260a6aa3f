"""Section `handover`: from the call of `release()` to the next holder's return from `acquire()`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks import waiters
from benchmarks.children import CONTEXT, children
from benchmarks.contenders import holder_values
from benchmarks.floor import Wire
from benchmarks.missing import Missing, module
from benchmarks.samples import Rounds, compare, flat, summary
from benchmarks.servers import Servers, metrics, wait_until
from benchmarks.waiters import Plan, Turn
from lockclient import ClusterMutex, Settings, open_store
from lockclient.stores.etcd.wire import messages_pb2 as wire

PROCESSES = 4
HOLD = 0.010
"""Seconds for which each holder keeps the lock: the waiter behind the next one has time to step up,
as it has in real life, where a lock that is held for no time at all protects nothing."""
REST = 0.005
OTHER_WRITES = 100
SPACING = 0.003
"""Seconds between two waiters that get in line, so that neighbours live in different processes."""


@dataclass(frozen=True)
class Case:
    """How one contender is measured: so many waiters, so many hand-overs, at most so long.

    With `busy` somebody else writes into the same etcd all the time, `OTHER_WRITES` a second.
    """

    contender: str
    waiters: int
    handovers: int
    rounds: int
    hold: float = HOLD
    longest: float = 15.0
    busy: bool = False


@dataclass(frozen=True)
class Requests:
    """What an etcd has served so far, by its own count."""

    unary: int
    watch: int

    @classmethod
    def read(cls, endpoint: str) -> Requests:
        """Ask an etcd. Unary requests are what a hand-over costs; messages on watch streams are
        counted apart, and the keep-alives of leases are streams of their own."""
        found = metrics(endpoint)

        def total(name: str, label: tuple[str, str]) -> int:
            counted = (
                value for (key, labels), value in found.items() if key == name and label in labels
            )
            return int(sum(counted))

        return cls(
            total("grpc_server_started_total", ("grpc_type", "unary")),
            total("grpc_server_msg_received_total", ("grpc_method", "Watch")),
        )


def cases(*, quick: bool) -> list[Case]:
    """Return what is measured, in the order of one round."""
    if quick:
        return [Case(contender, 3, 10, 1) for contender in ("floor", "ours", "etcd3")]
    return [
        *(Case(contender, 1, 120, 3) for contender in ("floor", "ours", "etcd3")),
        *(Case(contender, 10, 120, 3) for contender in ("floor", "ours", "etcd3")),
        *(Case(contender, 10, 120, 3, busy=True) for contender in ("floor", "ours", "etcd3")),
        *(Case(contender, 100, 120, 3) for contender in ("floor", "ours")),
        Case("etcd3", 100, 30, 3, longest=6.0),
        *(Case(contender, 1000, 120, 3) for contender in ("floor", "ours")),
    ]


def measure(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each contender and number of waiters."""
    with servers.etcd() as server:
        values = holder_values(server.endpoint)
    todo = cases(quick=quick)
    try:
        module("etcd3")
    except Missing as reason:
        servers.missing["etcd3 Lock"] = str(reason)
        todo = [case for case in todo if case.contender != "etcd3"]
    found: dict[Case, list[tuple[list[float], float, float]]] = {case: [] for case in todo}
    for number in range(max(case.rounds for case in todo)):
        for case in todo:
            if number < case.rounds:
                found[case].append(_round(servers, case, values))
    by_case = {case: [handovers for handovers, _, _ in rounds] for case, rounds in found.items()}
    rows = []
    for case, rounds in found.items():
        rows.append(
            {
                "contender": case.contender,
                "waiters": case.waiters,
                "busy": case.busy,
                "hold": case.hold,
                **summary(flat(by_case[case])),
                "requests": sum(unary for _, unary, _ in rounds) / len(rounds),
                "watch_messages": sum(watch for _, _, watch in rounds) / len(rounds),
                **_comparisons(case, by_case),
            }
        )
    return rows


def _comparisons(case: Case, by_case: dict[Case, Rounds]) -> dict[str, Any]:
    """Compare with the floor in the same line, and with the same contender's shortest line."""
    found: dict[str, Any] = {}
    for other, rounds in by_case.items():
        if (other.contender, other.waiters, other.busy) == ("floor", case.waiters, case.busy):
            found["over_floor"] = compare(by_case[case], rounds)
        if other.contender == case.contender and other.waiters == 1:
            found["over_one_waiter"] = compare(by_case[case], rounds)
    return found


def _round(
    servers: Servers, case: Case, values: dict[str, str]
) -> tuple[list[float], float, float]:
    """Return the durations of hand-overs, and the requests and watch messages for each of them.

    An etcd of its own: what is left of a line that was broken off must not disturb the next one.
    """
    with ExitStack() as stack:
        endpoint = stack.enter_context(servers.etcd()).endpoint
        line = stack.enter_context(_line(case, endpoint, values))
        others = stack.enter_context(_other_writes(endpoint)) if case.busy else [0]
        line.wait(line.turns.value + 2 * PROCESSES, 120)
        before, first, written = Requests.read(endpoint), line.turns.value, others[0]
        line.wait(first + case.handovers, case.longest)
        after, last, written = Requests.read(endpoint), line.turns.value, others[0] - written
        turns = line.report()
    durations = [
        following.got - turn.released
        for turn, following in pairwise(turns)
        if following.number == turn.number + 1 and first <= turn.number <= last
    ]
    count = max(1, last - first)
    unary = after.unary - before.unary - written
    return durations, unary / count, (after.watch - before.watch) / count


class _Line:
    """The processes of one line."""

    def __init__(self, turns: Any, pipes: list[Any]) -> None:
        self.turns = turns
        self._pipes = pipes

    def wait(self, number: int, patience: float) -> None:
        """Wait until there were so many acquisitions, or the time is up."""
        until = time.monotonic() + patience
        while self.turns.value < number and time.monotonic() < until:
            time.sleep(0.005)

    def report(self) -> list[Turn]:
        """Break off, and return all turns in their order.

        Raises:
            AssertionError: two had the lock at once.
        """
        for pipe in self._pipes:
            pipe.send(None)
        turns: list[Turn] = sorted(
            (turn for pipe in self._pipes for turn in pipe.recv()), key=lambda turn: turn.got
        )
        for turn, following in pairwise(turns):
            if following.got < turn.released or following.number <= turn.number:
                raise AssertionError(f"two holders at once: {turn} and {following}")
        return turns


@contextmanager
def _line(case: Case, endpoint: str, values: dict[str, str]) -> Iterator[_Line]:
    size = case.waiters + 1
    count = min(PROCESSES, size)
    turns = CONTEXT.RawValue("q", 0)
    rest = min(REST, case.hold / 2)
    plans = [
        Plan(case.contender, endpoint, tuple(range(i, size, count)), size, case.hold, rest, values)
        for i in range(count)
    ]
    with children(waiters.run, [(plan, turns) for plan in plans]) as pipes:
        for number in range(size):
            pipes[number % count].send(number)
            if case.contender != "floor":
                time.sleep(SPACING)
        if case.contender == "ours":
            _wait_for_line(endpoint, case.waiters)
        yield _Line(turns, pipes)


def _wait_for_line(endpoint: str, size: int) -> None:
    """Wait until all are in line, the one aside that has just released."""
    store = open_store(Settings(endpoints=(endpoint,), root="/ours"))
    mutex = ClusterMutex("handover", store=store)
    wait_until(lambda: len(mutex.waiters()) >= size - 1, "the line to be full")
    store.close()


@contextmanager
def _other_writes(endpoint: str) -> Iterator[list[int]]:
    """Write keys of no concern, again and again; yield the count so far, in a list of one."""
    wire_to, done, end = Wire(endpoint), [0], threading.Event()
    put = wire.Txn(success=[wire.Operation(put=wire.Put(key=b"/other", value=b"write"))])

    def write() -> None:
        while not end.wait(1 / OTHER_WRITES):
            wire_to.txn(put)
            done[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()
        wire_to.close()
