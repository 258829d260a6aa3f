"""Section `cluster`: what a three-member etcd carries, and what each request costs its members."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import holder_values
from benchmarks.servers import Servers, cpu_seconds, metrics, wait_until
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
        leader = _leader(members)
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
    spent = {member.port: cpu_seconds(member.process.pid) for member in members if member.process}
    prefix = "etcd_disk_wal_fsync_duration_seconds"
    return _Costs(
        leader=spent[leader.port],
        followers=sum(spent.values()) - spent[leader.port],
        syncs=_metric(leader, f"{prefix}_count"),
        sync_seconds=_metric(leader, f"{prefix}_sum"),
    )


def _metric(member: Etcd, name: str) -> float:
    """Return a metric that has no labels."""
    return metrics(member.endpoint)[name, frozenset()]


def _leader(members: list[Etcd]) -> Etcd:
    leaders: list[Etcd] = []

    def found() -> list[Etcd]:
        leaders[:] = [member for member in members if _metric(member, "etcd_server_is_leader")]
        return leaders

    wait_until(found, "a leader")
    return leaders[0]
