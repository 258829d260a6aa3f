"""Section `cluster`: what a three-member etcd carries, and what each request costs its members."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

from benchmarks.contenders import holder_values
from benchmarks.servers import Servers, cpu_seconds
from benchmarks.workers import Contender, Pool, Work, pool
from lockclient.cli.setup.etcd_server import Etcd

PROCESSES, THREADS = 2, 16
JOBS: tuple[tuple[Contender, Work], ...] = (
    ("floor", "cycle"),
    ("ours", "cycle"),
    ("floor", "push"),
    ("ours", "push"),
)


@dataclass(frozen=True)
class _Costs:
    """What the members have spent so far: CPU seconds, and syncs of the log to disk."""

    leader: float
    followers: float
    syncs: float
    sync_seconds: float


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return the rates of cycles and pushes, and what one costs in CPU time and fsyncs."""
    rounds, seconds = (1, 0.3) if quick else (3, 2.0)
    rates: dict[tuple[Contender, Work], list[float]] = {job: [] for job in JOBS}
    costs: dict[tuple[Contender, Work], list[dict[str, float]]] = {job: [] for job in JOBS}
    with servers.cluster() as members:
        leader = next(each for each in _forever(members) if _metrics(each)["etcd_server_is_leader"])
        values = holder_values(leader.endpoint)
        with pool(PROCESSES, leader.endpoint, values) as workers:
            for _ in range(rounds):
                for contender, work in JOBS:
                    rate, cost = _run(workers, members, leader, (contender, work), seconds)
                    rates[contender, work].append(rate)
                    costs[contender, work].append(cost)
    rows = [
        {
            "contender": contender,
            "work": work,
            "rate": statistics.median(rates[contender, work]),
            **{
                key: statistics.median([cost[key] for cost in costs[contender, work]])
                for key in ("leader_cpu", "follower_cpu", "syncs", "sync")
            },
        }
        for contender, work in JOBS
    ]
    return {"members": len(members), "processes": PROCESSES, "threads": THREADS, "rows": rows}


def _run(
    workers: Pool, members: list[Etcd], leader: Etcd, job: tuple[Contender, Work], seconds: float
) -> tuple[float, dict[str, float]]:
    before = _costs(members, leader)
    rate = workers.rate(*job, PROCESSES, THREADS, seconds)
    after = _costs(members, leader)
    done = rate * seconds
    syncs = after.syncs - before.syncs
    return rate, {
        "leader_cpu": (after.leader - before.leader) / done,
        "follower_cpu": (after.followers - before.followers) / done / (len(members) - 1),
        "syncs": syncs / done,
        "sync": (after.sync_seconds - before.sync_seconds) / syncs,
    }


def _costs(members: list[Etcd], leader: Etcd) -> _Costs:
    metrics = _metrics(leader)
    spent = {each.port: cpu_seconds(each.process.pid) for each in members if each.process}
    prefix = "etcd_disk_wal_fsync_duration_seconds"
    return _Costs(
        leader=spent[leader.port],
        followers=sum(spent.values()) - spent[leader.port],
        syncs=metrics[f"{prefix}_count"],
        sync_seconds=metrics[f"{prefix}_sum"],
    )


def _metrics(member: Etcd) -> dict[str, float]:
    """Return a member's metrics that have no labels."""
    with urlopen(f"http://{member.endpoint}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.split(" ", 1) for line in lines if not line.startswith("#") and "{" not in line)
    return {name: float(value) for name, value in pairs}


def _forever(members: list[Etcd]) -> Any:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        yield from members
        time.sleep(0.05)
    raise RuntimeError("the cluster has no leader after 30 s")
