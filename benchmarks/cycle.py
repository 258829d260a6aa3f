"""Section `cycle`: taking a free lock and giving it back, all contenders in turns."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Any

from benchmarks.contenders import PEERS, Where, cycle_of
from benchmarks.missing import Missing
from benchmarks.samples import Measured, compare, flat, in_turns, summary, timed
from benchmarks.servers import Servers

LOOP = 100
"""Cycles of one round: the original article measured a loop of a hundred."""


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return a row for each contender that is there."""
    warm_up, rounds = (5, 2) if quick else (150, 24)
    with ExitStack() as stack:
        where = Where(servers, stack.enter_context(servers.etcd()).endpoint)
        cycles = {}
        for name, opener in PEERS.items():
            try:
                lock = stack.enter_context(opener(where))
            except Missing as reason:
                servers.missing[name] = str(reason)
                continue
            cycles[name] = cycle_of(lock)
        for cycle in cycles.values():  # connections, ZooKeeper's compiler
            timed(cycle, warm_up)
        measured = in_turns(cycles, rounds, LOOP // 10 if quick else LOOP)
    return {name: _row(found, measured["ClusterMutex"]) for name, found in measured.items()}


def _row(measured: Measured, ours: Measured) -> dict[str, Any]:
    rounds = measured.rounds
    loops = statistics.median([sum(durations) / len(durations) for durations in rounds]) * LOOP
    return {
        **summary(flat(rounds)),
        "loop_of_100": loops,
        "client_cpu": statistics.median(measured.cpu),
        "caller_cpu": statistics.median(measured.caller),
        "ours_over_this": compare(ours.rounds, rounds),
    }
