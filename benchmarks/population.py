"""A store full of locks that nobody really holds, for the services and the table.

They are written by bare transactions, as many locks in each as etcd takes, with all that a real
holder writes. What makes locks of many holders heavy is kept: each has a uuid, a process and stamps
of its own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count, islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from benchmarks.floor import STAMPS, Wire, puts
from lockclient.stores.etcd.wire import messages_pb2 as wire

ROOT = "/floor"
"""The address of the floor's locks: the services see the locks of all programs."""
LASTING = 36_000.0
"""Seconds for which locks are well."""
HOSTS = 500
_BACKTRACE = 1500
"""Characters of each backtrace: some eight frames of a service."""
_THREADS = 4
_OPERATIONS = 128
"""etcd takes no more in a transaction."""


class Times(NamedTuple):
    """A lock's stamps, and the heartbeat that they were made at, Unix seconds."""

    alive_at: float
    alert_at: float
    auto_unlock_at: float

    @classmethod
    def of_now(cls, lasting: float = LASTING) -> Times:
        """Return those of a push that is made now."""
        now = time.time()
        return cls(now, now + lasting / 2, now + lasting)

    def values(self) -> dict[str, str]:
        """Return what a push writes, subkey to value."""
        return {key: f"{getattr(self, key):.3f}" for key in STAMPS}


def names_of(number: int) -> list[str]:
    """Return so many names."""
    return [f"bench-{lock:06d}" for lock in range(number)]


def fill(endpoint: str, values: dict[str, str], locks: Iterable[tuple[str, Times]]) -> None:
    """Write these locks, as fast as etcd takes them; their uuids are `uuid_of`."""
    size, about, left = _OPERATIONS // len(values), json.loads(values["about"]), iter(locks)

    def write(few: list[tuple[str, Times]]) -> None:
        written = [
            put for name, times in few for put in puts(_folder(name), _subkeys(name, about, times))
        ]
        wire_to.txn(wire.Txn(success=written), timeout=60)

    with closing(Wire(endpoint)) as wire_to, ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, iter(lambda: list(islice(left, size)), [])))


def uuid_of(name: str) -> str:
    """Return the uuid of a lock's holder."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def push(wire_to: Wire, name: str) -> None:
    """Push a lock's stamps forward, as `alive()` does."""
    folder, own = _folder(name), uuid_of(name).encode()
    mine = wire.Compare(target=wire.Compare.VALUE, key=folder + b"uuid", value=own)
    transaction = wire.Txn(compare=[mine], success=puts(folder, Times.of_now().values()))
    if not wire_to.txn(transaction, timeout=10).succeeded:
        raise AssertionError(f"the lock {name!r} is gone, though it was not due")


def pushes(endpoint: str, names: list[str], rate: float, pipe: Connection) -> None:
    """Push `rate` of these locks a second, at random; runs in a child of the benchmark.

    Told how many seconds, answers with how many pushes there were.
    """
    wire_to, turns = Wire(endpoint), count()
    push(wire_to, names[0])
    pipe.send("ready")

    def work(begin: float, end: float) -> int:
        done = 0
        while (at := begin + done * _THREADS / rate) < end:
            time.sleep(max(0.0, at - time.monotonic()))
            if time.monotonic() > end:  # the machine can't keep up
                break
            # The step has no divisor in common with the number of names: all have their turn.
            push(wire_to, names[next(turns) * 7919 % len(names)])
            done += 1
        return done

    while True:
        seconds: float = pipe.recv()
        begins = [time.monotonic() + thread / rate for thread in range(_THREADS)]
        with ThreadPoolExecutor(_THREADS) as pool:
            pipe.send(sum(pool.map(work, begins, [begin + seconds for begin in begins])))


def _folder(name: str) -> bytes:
    return f"{ROOT}/locks/{name}/".encode()  # the name is one that needs no encoding


def _subkeys(name: str, about: dict[str, Any], times: Times) -> dict[str, str]:
    number = hash(name)
    own = {
        "pid": 1000 + number % 30_000,
        "locked_at": round(times.alive_at - number % 3_600_000 / 1000, 3),
        "expected_runtime": round(times.alert_at - times.alive_at, 3),
        "auto_unlock_after": round(times.auto_unlock_at - times.alive_at, 3),
        "backtrace": (about["backtrace"] * _BACKTRACE)[:_BACKTRACE],
    }
    return {
        "uuid": uuid_of(name),
        "hostname": f"web-{number % HOSTS}.example.org",
        **times.values(),
        "about": json.dumps(about | own, ensure_ascii=False),
    }
