"""Sections `throughput` and `cluster`: how often a second processes lock and unlock, or push, and
what that costs a three-member etcd."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

from benchmarks.children import children
from benchmarks.contenders import cycle_of, etcd_values, our_store
from benchmarks.floor import Floor, Wire
from benchmarks.samples import spread
from benchmarks.servers import Servers, cpu_seconds, metrics
from lockclient import ClusterMutex
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import wait_until

LAYOUTS = ((1, 1), (1, 4), (1, 16), (1, 64), (2, 1), (4, 1))
"""(processes, threads in each); every thread has a lock of its own."""
PROCESSES, THREADS = 2, 16
"""Clients of the cluster."""
JOBS = [(contender, work) for work in ("cycle", "push") for contender in ("floor", "ours")]


def throughput(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each layout: the rates of both, cycles a second."""
    rounds, seconds = (1, 0.2) if quick else (8, 0.7)
    layouts = ((1, 2), (2, 1)) if quick else LAYOUTS
    rates: dict[tuple[tuple[int, int], str], list[float]] = {
        (layout, contender): [] for layout in layouts for contender in ("floor", "ours")
    }
    with servers.etcd() as server:
        values, most = etcd_values(server.endpoint), max(layouts)[0]
        with children(_run, [(index, server.endpoint, values) for index in range(most)]) as pipes:
            for number in range(rounds + 1):
                for ((processes, threads), contender), found in rates.items():
                    rate = _rate(pipes[:processes], contender, "cycle", threads, seconds)
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


def cluster(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return the rates of cycles and pushes, and what one costs in CPU time and fsyncs."""
    rounds, seconds = (1, 0.3) if quick else (3, 2.0)
    found: dict[tuple[str, str], list[dict[str, float]]] = {job: [] for job in JOBS}
    with servers.cluster() as members:
        leader = wait_until(lambda: _leader(members), what="a leader")
        values = etcd_values(leader.endpoint)
        clients = [(index, leader.endpoint, values) for index in range(PROCESSES)]
        with children(_run, clients) as pipes:
            for contender, work in JOBS * rounds:
                before = _spent(members, leader)
                rate = _rate(pipes, contender, work, THREADS, seconds)
                after = _spent(members, leader)
                spent = {name: after[name] - before[name] for name in after}
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
        "syncs": metrics(leader.endpoint)[f"{prefix}_count"],
        "sync": metrics(leader.endpoint)[f"{prefix}_sum"],
    }


def _leader(members: list[Etcd]) -> Etcd | None:
    is_leader = "etcd_server_is_leader"
    return next((member for member in members if metrics(member.endpoint)[is_leader]), None)


# ---------------------------------------------------------------- the processes


class _Job(NamedTuple):
    """The work of a process between two times on the monotonic clock, in seconds."""

    contender: str
    work: str
    threads: int
    begin: float
    end: float


def _rate(pipes: list[Any], contender: str, work: str, threads: int, seconds: float) -> float:
    """Return how many times a second so many threads in each process did it.

    The processes live for the whole section: nothing is started while it counts.
    """
    begin = time.monotonic() + 0.15
    for pipe in pipes:
        pipe.send(_Job(contender, work, threads, begin, begin + seconds))
    done: int = sum(pipe.recv() for pipe in pipes)
    return done / seconds


def _run(index: int, endpoint: str, values: dict[str, str], pipe: Connection) -> None:
    """Do jobs until the parent ends."""
    store, wire_to = our_store(endpoint), Wire(endpoint)

    def lock(contender: str, thread: int) -> ClusterMutex | Floor:
        name = f"{index}-{thread}"
        ours = contender == "ours"
        return ClusterMutex(name, store=store) if ours else Floor(wire_to, name, values)

    for contender in ("ours", "floor"):  # connects, and starts what starts at first need
        cycle_of(lock(contender, 0))()
    pipe.send("ready")
    while True:
        job: _Job = pipe.recv()
        with ThreadPoolExecutor(job.threads) as threads:
            locks = [lock(job.contender, thread) for thread in range(job.threads)]
            pipe.send(sum(threads.map(_work, [job] * job.threads, locks)))


def _work(job: _Job, lock: ClusterMutex | Floor) -> int:
    """Return how often the job was done in its time."""
    count = 0
    call = cycle_of(lock) if job.work == "cycle" else _push_of(lock)
    time.sleep(max(0.0, job.begin - time.monotonic()))
    while time.monotonic() < job.end:
        call()
        count += 1
    if job.work == "push":
        lock.release()
    return count


def _push_of(lock: ClusterMutex | Floor) -> Callable[[], None]:
    """Take the lock, and return what pushes its stamps with one request."""
    if not lock.acquire():
        raise AssertionError(f"{lock!r} could not be had, though nobody has it")
    return lock.push if isinstance(lock, Floor) else lambda: lock.alive(force=True)
