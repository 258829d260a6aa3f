"""Section `unlocker`: the real program against a real etcd that holds very many locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import grpc

from benchmarks import population
from benchmarks.children import children
from benchmarks.contenders import holder_values
from benchmarks.floor import Wire
from benchmarks.population import Times
from benchmarks.samples import summary
from benchmarks.servers import Servers, cpu_seconds, wait_until
from benchmarks.services import Service, service, spends
from lockclient.stores.etcd.wire import messages_pb2 as wire

RATE = 500
"""Pushes a second while it is busy."""
RESYNC = 1200
"""Seconds between two readings of everything."""
_LASTING = 36_000.0
"""Seconds for which the locks that fill the store are well."""
_DRIFT = 1.001
"""How much longer than a lock's own duration an unlocker waits: clocks run unequally fast."""


@dataclass(frozen=True)
class _Plan:
    """How much is measured: numbers of locks, and seconds."""

    locks: int
    past_alert: int
    idle: float
    busy: float
    scrapes: int
    single: int
    at_once: int
    duration: float


_FULL = _Plan(100_000, 200, 20.0, 15.0, 100, 300, 1000, 6.0)
_QUICK = _Plan(1_000, 20, 1.0, 1.0, 5, 10, 50, 1.5)


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return what the unlocker needs with so many locks, and how soon it removes those due."""
    plan = _QUICK if quick else _FULL
    names = [f"bench-{number:06d}" for number in range(plan.locks)]
    with servers.etcd() as server:
        values = holder_values(server.endpoint)
        population.fill(server.endpoint, values, _well(names, plan))
        work = (server.endpoint, names[plan.past_alert :], RATE, _LASTING)
        with (
            children(population.pushes, [work]) as (pusher,),
            service("unlocker", server, "--max-removals", "off") as unlocker,  # without its brake
        ):
            found: dict[str, Any] = {"locks": plan.locks, **_started(unlocker)}
            found["idle"] = spends(unlocker.pid, plan.idle)
            found["scrape"] = _scrapes(unlocker, plan.scrapes)
            found |= _busy(unlocker, pusher, plan)
            with _Removals(server.endpoint) as removals:
                found["single"] = _single(server.endpoint, values, removals, plan)
                found["at_once"] = _at_once(server.endpoint, values, removals, plan)
            found |= unlocker.memory()
    return {
        **found,
        "single_locks": plan.single,
        "at_once_locks": plan.at_once,
        "target": RATE,
        "resync": RESYNC,
    }


def _well(names: list[str], plan: _Plan) -> Iterator[tuple[str, Times]]:
    """Yield the locks that fill the store; the first are past their alert, for the metrics."""
    now = time.time()
    for number, name in enumerate(names):
        alert = -60.0 if number < plan.past_alert else _LASTING / 2
        yield name, Times(now - 90, now + alert, now + _LASTING)


def _busy(unlocker: Service, pusher: Any, plan: _Plan) -> dict[str, Any]:
    """Let locks be pushed; return the share of a core that this takes, at `RATE` a second."""
    pusher.send(plan.busy)
    share = spends(unlocker.pid, plan.busy)
    rate: float = pusher.recv() / plan.busy
    pusher.send(plan.busy)
    scrape = _scrapes(unlocker, plan.scrapes)
    pusher.recv()
    return {"busy": share * RATE / rate, "rate": rate, "busy_scrape": scrape}


def _single(
    endpoint: str, values: dict[str, str], removals: _Removals, plan: _Plan
) -> dict[str, Any]:
    """Take locks one by one and fall silent; return from due to removed."""
    due: dict[str, float] = {}
    for number in range(plan.single):
        name, now = f"single-{number}", time.time()
        due[name] = time.monotonic() + plan.duration * _DRIFT
        times = Times(now, now + plan.duration / 2, now + plan.duration)
        population.fill(endpoint, values, [(name, times)])
        time.sleep(0.0237)  # so that they come due at any moment between two sweeps
    gone = removals.of(due)
    return dict(summary(gone[name] - at for name, at in due.items()))


def _at_once(endpoint: str, values: dict[str, str], removals: _Removals, plan: _Plan) -> float:
    """Let many locks come due at one moment; return the seconds until the last was removed."""
    begun, wall = time.monotonic(), time.time()
    lasting = 2 * plan.duration
    names = [f"many-{number}" for number in range(plan.at_once)]

    def locks() -> Iterator[tuple[str, Times]]:
        for name in names:
            # Each is written when it says so, so that all durations end at the same moment.
            yield name, Times(time.time(), wall + lasting - 1, wall + lasting)

    population.fill(endpoint, values, locks())
    gone = removals.of(names)
    return max(gone.values()) - (begun + lasting)


def _started(program: Service) -> dict[str, float]:
    """Wait until it is ready; return the seconds, and the CPU seconds, that this took."""
    begun = time.monotonic()
    program.wait_ready()
    return {"ready": time.monotonic() - begun, "ready_cpu": cpu_seconds(program.pid)}


def _scrapes(program: Service, times: int) -> dict[str, Any]:
    """Return how long so many scrapes took, seconds."""
    durations = []
    for _ in range(times):
        begun = time.perf_counter()
        assert program.ask("/metrics")[0] == 200
        durations.append(time.perf_counter() - begun)
        time.sleep(0.05)
    return dict(summary(durations))


class _Removals:
    """When which lock was removed, as a watch tells."""

    def __init__(self, endpoint: str) -> None:
        self._wire = Wire(endpoint)
        self._gone: dict[str, float] = {}
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._stands = threading.Event()

    def __enter__(self) -> _Removals:
        start = population.key_of("", "")[:-1]
        create = wire.WatchCreate(
            key=start, range_end=start[:-1] + b"0", filters=[wire.WatchCreate.NOPUT]
        )
        self._requests.put(wire.WatchRequest(create=create))
        threading.Thread(target=self._read, daemon=True).start()
        self._stands.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.put(None)
        self._wire.close()

    def of(self, names: Any) -> dict[str, float]:
        """Wait until all these locks are gone; return their moments on the monotonic clock."""
        wait_until(lambda: all(name in self._gone for name in names), "all removals", 120)
        return {name: self._gone[name] for name in names}

    def _read(self) -> None:
        try:
            for answer in self._wire.watch(self._requests):
                self._stands.set()
                now = time.monotonic()
                for event in answer.events:
                    *_, name, part = event.kv.key.decode().split("/")
                    if part == "uuid":
                        self._gone[name] = now
        except (grpc.RpcError, ValueError):  # the channel was closed: the end
            return
