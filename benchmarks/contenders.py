"""Who is measured: ClusterMutex, the floor and the peers, each as `acquire` and `release`.

Every contender is opened once, with a client and a lock object of its own, as a program that runs
for long would have them; what is timed is `acquire()` and `release()` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import packages_distributions, version
from typing import Protocol

from benchmarks.floor import Floor, Wire
from benchmarks.missing import module
from benchmarks.samples import in_turns
from benchmarks.servers import Servers
from lockclient import ClusterMutex, Settings, open_store

TTL = 60
"""Seconds after which the peers' locks expire: long enough that none does while it is measured."""

PACKAGES = ("grpcio", "protobuf", "python3-etcd3", "redis", "kazoo", "pottery", "matplotlib")


class Lock(Protocol):
    """What is timed."""

    def acquire(self) -> object:
        """Take the lock; it is free."""

    def release(self) -> object:
        """Give it back."""


@dataclass(frozen=True)
class Where:
    """Where contenders live: ours and the floor on the etcd at `endpoint`, others on their own."""

    servers: Servers
    endpoint: str


Opener = Callable[[Where], AbstractContextManager[Lock]]


def cycle_of(lock: Lock) -> Callable[[], None]:
    """Return what takes a lock and gives it back, and fails if it could not be had."""
    acquire, release = lock.acquire, lock.release

    def cycle() -> None:
        if acquire() is False:
            raise AssertionError(f"{lock!r} could not be had, though nobody has it")
        release()

    return cycle


@contextmanager
def ours(where: Where, *, backtrace: bool = True) -> Iterator[Lock]:
    """ClusterMutex, everything as it is by default."""
    store = open_store(Settings(endpoints=(where.endpoint,), root="/ours"))
    yield ClusterMutex(f"bench-{backtrace}", store=store, capture_backtrace=backtrace)
    store.close()


def holder_values(endpoint: str, name: str = "sample") -> dict[str, str]:
    """Return what a real holder writes into the store, as the floor is to write it, too."""
    store = open_store(Settings(endpoints=(endpoint,), root="/sample"))
    mutex = ClusterMutex(name, store=store)
    values: dict[str, str] = {}

    def take_a_sample() -> None:
        with mutex:
            values.update(mutex.record.subkeys())

    # By the same way as the calls that are timed, so that the backtrace is of the same length.
    in_turns({"sample": take_a_sample}, 1, 1)
    store.close()
    return values


@contextmanager
def floor(where: Where, *, only_uuid: bool = False) -> Iterator[Lock]:
    """The same two transactions through bare stubs; with `only_uuid` a single put."""
    values = holder_values(where.endpoint)
    if only_uuid:
        values = {"uuid": values["uuid"]}
    wire_to = Wire(where.endpoint)
    yield Floor(wire_to, f"bench-{only_uuid}", values)
    wire_to.close()


@contextmanager
def etcd3(where: Where) -> Iterator[Lock]:
    """Lock of the package python3-etcd3, on an etcd of its own.

    It leaves a lease behind for each acquisition: when they expire they are not to disturb others.
    """
    package = module("etcd3")
    with where.servers.etcd() as server:
        client = package.client(host="127.0.0.1", port=server.port)
        lock: Lock = client.lock("bench", ttl=TTL)
        yield lock
        client.close()


@contextmanager
def redis_lock(where: Where, *, fsync: bool) -> Iterator[Lock]:
    """redis-py's Lock; with `fsync` each write is on the disk before it is answered, as in etcd."""
    package = module("redis")
    with where.servers.redis(fsync=fsync) as port:
        client = package.Redis(host="127.0.0.1", port=port)
        lock: Lock = client.lock("bench", timeout=TTL)
        yield lock
        client.close()


@contextmanager
def kazoo(where: Where) -> Iterator[Lock]:
    """kazoo's Lock on ZooKeeper, which writes to disk as etcd does."""
    package = module("kazoo.client")
    with where.servers.zookeeper() as port:
        client = package.KazooClient(hosts=f"127.0.0.1:{port}")
        try:
            client.start(timeout=30)
            lock: Lock = client.Lock("/bench", "benchmark")
            yield lock
        finally:  # its threads keep a program from ending
            client.stop()
            client.close()


@contextmanager
def redlock(where: Where) -> Iterator[Lock]:
    """pottery's Redlock on five Redis servers, in memory."""
    pottery, redis = module("pottery"), module("redis")
    with ExitStack() as stack:
        ports = [stack.enter_context(where.servers.redis()) for _ in range(5)]
        masters = {redis.Redis(host="127.0.0.1", port=port) for port in ports}
        lock: Lock = pottery.Redlock(key="bench", masters=masters, auto_release_time=TTL)
        yield lock
        for master in masters:
            master.close()


PEERS: dict[str, Opener] = {
    "ClusterMutex": ours,
    "bare floor": floor,
    "etcd3 Lock": etcd3,
    "redis-py Lock, in memory": partial(redis_lock, fsync=False),
    "redis-py Lock, appendfsync always": partial(redis_lock, fsync=True),
    "kazoo Lock, ZooKeeper": kazoo,
    "pottery Redlock, five Redis": redlock,
}
"""All contenders by the names that the tables use."""


def versions() -> dict[str, str]:
    """Return the versions of the packages that are measured or measure."""
    installed = packages_distributions().values()
    there = {distribution for distributions in installed for distribution in distributions}
    return {package: version(package) for package in PACKAGES if package in there}
