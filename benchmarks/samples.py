"""Durations: measured in turns, so that noise hits all alike, and summed up. All are seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple

Rounds = list[list[float]]
"""The durations of one contender: a list for each round."""
LOOP = 100
"""The original article measured a loop of a hundred cycles."""


def summary(durations: Iterable[float]) -> dict[str, float]:
    """Sum durations up in a few numbers."""
    found = sorted(durations)
    p95, p99 = (found[min(len(found) - 1, int(len(found) * share))] for share in (0.95, 0.99))
    return {"n": len(found), "median": median(found), "p95": p95, "p99": p99, "mean": fmean(found)}


def flat(rounds: Rounds) -> list[float]:
    """Return the durations of all rounds."""
    return list(chain.from_iterable(rounds))


def compare(ours: Rounds, theirs: Rounds) -> dict[str, float]:
    """Return how many times as long `ours` took; the rounds of both ran side by side."""
    ratio = median(flat(ours)) / median(flat(theirs))
    return spread(ratio, list(map(median, ours)), list(map(median, theirs)))


def spread(ratio: float, ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Return a ratio with the quartiles of the rounds' own ratios."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if ratios[1:] else [ratio] * 3
    return {"ratio": ratio, "low": low, "high": high}


class Measured(NamedTuple):
    """The samples of one contender, round by round.

    `cpu` is the CPU time of this process for one call, seconds, and `caller` that of the thread
    that calls: noise hardly touches them.
    """

    rounds: Rounds
    cpu: list[float]
    caller: list[float]

    def row(self, ours: Measured) -> dict[str, Any]:
        """Return it as it is reported, beside what was measured of us."""
        return {
            **summary(flat(self.rounds)),
            "loop_of_100": median(map(fmean, self.rounds)) * LOOP,
            "client_cpu": median(self.cpu),
            "caller_cpu": median(self.caller),
            "ours_over_this": compare(ours.rounds, self.rounds),
        }


def in_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, calls_a_round: int
) -> dict[str, Measured]:
    """Time `calls_a_round` calls of every contender, in turns, `rounds` times."""
    found = {name: Measured([], [], []) for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        # Another one begins each round, so that nobody always comes after the same neighbour.
        start = number % len(names)
        for name in names[start:] + names[:start]:
            spent, by_caller = time.process_time(), time.thread_time()
            found[name].rounds.append(timed(contenders[name], calls_a_round))
            found[name].cpu.append((time.process_time() - spent) / calls_a_round)
            found[name].caller.append((time.thread_time() - by_caller) / calls_a_round)
    return found


def timed(
    call: Callable[[], object], times: int, before: Callable[[], object] | None = None
) -> list[float]:
    """Return how long each of so many calls took; what is done `before` each does not count."""
    durations: list[float] = []
    clock = time.perf_counter
    for _ in range(times):
        if before is not None:
            before()
        start = clock()
        call()
        durations.append(clock() - start)
    return durations
