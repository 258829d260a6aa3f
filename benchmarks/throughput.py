"""Section `throughput`: cycles a second, by threads of one process and by processes."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.contenders import holder_values
from benchmarks.samples import spread
from benchmarks.servers import Servers
from benchmarks.workers import Contender, pool

LAYOUTS = ((1, 1), (1, 4), (1, 16), (1, 64), (2, 1), (4, 1))
"""(processes, threads in each); every thread has a lock of its own."""
CONTENDERS: tuple[Contender, ...] = ("floor", "ours")


def measure(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each layout: the rates of both, cycles a second."""
    rounds, seconds = (1, 0.2) if quick else (8, 0.7)
    layouts = ((1, 2), (2, 1)) if quick else LAYOUTS
    rates: dict[tuple[int, int], dict[Contender, list[float]]] = {
        layout: {contender: [] for contender in CONTENDERS} for layout in layouts
    }
    with servers.etcd() as server:
        values = holder_values(server.endpoint)
        size = max(processes for processes, _ in layouts)
        with pool(size, server.endpoint, values) as workers:
            for number in range(rounds + 1):
                for processes, threads in layouts:
                    for contender in CONTENDERS:
                        rate = workers.rate(contender, "cycle", processes, threads, seconds)
                        if number or quick:  # the first round warms up
                            rates[processes, threads][contender].append(rate)
    return [_row(*layout, found) for layout, found in rates.items()]


def _row(processes: int, threads: int, rates: dict[Contender, list[float]]) -> dict[str, Any]:
    ours, floor = (statistics.median(rates[contender]) for contender in ("ours", "floor"))
    return {
        "processes": processes,
        "threads": threads,
        "ours": ours,
        "floor": floor,
        "ours_over_floor": spread(ours / floor, rates["ours"], rates["floor"]),
    }
