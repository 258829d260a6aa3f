"""The contenders: ClusterMutex, the floor and the peers, each as `acquire` and `release`.

Every contender is opened once, with a client and a lock object of its own, as a program that runs
for long would have them; what is timed is `acquire()` and `release()` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from importlib.metadata import packages_distributions, version
from typing import Any

from benchmarks.floor import Floor, Wire
from benchmarks.samples import in_turns, timed
from benchmarks.servers import Missing, Servers, module
from lockclient import ClusterMutex, Settings, open_store
from lockclient.stores.service_store import ServiceStore

TTL = 60
"""Seconds after which the peers' locks expire: long enough that none does while it is measured."""

PACKAGES = {"grpcio", "protobuf", "python3-etcd3", "redis", "kazoo", "pottery", "matplotlib"}
OURS, FLOOR = "ClusterMutex", "bare floor"
ETCD3, KAZOO = "etcd3 Lock", "kazoo Lock, ZooKeeper"
REDIS_FSYNC = "redis-py Lock, appendfsync always"

Lock = Any
"""What is timed: anything with `acquire`, which takes a lock that is free, and `release`."""
Maker = Callable[[str], Lock]
"""Makes a contender's lock of a name; all locks of one maker share a client."""
Opener = Callable[[Servers, str], AbstractContextManager[Lock]]
"""Opens a contender: ours and the floor on the etcd at an endpoint, others on servers of theirs."""


def cycle_of(lock: Lock) -> Callable[[], None]:
    """Return what takes a lock and gives it back, and fails if it could not be had."""
    acquire, release = lock.acquire, lock.release

    def cycle() -> None:
        if acquire() is False:
            raise AssertionError(f"{lock!r} could not be had, though nobody has it")
        release()

    return cycle


def warm_cycles(locks: Mapping[str, Lock], times: int) -> dict[str, Callable[[], None]]:
    """Return the cycle of each lock, having done it so often: connections, Java's compiler."""
    cycles = {name: cycle_of(lock) for name, lock in locks.items()}
    for cycle in cycles.values():
        timed(cycle, times)
    return cycles


def opened(
    stack: ExitStack, servers: Servers, endpoint: str, openers: Mapping[str, Opener]
) -> dict[str, Lock]:
    """Open the contenders that are there, until the stack is left; note which are missing."""
    locks = {}
    for name, opener in openers.items():
        try:
            locks[name] = stack.enter_context(opener(servers, endpoint))
        except Missing as reason:
            servers.missing[name] = str(reason)
    return locks


def our_store(endpoint: str, root: str = "/ours") -> ServiceStore:
    """Open a store on an etcd."""
    return open_store(Settings(endpoints=(endpoint,), root=root))


@contextmanager
def ours(_servers: Servers, endpoint: str, *, backtrace: bool = True) -> Iterator[Lock]:
    """ClusterMutex, everything as it is by default."""
    with closing(our_store(endpoint)) as store:
        yield ClusterMutex(f"bench-{backtrace}", store=store, capture_backtrace=backtrace)


def holder_values(store: ServiceStore) -> dict[str, str]:
    """Return what a real holder writes into a store, as the floor is to write it, too."""
    mutex, values = ClusterMutex("sample", store=store), dict[str, str]()

    def take_a_sample() -> None:
        with mutex:
            values.update(mutex.record.subkeys())

    # By the same way as the calls that are timed, so that the backtrace is of the same length.
    in_turns({"sample": take_a_sample}, 1, 1)
    return values


def etcd_values(endpoint: str) -> dict[str, str]:
    """Return what a real holder writes into an etcd."""
    with closing(our_store(endpoint)) as store:
        return holder_values(store)


@contextmanager
def floor(_servers: Servers, endpoint: str, *, only_uuid: bool = False) -> Iterator[Lock]:
    """The same two transactions through bare stubs; with `only_uuid` a single put."""
    values = etcd_values(endpoint)
    with closing(Wire(endpoint)) as wire_to:
        written = {"uuid": values["uuid"]} if only_uuid else values
        yield Floor(wire_to, f"bench-{only_uuid}", written)


@contextmanager
def etcd3(servers: Servers, _endpoint: str) -> Iterator[Lock]:
    """Lock of the package python3-etcd3, on an etcd of its own.

    It leaves a lease behind for each acquisition: when they expire they are not to disturb others.
    """
    module("etcd3")
    with servers.etcd() as server, etcd3_on(server.port) as make:
        yield make("bench")


@contextmanager
def etcd3_on(port: int) -> Iterator[Maker]:
    """Locks of python3-etcd3 on the etcd at this port."""
    with closing(module("etcd3").client("127.0.0.1", port)) as client:
        yield lambda name: client.lock(name, ttl=TTL)


@contextmanager
def redis_lock(servers: Servers, _endpoint: str, *, fsync: bool) -> Iterator[Lock]:
    """redis-py's Lock; with `fsync` each write is on the disk before it is answered, as in etcd."""
    module("redis")
    with servers.redis(fsync=fsync) as running, redis_on(running.all[0].port) as make:
        yield make("bench")


@contextmanager
def redis_on(port: int) -> Iterator[Maker]:
    """Locks of redis-py on the Redis at this port."""
    with module("redis").Redis(port=port) as client:
        yield lambda name: client.lock(name, timeout=TTL)


@contextmanager
def kazoo(servers: Servers, _endpoint: str) -> Iterator[Lock]:
    """kazoo's Lock on ZooKeeper, which writes to disk as etcd does."""
    module("kazoo.client")
    with servers.zookeeper() as server, kazoo_on(server.endpoint) as make:
        yield make("bench")


@contextmanager
def kazoo_on(endpoint: str) -> Iterator[Maker]:
    """Locks of kazoo on the ZooKeeper at this endpoint."""
    client = module("kazoo.client").KazooClient(hosts=endpoint)
    try:
        client.start(timeout=30)
        yield lambda name: client.Lock(f"/{name}", "benchmark")
    finally:  # its threads keep a program from ending
        client.stop()
        client.close()


@contextmanager
def redlock(servers: Servers, _endpoint: str) -> Iterator[Lock]:
    """pottery's Redlock on five Redis servers, in memory."""
    module("pottery")
    with servers.redis(5) as running, redlock_on(server.port for server in running.all) as lock:
        yield lock


@contextmanager
def redlock_on(ports: Iterable[int]) -> Iterator[Lock]:
    """pottery's Redlock on these servers."""
    pottery, redis = module("pottery"), module("redis")
    masters: set[Any] = {redis.Redis(port=port) for port in ports}
    yield pottery.Redlock(key="bench", masters=masters, auto_release_time=TTL)
    for master in masters:
        master.close()


PEERS: dict[str, Opener] = {
    OURS: ours,
    FLOOR: floor,
    ETCD3: etcd3,
    "redis-py Lock, in memory": partial(redis_lock, fsync=False),
    REDIS_FSYNC: partial(redis_lock, fsync=True),
    KAZOO: kazoo,
    "pottery Redlock, five Redis": redlock,
}
"""All contenders by the names that the tables use."""


def versions() -> dict[str, str]:
    """Return the versions of the packages that are measured or measure."""
    there = {name for names in packages_distributions().values() for name in names}
    return {package: version(package) for package in sorted(PACKAGES & there)}
