"""The plan of a run: the clients' actions and the faults, all from a seed.

A plan is a list of steps, and any part of it is a plan as well: so a failure is shrunk by leaving
steps out. A token says both, the seed and which steps are left: `1234` or `1234:0,3,17`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

ACTIVE_S = 30.0
"""Seconds in which clients begin, and faults come."""
LOCKS = ("a", "b")


@dataclass(frozen=True)
class Work:
    """One client's work: so many times it wants a lock, and does something with it.

    Attributes:
        process: of which it is a task, or thread.
        kind: `asyncio` or `threads`.
        at: when it begins, in seconds from the begin of the run.
        is_patient: it waits without a timeout, and is not cancelled.
    """

    process: str
    kind: str
    at: float
    lock: str
    rounds: int
    expected: float
    auto_unlock: float
    identity: str | None = None
    is_patient: bool = False


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        what: a method of `World`, by its name.
        on: the process or member that it happens to; empty: nobody, or all.
        seconds: how long it lasts.
        much: how much of it, from 0 to 1.
    """

    what: str
    at: float
    on: str = ""
    seconds: float = 0.0
    much: float = 0.0


Step = Work | Fault

CLIENTS = {"p1": "asyncio", "p2": "asyncio", "p3": "threads"}
UNLOCKERS = ("unlocker1", "unlocker2")
MEMBERS = ("m0:2379", "m1:2379", "m2:2379")
PROCESSES = (*CLIENTS, *UNLOCKERS)

FAULTS: tuple[tuple[str, Sequence[str], float], ...] = (
    ("lose_requests", PROCESSES, 6.0),
    ("lose_answers", PROCESSES, 6.0),
    ("delay_requests", PROCESSES, 8.0),
    ("cut_off", PROCESSES, 12.0),
    ("freeze_process", PROCESSES, 12.0),
    ("kill_process", (*CLIENTS, UNLOCKERS[1]), 0.0),
    ("freeze_member", MEMBERS, 25.0),
    ("stop_member", MEMBERS, 10.0),
    ("lose_leader", MEMBERS, 6.0),
    ("lag_behind", MEMBERS, 20.0),
    ("compact", ("",), 15.0),
    ("fill_up", ("",), 8.0),
    ("jump_clock", PROCESSES, 0.0),
    ("barge_in", LOCKS, 3.0),
    ("force_unlock", LOCKS, 0.0),
    ("push_by_hand", LOCKS, 10.0),
    ("leave_many", ("",), 0.0),
)
"""What can go wrong, with whom, and for how many seconds at most."""
FAULTS_OF_REQUESTS = FAULTS[:4] + FAULTS[6:9]
"""Those in which requests get no answer."""


OUTAGES = ("stop_member", "freeze_member", "cut_off", "freeze_process")
"""The faults of an `outage`: of all members, or of the process with the waiters."""
WITH_OUTAGE = 8
"""One of so many seeds gives a queue in an outage."""
WITH_END = 3
"""One of so many of the other seeds has processes that end normally."""


def make(seed: int) -> list[Step]:
    """Return the plan of a seed: at least 30 transactions and two faults, as a rule far more."""
    choose = Random(seed)
    if seed % WITH_OUTAGE == WITH_OUTAGE // 2:
        return _queue_in_outage(choose)
    steps: list[Step] = []
    for process, kind in CLIENTS.items():
        for _ in range(choose.choice((1, 2, 2))):
            expected = choose.choice((1.0, 2.0))
            steps.append(
                Work(
                    process,
                    kind,
                    at=choose.uniform(0, 8),
                    lock=choose.choice(LOCKS + LOCKS[:1]),
                    rounds=choose.randint(2, 5),
                    expected=expected,
                    auto_unlock=expected + choose.choice((2.0, 4.0)),
                    identity="worker" if choose.random() < 0.1 else None,
                )
            )
    for _ in range(choose.randint(2, 7)):
        what, where, longest = choose.choice(FAULTS)
        seconds = longest * choose.random() ** 2
        at = choose.uniform(0.5, ACTIVE_S - 5)
        steps.append(Fault(what, at, choose.choice(where), seconds, choose.uniform(0.2, 0.9)))
        if choose.random() < 0.3:  # the same time, another target: faults together
            what, where, longest = choose.choice(FAULTS)
            at += choose.uniform(0, seconds)
            steps.append(Fault(what, at, choose.choice(where), seconds, choose.uniform(0.2, 0.9)))
    return [*steps, *_ends(choose)] if seed % WITH_END == 1 else steps


def _ends(choose: Random) -> list[Step]:
    """Return the normal ends of one or two processes with many clients, some in trouble."""
    steps: list[Step] = []
    for process in choose.sample(list(CLIENTS), choose.choice((1, 2))):
        at = choose.uniform(1.0, 12.0)
        for _ in range(3):
            begins = choose.uniform(max(0.0, at - 3.0), at)
            lock = choose.choice(LOCKS)
            steps.append(Work(process, CLIENTS[process], begins, lock, 5, 1.0, 4.0))
        if choose.random() < 0.5:
            what, where, longest = choose.choice(FAULTS_OF_REQUESTS)
            on = process if process in where else choose.choice(where)
            begins = at - choose.uniform(0.0, 1.0)
            seconds = choose.uniform(1.0, longest)
            steps.append(Fault(what, begins, on, seconds, choose.uniform(0.3, 1.0)))
        steps.append(Fault("end_process", at, process, much=choose.random()))
    return steps


def _queue_in_outage(choose: Random) -> list[Step]:
    """Return five waiters of one process, and an outage longer than the lease of their tickets.

    The lock is free only when each ticket would have ended that is not renewed after the outage.
    """
    process, lock = choose.choice(("p1", "p3")), LOCKS[0]
    waiters = [
        Work(
            *(process, CLIENTS[process], choose.uniform(1, 4), lock),
            rounds=1,
            expected=1.0,
            auto_unlock=3.0,
            is_patient=True,
        )
        for _ in range(5)
    ]
    outage = Fault("outage", choose.uniform(5, 8), choose.choice(OUTAGES), choose.uniform(11, 14))
    return [*waiters, Fault("barge_in", 0.5, lock, 33.0), outage]


def token(seed: int, kept: Sequence[int] | None) -> str:
    """Return what replays a run."""
    return f"{seed}" if kept is None else f"{seed}:{','.join(map(str, kept))}"


def parse(text: str) -> tuple[int, list[int] | None]:
    """Return what a token says.

    Raises:
        ValueError: it is none.
    """
    seed, colon, kept = text.partition(":")
    return int(seed), [int(step) for step in kept.split(",") if step] if colon else None
