"""A store full of locks that nobody really holds, for the services and the table.

They are written by bare transactions, as many locks in each as etcd takes, with all that a real
holder writes. What makes locks of many holders heavy is kept: each has a uuid, a process and stamps
of its own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.floor import STAMPS, Wire
from lockclient.stores.etcd.wire import messages_pb2 as wire

ROOT = "/floor"
"""Where the floor's locks live: the services see locks, whoever wrote them."""
BACKTRACE = 1500
"""Characters of each backtrace: some eight frames of a service."""
HOSTS = 500
_THREADS = 4
_OPERATIONS = 128
"""etcd takes no more in a transaction."""


@dataclass(frozen=True)
class Times:
    """A lock's stamps, and the sign of life that they were made at, Unix seconds."""

    alive_at: float
    alert_at: float
    auto_unlock_at: float

    def values(self) -> dict[str, str]:
        """Return what a push writes, subkey to value."""
        return {key: f"{getattr(self, key):.3f}" for key in STAMPS}


def key_of(name: str, part: str) -> bytes:
    """Return the key of a lock's subkey; the name is one that needs no encoding."""
    return f"{ROOT}/locks/{name}/{part}".encode()


def fill(endpoint: str, values: dict[str, str], locks: Iterable[tuple[str, Times]]) -> None:
    """Write these locks, as fast as etcd takes them; their uuids are `uuid_of`."""
    wire_to = Wire(endpoint)
    size, about = _OPERATIONS // len(values), json.loads(values["about"])

    def write(few: list[tuple[str, Times]]) -> None:
        puts = [
            wire.Operation(put=wire.Put(key=key_of(name, part), value=value.encode()))
            for name, times in few
            for part, value in _subkeys(name, about, times).items()
        ]
        wire_to.txn(wire.Txn(success=puts), timeout=60)

    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(write, _parts(iter(locks), size)):
            pass
    wire_to.close()


def uuid_of(name: str) -> str:
    """Return the uuid of a lock's holder."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def push(wire_to: Wire, name: str, times: Times) -> None:
    """Push a lock's stamps forward, as `alive()` does."""
    mine = wire.Compare(
        target=wire.Compare.VALUE, key=key_of(name, "uuid"), value=uuid_of(name).encode()
    )
    puts = [
        wire.Operation(put=wire.Put(key=key_of(name, part), value=value.encode()))
        for part, value in times.values().items()
    ]
    if not wire_to.txn(wire.Txn(compare=[mine], success=puts), timeout=10).succeeded:
        raise AssertionError(f"the lock {name!r} is gone, though it was not due")


def pushes(endpoint: str, names: list[str], rate: float, lasting: float, pipe: Connection) -> None:
    """Push `rate` of these locks a second, at random; runs in a child of the benchmark.

    Told how many seconds, answers with how many pushes there were.
    """
    wire_to = Wire(endpoint)
    push(wire_to, names[0], _pushed(lasting))
    turns = count()
    pipe.send("ready")

    def work(begin: float, seconds: float) -> int:
        done = 0
        while (at := begin + done * _THREADS / rate) < begin + seconds:
            time.sleep(max(0.0, at - time.monotonic()))
            if time.monotonic() > begin + seconds:  # the machine can't keep up
                break
            # The step has no divisor in common with the number of names: all have their turn.
            push(wire_to, names[next(turns) * 7919 % len(names)], _pushed(lasting))
            done += 1
        return done

    while True:
        seconds: float = pipe.recv()
        begin = time.monotonic()
        with ThreadPoolExecutor(_THREADS) as pool:
            starts = [begin + thread / rate for thread in range(_THREADS)]
            pipe.send(sum(pool.map(work, starts, [seconds] * _THREADS)))


def _pushed(lasting: float) -> Times:
    now = time.time()
    return Times(now, now + lasting / 2, now + lasting)


def _subkeys(name: str, about: dict[str, Any], times: Times) -> dict[str, str]:
    number = hash(name)
    own = {
        "pid": 1000 + number % 30_000,
        "locked_at": round(times.alive_at - number % 3_600_000 / 1000, 3),
        "expected_runtime": round(times.alert_at - times.alive_at, 3),
        "auto_unlock_after": round(times.auto_unlock_at - times.alive_at, 3),
        "backtrace": (about["backtrace"] * BACKTRACE)[:BACKTRACE],
    }
    return {
        "uuid": uuid_of(name),
        "hostname": f"web-{number % HOSTS}.example.org",
        **times.values(),
        "about": json.dumps(about | own, ensure_ascii=False),
    }


def _parts(locks: Iterator[tuple[str, Times]], size: int) -> Iterator[list[tuple[str, Times]]]:
    while few := list(islice(locks, size)):
        yield few
