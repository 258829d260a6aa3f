"""Many waiters for one lock: it is handed over, and one waiter polls the servers for all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from tests.contract.asking import NAME
from tests.support.processes import Figure
from tests.support.soak import soaking
from tests.support.valkey_servers import Servers, running

CROWD = 100


def commands(servers: Servers) -> int:
    found = servers.command("INFO", "stats")
    return sum(int(stats["total_commands_processed"]) for stats in found)


@pytest.mark.parametrize(
    ("number", "crowd"), [(1, CROWD), (5, CROWD), *soaking((1, 500), (3, 500), (5, 500))]
)
def test_each_of_many_waiters_gets_the_lock(
    tmp_path: Path, number: int, crowd: int, figure: Figure
) -> None:
    rounds, inside = 3, list[int]()

    def work(_worker: int) -> None:
        mutex = ClusterMutex(NAME, store=store, timeout=300, expected_runtime=60)
        for _ in range(rounds):
            with mutex:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    with running(tmp_path, number) as servers, servers.store() as store:
        before, began = commands(servers), time.monotonic()
        with ThreadPoolExecutor(crowd) as threads:
            list(threads.map(work, range(crowd)))
        each = (commands(servers) - before) / (rounds * crowd * number)
        took = time.monotonic() - began
    figure(
        f"{crowd} threads on {number} servers: {rounds * crowd / took:.0f} acquisitions a second, "
        f"{each:.0f} commands for each on each server"
    )
    assert each <= 50
