"""A crowd that wants one lock: it goes from hand to hand, and the servers are asked by one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex
from tests.contract.asking import NAME
from tests.support.processes import Figure, wait_until
from tests.support.soak import soaking
from tests.support.valkey_servers import Servers, running

CROWD = 100


def commands(servers: Servers) -> int:
    found = servers.command("INFO", "stats")
    return sum(int(stats["total_commands_processed"]) for stats in found)


@pytest.mark.parametrize(
    ("number", "crowd"), [(1, CROWD), (5, CROWD), *soaking((1, 500), (3, 500), (5, 500))]
)
def test_everybody_of_a_crowd_has_its_turn(
    tmp_path: Path, number: int, crowd: int, figure: Figure
) -> None:
    """On five servers they used to take votes from each other: most had nothing for minutes."""
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


def test_those_of_one_process_have_it_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    order = list[int]()

    def work(worker: int) -> None:
        with ClusterMutex(NAME, store=store, timeout=100, expected_runtime=60):
            order.append(worker)

    with running(tmp_path, 3) as servers, servers.store() as store:

        def are_waiting(number: int) -> bool:
            pubsub: Any = store._pubsub  # type: ignore[attr-defined]
            waiters = pubsub.waiters(NAME)
            return waiters is not None and len(waiters.queue) == number

        workers = [threading.Thread(target=work, args=(worker,)) for worker in range(10)]
        with ClusterMutex(NAME, store=store, expected_runtime=60):
            for number, worker in enumerate(workers, 1):
                worker.start()
                wait_until(partial(are_waiting, number), what="the next of the queue")
        for worker in workers:
            worker.join()
    assert order == list(range(10))
