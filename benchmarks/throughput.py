"""Section `throughput`: cycles a second, by threads of one process and by processes."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.contenders import etcd_values
from benchmarks.samples import spread
from benchmarks.servers import Servers
from benchmarks.workers import pool

LAYOUTS = ((1, 1), (1, 4), (1, 16), (1, 64), (2, 1), (4, 1))
"""(processes, threads in each); every thread has a lock of its own."""


def measure(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each layout: the rates of both, cycles a second."""
    rounds, seconds = (1, 0.2) if quick else (8, 0.7)
    layouts = ((1, 2), (2, 1)) if quick else LAYOUTS
    rates: dict[tuple[tuple[int, int], str], list[float]] = {
        (layout, contender): [] for layout in layouts for contender in ("floor", "ours")
    }
    with servers.etcd() as server:
        values = etcd_values(server.endpoint)
        size = max(processes for processes, _ in layouts)
        with pool(size, server.endpoint, values) as workers:
            for number in range(rounds + 1):
                for ((processes, threads), contender), found in rates.items():
                    rate = workers.rate(contender, "cycle", processes, threads, seconds)
                    if number or quick:  # the first round warms up
                        found.append(rate)
    return [_row(*layout, rates[layout, "ours"], rates[layout, "floor"]) for layout in layouts]


def _row(processes: int, threads: int, ours: list[float], floor: list[float]) -> dict[str, Any]:
    return {
        "processes": processes,
        "threads": threads,
        "ours": median(ours),
        "floor": median(floor),
        "ours_over_floor": spread(median(ours) / median(floor), ours, floor),
    }
