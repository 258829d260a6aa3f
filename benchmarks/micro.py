"""Sections `cycle`, `alive` and `costs`: what one caller waits for, all contenders in turns, and
what single parts of ClusterMutex cost."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import Any

from benchmarks.contenders import OURS, PEERS, Opener, floor, opened, our_store, ours, warm_cycles
from benchmarks.samples import LOOP, Measured, compare, flat, in_turns, summary, timed
from benchmarks.servers import Servers
from lockclient import ClusterMutex
from lockclient.model.backtrace import capture

BLOCK = 1000
"""Calls that are timed together, where a single one is as short as reading the clock."""


def cycle(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Take a free lock and give it back; return a row for each contender that is there."""
    warm_up, rounds = (5, 2) if quick else (150, 24)
    with ExitStack() as stack:
        endpoint = stack.enter_context(servers.etcd()).endpoint
        cycles = warm_cycles(opened(stack, servers, endpoint, PEERS), warm_up)
        measured = in_turns(cycles, rounds, LOOP // 10 if quick else LOOP)
    return {name: found.row(measured[OURS]) for name, found in measured.items()}


def alive(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Call `alive()` a million times in a hot loop, pushes included where they are due."""
    calls = 20_000 if quick else 1_000_000
    with servers.etcd() as server, closing(our_store(server.endpoint)) as store:
        mutex = ClusterMutex("alive", store=store)
        mutex.acquire()
        first, started = mutex.record.alive_at, time.perf_counter()
        found: dict[str, Any] = {"calls": calls, "alive": _in_blocks(mutex.alive, calls)}
        found["total"] = time.perf_counter() - started
        found["pushed"] = mutex.record.alive_at != first
        found["check_health"] = _in_blocks(mutex.check_health, calls // 10)
        found["push"] = summary(timed(partial(mutex.alive, force=True), 20 if quick else 500))
        mutex.release()
    return found


def costs(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Measure what backtrace and subkeys add to a cycle, and constructing a mutex costs."""
    rounds, calls_a_round, warm_up = (2, 5, 5) if quick else (16, 60, 100)
    openers: dict[str, Opener] = {
        "ours": ours,
        "ours without backtrace": partial(ours, backtrace=False),
        "floor": floor,
        "floor with one subkey": partial(floor, only_uuid=True),
    }
    with ExitStack() as stack:
        endpoint = stack.enter_context(servers.etcd()).endpoint
        cycles = warm_cycles(opened(stack, servers, endpoint, openers), warm_up)
        found = in_turns(cycles, rounds, calls_a_round)
    calls = 200 if quick else 20_000
    return {
        "cycles": {name: summary(flat(measured.rounds)) for name, measured in found.items()},
        "backtrace": _difference(found["ours"], found["ours without backtrace"]),
        "subkeys": _difference(found["floor"], found["floor with one subkey"]),
        "capture": [
            {
                "frames": _at_depth(depth, capture).count("  File "),
                **_in_blocks(partial(_at_depth, depth, capture), calls),
            }
            for depth in (5, 50)
        ],
        "construct": _in_blocks(partial(ClusterMutex, "constructed"), calls),
    }


def _difference(longer: Measured, shorter: Measured) -> dict[str, Any]:
    """Return how much longer a cycle is with something, in seconds and as a ratio."""
    pairs = zip(map(median, longer.rounds), map(median, shorter.rounds), strict=True)
    return {"seconds": median(a - b for a, b in pairs), **compare(longer.rounds, shorter.rounds)}


def _in_blocks(call: Callable[[], object], calls: int) -> dict[str, float]:
    """Sum up how long one call takes, from blocks of calls."""
    size = min(BLOCK, max(1, calls // 20))
    blocks = timeit.repeat(call, "import gc; gc.enable()", repeat=calls // size, number=size)
    return summary(took / size for took in blocks)


def _at_depth(depth: int, call: Callable[[], str]) -> str:
    """Call something with so many frames more on the stack."""
    return call() if depth == 0 else _at_depth(depth - 1, call)
