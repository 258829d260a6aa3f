"""Beside the peers: the same work and the same faults for all, `python -m benchmarks.peers`.

Four processes want one lock, count under it in the register (`tests/breaking/register.py`), and
release it. Meanwhile holders are killed, holders are frozen for longer than their lock's time, and
the servers are killed and started again. No process checks its lock before it writes: only the
token can prevent a lost update. In the end all are killed, and after three times the lock's time
the keys that are left are counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import Missing, Servers, module
from lockclient import ClusterMutex, Settings, open_store
from tests.breaking.register import Register, count
from tests.support.bucket.server import BucketServer
from tests.support.etcd_binary import etcdctl_of
from tests.support.locks import has

TTL_S = 5
"""Seconds without a heartbeat after which each of them gives the lock to another client."""
FROZEN_S = 12.0
AFTER_S = 8.0
"""Seconds after a fault, until the next one."""
WORKERS = 4
WANTED_S = 20.0
PAUSE_S = 0.05
"""Seconds from reading to writing."""
LOCK = "x"

Section = Callable[[], AbstractContextManager[int]]
"""A time with the lock, and its token; 0: there is none."""

# ---------------------------------------------------------------- as programs use them


def _ours(url: str) -> Section:
    store = open_store(Settings.load(url))

    @contextmanager
    def section() -> Iterator[int]:
        mutex = ClusterMutex(
            LOCK, store=store, expected_runtime=2, auto_unlock_after=TTL_S, timeout=WANTED_S
        )
        with mutex as held:
            yield held.fencing_token if store.can.fencing else 0

    return section


def _etcdctl(endpoint: str) -> Section:
    @contextmanager
    def section() -> Iterator[int]:
        fifo = Path(tempfile.mkdtemp()) / "end"
        os.mkfifo(fifo)
        inside = f"echo $ETCD_LOCK_REV; read end < {fifo}"
        words = ["etcdctl", "--endpoints", endpoint, "lock", "--ttl", str(TTL_S), LOCK]
        process = subprocess.Popen(
            [*words, "--", "sh", "-c", inside],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
            fifo.write_text("\n")
            process.wait(WANTED_S)
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(fifo.parent)

    return section


def _kazoo(endpoint: str) -> Section:
    client = module("kazoo.client").KazooClient(hosts=endpoint, timeout=TTL_S)
    client.start(timeout=WANTED_S)

    @contextmanager
    def section() -> Iterator[int]:
        lock = client.Lock(f"/{LOCK}", "worker")
        lock.acquire(timeout=WANTED_S)
        try:
            yield int(lock.node[-10:])  # its sequence number
        finally:
            lock.release()

    return section


def _redis(ports: str) -> Section:
    client = module("redis").Redis(port=int(ports), socket_timeout=3)

    @contextmanager
    def section() -> Iterator[int]:
        with client.lock(LOCK, timeout=TTL_S, blocking_timeout=WANTED_S):
            yield 0

    return section


def _redlock(ports: str) -> Section:
    redis, pottery = module("redis"), module("pottery")
    masters = {redis.Redis(port=int(port), socket_timeout=1) for port in ports.split(",")}

    @contextmanager
    def section() -> Iterator[int]:
        lock = pottery.Redlock(key=LOCK, masters=masters, auto_release_time=TTL_S)
        if not lock.acquire(timeout=WANTED_S):
            return
        try:
            yield 0
        finally:
            lock.release()

    return section


SECTIONS: dict[str, Callable[[str], Section]] = {
    "ours": _ours,
    "etcdctl": _etcdctl,
    "kazoo": _kazoo,
    "redis": _redis,
    "redlock": _redlock,
}


def work(kind: str, where: str, register: str, name: str) -> None:
    """Want the lock, count under it, again and again: a worker's whole life."""
    section = SECTIONS[kind](where)
    while True:
        with suppress(Exception), section() as token:
            count(register, name, LOCK, token, PAUSE_S)
        time.sleep(0.01)


# ---------------------------------------------------------------- the servers


@dataclass(frozen=True)
class System:
    """A system that is compared: its kind, its address, its servers, and the count of keys left."""

    kind: str
    where: str
    servers: Sequence[Any]
    left: Callable[[], int]


@contextmanager
def _our_system(url: str, servers: Sequence[Any]) -> Iterator[System]:
    store = open_store(Settings.load(url))
    words = ["-m", "unlocker", "--url", url, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    try:
        yield System("ours", url, servers, lambda: int(has(store, LOCK) is not None))
    finally:
        process.kill()
        process.wait()
        store.close()


@contextmanager
def _etcd(servers: Servers) -> Iterator[System]:
    with servers.etcd() as server, _our_system(server.url, [server]) as system:
        yield system


@contextmanager
def _valkey(servers: Servers) -> Iterator[System]:
    with ExitStack() as stack:
        some = stack.enter_context(servers.redis(3, fsync=True))
        stack.enter_context(some.store())
        yield stack.enter_context(_our_system(some.place().url(), some.all))


@contextmanager
def _bucket(_servers: Servers) -> Iterator[System]:
    with BucketServer() as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        with _our_system(f"gs://{server.bucket.name}/peers", []) as system:
            yield system


@contextmanager
def _etcd_lock(servers: Servers) -> Iterator[System]:
    with servers.etcd() as server:
        keys = ("get", "--prefix", "--keys-only", f"{LOCK}/")
        left = lambda: len(etcdctl_of(server)(*keys).split())  # noqa: E731 - one line
        yield System("etcdctl", server.endpoint, [server], left)


@contextmanager
def _zookeeper(servers: Servers) -> Iterator[System]:
    with servers.zookeeper() as server:
        client = module("kazoo.client").KazooClient(hosts=server.endpoint)

        def left() -> int:
            client.start(timeout=WANTED_S)
            return len(client.get_children(f"/{LOCK}"))

        try:
            yield System("kazoo", server.endpoint, [server], left)
        finally:
            client.stop()
            client.close()


@contextmanager
def _redis_servers(servers: Servers, kind: str, number: int) -> Iterator[System]:
    module("redis" if number == 1 else "pottery")
    with servers.redis(number, fsync=True) as some:
        ports = ",".join(str(server.port) for server in some.all)
        yield System(kind, ports, some.all, lambda: sum(some.command("DBSIZE")))


SYSTEMS: dict[str, Callable[[Servers], AbstractContextManager[System]]] = {
    "ClusterMutex, etcd": _etcd,
    "ClusterMutex, three Redis": _valkey,
    "ClusterMutex, bucket": _bucket,
    "`etcdctl lock`": _etcd_lock,
    "kazoo, ZooKeeper": _zookeeper,
    "redis-py Lock, one Redis": lambda servers: _redis_servers(servers, "redis", 1),
    "pottery Redlock, five Redis": lambda servers: _redis_servers(servers, "redlock", 5),
}


class Comparison:
    """One system's run."""

    def __init__(self, system: System, register: Register) -> None:
        self._system, self._register = system, register
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._number = 0
        for _ in range(WORKERS):
            self._start()

    def _start(self) -> None:
        self._number += 1
        name = f"worker{self._number}"
        words = [self._system.kind, self._system.where, self._register.endpoint, name]
        self._workers[name] = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", "--work", *words],
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # with whatever it starts: a machine, so to say
        )

    def _holder(self) -> str:
        """Wait until a client has read, and not written yet; return it."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if (name := self._register.reading) in self._workers:
                return name
            time.sleep(0.001)
        raise TimeoutError("nobody has had the lock for a minute")

    def kill_holder(self) -> None:
        """Kill the holder; another process begins."""
        name = self._holder()
        _signal(process := self._workers.pop(name), signal.SIGKILL)
        process.wait()
        self._start()

    def freeze_holder(self) -> None:
        """Freeze the holder, for longer than the lock's time."""
        process = self._workers[self._holder()]
        _signal(process, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        _signal(process, signal.SIGCONT)

    def restart_servers(self) -> None:
        """Kill the servers, and start them again, one after the other."""
        for server in self._system.servers:
            server.process.kill()
            server.process.wait()
            server.start()

    def end(self) -> None:
        """Kill all workers, where they stand."""
        for process in self._workers.values():
            _signal(process, signal.SIGKILL)
            process.wait()

    def run(self, rounds: int) -> str:
        """Run it; return its row of the table."""
        time.sleep(AFTER_S)
        register, begun = self._register, time.monotonic()
        for _ in range(rounds):
            for fault in (self.kill_holder, self.freeze_holder, self.restart_servers):
                fault()
                time.sleep(AFTER_S)
        ended = time.monotonic()
        self.end()
        time.sleep(3 * TTL_S)
        fenced = "there is none"
        if ("fenced", LOCK) in register.counters:
            lost, refused = register.sum("fenced", "lost"), register.sum("fenced", "refused")
            fenced = f"{lost} ({refused} refused)"
        return (
            f"{register.sum('plain', 'writes')} | {register.sum('plain', 'lost')} | {fenced} | "
            f"{register.longest_silence(begun, ended):.1f} s | {self._system.left()}"
        )


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of the three faults")
    parser.add_argument("--only", choices=SYSTEMS, action="append")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    said = parser.parse_args(words)
    if said.work:
        work(*said.work)
    print("| | updates | lost | lost with a token | longest silence | left behind |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in said.only or SYSTEMS:
        with ExitStack() as stack:
            servers = Servers(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            register = stack.enter_context(Register())
            try:
                system = stack.enter_context(SYSTEMS[name](servers))
            except Missing as reason:
                print(f"| {name} | {reason} |", flush=True)
                continue
            comparison = Comparison(system, register)
            stack.callback(comparison.end)  # also where it fails
            print(f"| {name} | {comparison.run(said.rounds)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
