"""Simulates: `python -m tests.simulation --seconds 60 --seed 1`, or `--replay TOKEN`.

Runs one plan after the other, from a seed on. The first that breaks a rule is shrunk, by leaving
out steps as long as the same rule breaks; its token replays it. Status 0: none broke; 1: one did.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.proof.history import text_of
from tests.simulation.plan import make, parse, token
from tests.simulation.world import Result, run


def shrunk(steps: Sequence[int], fails: Callable[[Sequence[int]], bool], until: float) -> list[int]:
    """Return few of these steps with which it fails still (delta debugging: ddmin)."""
    kept, parts = list(steps), 2
    while len(kept) > 1 and time.monotonic() < until:
        size = -(-len(kept) // parts)
        for begin in range(0, len(kept), size):
            fewer = kept[:begin] + kept[begin + size :]
            if fewer and fails(fewer):
                kept, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept


def shrink(result: Result, seconds: float) -> tuple[list[int], Result]:
    """Return the steps that are left, and what comes of them."""
    rules = {broken.rule for broken in result.broken}

    def fails(kept: Sequence[int]) -> bool:
        return bool(rules & {broken.rule for broken in run(result.seed, kept).broken})

    everything = range(len(make(result.seed)))
    kept = shrunk(everything, fails, time.monotonic() + seconds)
    return kept, run(result.seed, kept)


def simulate(first: int, seconds: float, orders: set[str]) -> tuple[int, float, Result | None]:
    """Run seed after seed; return how many, how many virtual seconds, and which one broke."""
    until, runs, virtual = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < until:
        result = run(first + runs)
        runs, virtual = runs + 1, virtual + result.seconds
        if result.requests >= 30 and result.faults >= 2:
            orders.add(result.order)
        if result.broken:
            return runs, virtual, result
    return runs, virtual, None


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--replay", metavar="TOKEN", help="only this one")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="0: do not")
    parser.add_argument("--history", type=Path, help="write the history there (tests.proof.check)")
    said = parser.parse_args(words)
    orders: set[str] = set()
    if said.replay:
        seed, kept = parse(said.replay)
        failed: Result | None = run(seed, kept)
    else:
        runs, virtual, failed = simulate(said.seed, said.seconds, orders)
        print(
            f"{runs} runs, {len(orders)} distinct orders of at least 30 transactions and two "
            f"faults, {virtual / 3600:.1f} simulated hours"
        )
        kept = None
    if failed is not None and said.history:
        said.history.write_text("".join(map(text_of, failed.lines)))
    if failed is None or not failed.broken:
        return 0
    if kept is None and said.shrink_seconds:
        kept, failed = shrink(failed, said.shrink_seconds)
    for broken in failed.broken:
        print(broken)
    print(f"python -m tests.simulation --replay {token(failed.seed, kept)}")
    for number, step in enumerate(make(failed.seed)):
        if kept is None or number in kept:
            print(f"  {number}: {step}")
    return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what the library does at the end would wait in threads that are no more
