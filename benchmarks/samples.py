"""Durations: measured in turns, so that noise hits all alike, and summed up. All are seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypedDict

Rounds = list[list[float]]
"""The durations of one contender: a list for each round."""


class Summary(TypedDict):
    """Durations in a few numbers, seconds."""

    n: int
    median: float
    p95: float
    p99: float
    mean: float


class Spread(TypedDict):
    """A ratio of two medians, and the middle half of the ratios of the single rounds."""

    ratio: float
    low: float
    high: float


def summary(durations: Iterable[float]) -> Summary:
    """Sum durations up."""
    found = sorted(durations)
    return {
        "n": len(found),
        "median": statistics.median(found),
        "p95": found[min(len(found) - 1, int(len(found) * 0.95))],
        "p99": found[min(len(found) - 1, int(len(found) * 0.99))],
        "mean": statistics.fmean(found),
    }


def flat(rounds: Rounds) -> list[float]:
    """Return the durations of all rounds."""
    return [duration for durations in rounds for duration in durations]


def medians(rounds: Rounds) -> list[float]:
    """Return the median of each round."""
    return [statistics.median(durations) for durations in rounds]


def compare(ours: Rounds, theirs: Rounds) -> Spread:
    """Return how many times as long `ours` took; the rounds of both ran side by side."""
    ratio = statistics.median(flat(ours)) / statistics.median(flat(theirs))
    return spread(ratio, medians(ours), medians(theirs))


def spread(ratio: float, ours: list[float], theirs: list[float]) -> Spread:
    """Return a ratio with the quartiles of the rounds' own ratios."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    if len(ratios) < 2:
        return {"ratio": ratio, "low": ratio, "high": ratio}
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"ratio": ratio, "low": low, "high": high}


class Measured(NamedTuple):
    """What was measured of one contender, round by round.

    `cpu` is the CPU time of this process for one call, seconds, and `caller` that of the thread
    that calls: noise hardly touches them.
    """

    rounds: Rounds
    cpu: list[float]
    caller: list[float]


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


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Return how long each of so many calls took."""
    durations: list[float] = []
    clock = time.perf_counter
    for _ in range(times):
        start = clock()
        call()
        durations.append(clock() - start)
    return durations
