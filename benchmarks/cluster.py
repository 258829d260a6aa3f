"""Section `cluster`: what a three-member etcd carries, and what each request costs its members."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.contenders import etcd_values
from benchmarks.servers import Servers, cpu_seconds, metrics
from benchmarks.workers import pool
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import wait_until

PROCESSES, THREADS = 2, 16
JOBS = [(contender, work) for work in ("cycle", "push") for contender in ("floor", "ours")]


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return the rates of cycles and pushes, and what one costs in CPU time and fsyncs."""
    rounds, seconds = (1, 0.3) if quick else (3, 2.0)
    found: dict[tuple[str, str], list[dict[str, float]]] = {job: [] for job in JOBS}
    with servers.cluster() as members:
        leader = wait_until(lambda: _leader(members), what="a leader")
        values = etcd_values(leader.endpoint)
        with pool(PROCESSES, leader.endpoint, values) as workers:
            for _ in range(rounds):
                for contender, work in JOBS:
                    before = _spent(members, leader)
                    rate = workers.rate(contender, work, PROCESSES, THREADS, seconds)
                    spent = {
                        name: after - before[name]
                        for name, after in _spent(members, leader).items()
                    }
                    sync = spent.pop("sync") / spent["syncs"]
                    costs = {name: cost / (rate * seconds) for name, cost in spent.items()}
                    found[contender, work].append({"rate": rate, **costs, "sync": sync})
    rows = [
        {"contender": contender, "work": work}
        | {name: median(costs[name] for costs in every) for name in every[0]}
        for (contender, work), every in found.items()
    ]
    return {"members": len(members), "processes": PROCESSES, "threads": THREADS, "rows": rows}


def _spent(members: list[Etcd], leader: Etcd) -> dict[str, float]:
    """Return what the members have spent so far: CPU seconds, and syncs of the log to disk."""
    spent = {member.port: cpu_seconds(member.process.pid) for member in members if member.process}
    leading, prefix = spent.pop(leader.port), "etcd_disk_wal_fsync_duration_seconds"
    return {
        "leader_cpu": leading,
        "follower_cpu": sum(spent.values()) / len(spent),
        "syncs": _metric(leader, f"{prefix}_count"),
        "sync": _metric(leader, f"{prefix}_sum"),
    }


def _metric(member: Etcd, name: str) -> float:
    """Return a metric that has no labels."""
    return metrics(member.endpoint)[name, frozenset()]


def _leader(members: list[Etcd]) -> Etcd | None:
    leading = (member for member in members if _metric(member, "etcd_server_is_leader"))
    return next(leading, None)
