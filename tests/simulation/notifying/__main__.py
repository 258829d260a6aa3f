"""Runs seeds: `python -m tests.simulation.notifying --seeds 2000 --seed 1`, or `--replay 7`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import get_context

from tests.simulation.notifying.rules import violations
from tests.simulation.notifying.world import run


def broken(seed: int) -> tuple[int, list[str]]:
    """Run a seed; return it, and what broke a rule."""
    return seed, violations(run(seed))


def replay(seed: int) -> None:
    """Run a seed; print its history."""
    world = run(seed)
    for fault in sorted(world.faults, key=lambda each: each.begin):
        print(f"{fault.begin:7.1f} {fault}")
    print("deaths", world.deaths, "damaged", world.damaged)
    for each in world.attempts:
        made = f"attempt {each.at:7.1f} {each.machine} {each.url} to {each.ended_at:.1f}"
        print(made, sorted(each.items))
    for said in world.deliveries:
        print(f"{said.at:7.1f} {said.machine} {said.url} {said.mode} {said.message.title}")
    for line in violations(world):
        print(line)


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.notifying", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=60, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--all", action="store_true", help="go on after one that breaks a rule")
    parser.add_argument("--replay", type=int, help="only this one, with its history")
    said = parser.parse_args(words)
    if said.replay is not None:
        replay(said.replay)
        return 0
    seeds, failed, done = range(said.seed, said.seed + said.seeds), 0, 0
    with ExitStack() as stack:
        results: Iterator[tuple[int, list[str]]] = map(broken, seeds)
        if said.workers > 1:
            pool = stack.enter_context(get_context("fork").Pool(said.workers))
            results = pool.imap_unordered(broken, seeds)
        for seed, lines in results:
            done, failed = done + 1, failed + bool(lines)
            for line in lines[:5]:
                print(f"{line} (seed {seed})", flush=True)
            if lines and not said.all:
                break
    print(f"{done} seeds, {failed} broke a rule")
    return 1 if failed else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
