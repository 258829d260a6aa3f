"""Section `hot`: how many times a second one lock is taken by clients that compete for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.children import children
from benchmarks.contenders import (
    ETCD3,
    KAZOO,
    REDIS_FSYNC,
    Lock,
    Maker,
    etcd3_on,
    kazoo_on,
    our_store,
    redis_on,
)
from benchmarks.samples import spread
from benchmarks.servers import Missing, Servers, metrics, module
from lockclient import ClusterMutex

CLIENTS = (1, 2, 3, 5, 10, 100)
"""Clients of one lock: a process each, but 100 are ten processes of ten threads."""
MOST_PROCESSES = 10
GO = "Go concurrency.Mutex"
GO_MODULE = "go.etcd.io/etcd/client/v3@v3.7.3"
SOURCE = Path(__file__).with_name("hot_mutex.go")


class Case(NamedTuple):
    """One contender with so many clients; each holds the lock for `hold` seconds."""

    contender: str
    clients: int
    hold: float = 0.0


class _Job(NamedTuple):
    """The work of one process between two moments of the monotonic clock, in seconds."""

    threads: int
    hold: float
    begin: float
    end: float


def hot(servers: Servers, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for each case: locks a second, and the requests of ours by etcd's counter."""
    rounds, seconds = (1, 0.5) if quick else (3, 2.0)
    sizes = (1, 2) if quick else CLIENTS
    with ExitStack() as stack:
        contenders = _started(stack, servers, max(sizes))
        todo = [Case(name, size) for size in sizes for name in contenders]
        todo += [Case(name, 2, 0.005) for name in contenders if name != GO]
        found: dict[Case, list[float]] = {case: [] for case in todo}
        requests: dict[Case, list[float]] = {case: [] for case in todo}
        for _ in range(rounds):
            for case in todo:
                run, endpoint = contenders[case.contender]
                before = _requests(endpoint)
                in_time, locks = run(case, seconds)
                found[case].append(in_time / seconds)
                requests[case].append((_requests(endpoint) - before) / max(locks, 1))
    return [_row(case, found, requests) for case in todo]


def _row(
    case: Case, found: dict[Case, list[float]], requests: dict[Case, list[float]]
) -> dict[str, Any]:
    ours = found[case._replace(contender="ours")]
    rate = median(found[case])
    return {
        **case._asdict(),
        "rate": rate,
        "requests": median(requests[case]),
        "ours_over_this": spread(median(ours) / max(rate, 0.1), ours, found[case]),
    }


Run = Callable[[Case, float], tuple[int, int]]
"""Returns how often the lock was taken within that time, and how often in all: a queue that stood
at its end is served after it, with requests that etcd counts."""
Address = int | str
"""The port of a contender's server, or its endpoint."""
OpenAt = Callable[[Any], AbstractContextManager[Maker]]
"""Connects to a contender's server at its `Address`."""


def _started(stack: ExitStack, servers: Servers, most: int) -> dict[str, tuple[Run, str]]:
    """Start servers and processes; return how each contender runs, and the etcd that it uses."""
    etcd = stack.enter_context(servers.etcd())
    found: dict[str, tuple[Run, str]] = {}

    def add(name: str, opener: OpenAt, address: Address, endpoint: str = "") -> None:
        number = min(most, MOST_PROCESSES)
        pipes = stack.enter_context(children(_run, [(opener, address)] * number))
        found[name] = (lambda case, seconds: _locks(pipes, case, seconds)), endpoint

    add("ours", _ours, etcd.endpoint, etcd.endpoint)
    try:
        program = _built(servers)
        found[GO] = (
            lambda case, seconds: _go_locks(program, etcd.endpoint, case, seconds),
            etcd.endpoint,
        )
    except Missing as reason:
        servers.missing[GO] = str(reason)
    peers: dict[str, tuple[OpenAt, Callable[[], Address]]] = {
        ETCD3: (etcd3_on, lambda: _etcd3_port(etcd.port)),
        KAZOO: (kazoo_on, lambda: _zookeeper(stack, servers)),
        REDIS_FSYNC: (redis_on, lambda: _redis_port(stack, servers)),
    }
    for name, (opener, address) in peers.items():
        try:
            add(name, opener, address())
        except Missing as reason:
            servers.missing[name] = str(reason)
    return found


def _etcd3_port(port: int) -> int:
    module("etcd3")
    return port


def _zookeeper(stack: ExitStack, servers: Servers) -> str:
    module("kazoo.client")
    return stack.enter_context(servers.zookeeper()).endpoint


def _redis_port(stack: ExitStack, servers: Servers) -> int:
    module("redis")
    return stack.enter_context(servers.redis(fsync=True)).all[0].port


def _requests(endpoint: str) -> float:
    if not endpoint:
        return 0.0
    unary = ('grpc_method="Txn"', 'grpc_method="Range"')
    started = "grpc_server_started_total"
    return sum(
        value
        for name, value in metrics(endpoint).items()
        if name.startswith(started) and any(method in name for method in unary)
    )


# ---------------------------------------------------------------- the processes


def _locks(pipes: list[Any], case: Case, seconds: float) -> tuple[int, int]:
    """Have all processes take the lock again and again; see `Run`."""
    processes = min(case.clients, MOST_PROCESSES)
    begin = time.monotonic() + 0.3
    job = _Job(case.clients // processes, case.hold, begin, begin + seconds)
    for pipe in pipes[:processes]:
        pipe.send(job)
    return _summed(pipe.recv() for pipe in pipes[:processes])


def _summed(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    in_time, locks = zip(*counts, strict=True)
    return sum(in_time), sum(locks)


def _run(opener: OpenAt, address: Address, pipe: Connection) -> None:
    """Do jobs until the parent ends."""
    with opener(address) as make:
        lock = make("warm-up")
        lock.acquire()
        lock.release()
        pipe.send("ready")
        while True:
            job: _Job = pipe.recv()
            with ThreadPoolExecutor(job.threads) as threads:
                locks = [make("hot") for _ in range(job.threads)]
                pipe.send(_summed(threads.map(_work, [job] * job.threads, locks)))


def _work(job: _Job, lock: Lock) -> tuple[int, int]:
    in_time = locks = 0
    time.sleep(max(0.0, job.begin - time.monotonic()))
    while time.monotonic() < job.end:
        lock.acquire()
        in_time += time.monotonic() < job.end
        locks += 1
        if job.hold:
            time.sleep(job.hold)
        lock.release()
    return in_time, locks


@contextmanager
def _ours(endpoint: str) -> Iterator[Maker]:
    with closing(our_store(endpoint)) as store:
        yield lambda name: ClusterMutex(name, store=store)


# ---------------------------------------------------------------- etcd's own Mutex, in Go


def _built(servers: Servers) -> str:
    """Build the program of `hot_mutex.go` and return its path.

    Raises:
        Missing: there is no Go, or no module proxy.
    """
    if (go := shutil.which("go")) is None:
        raise Missing("go is not installed")
    folder = servers.new_folder("go")
    shutil.copy(SOURCE, folder / "main.go")
    for words in (["mod", "init", "hot"], ["get", GO_MODULE], ["build", "-o", "hot", "."]):
        done = subprocess.run(
            [go, *words], cwd=folder, capture_output=True, text=True, check=False, env=os.environ
        )
        if done.returncode:
            raise Missing(f"go {words[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return str(folder / "hot")


def _go_locks(program: str, endpoint: str, case: Case, seconds: float) -> tuple[int, int]:
    words = [program, endpoint, str(case.clients), str(seconds)]
    done = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return done, done
