"""Section `unlocker`: the real program against a real etcd that holds very many locks."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from benchmarks import population
from benchmarks.children import children
from benchmarks.contenders import etcd_values, our_store
from benchmarks.population import LASTING, ROOT, Times
from benchmarks.samples import summary, timed
from benchmarks.servers import Servers, Service, cpu_seconds
from lockclient.model.clocks import Deadline
from lockclient.stores.service_store import Batch
from tests.support.processes import wait_until

RATE = 500
"""Pushes a second while it is busy."""
RESYNC = 1200
"""Seconds between two readings of everything."""
_DRIFT = 1.001
"""How much longer than a lock's own duration an unlocker waits: clocks run unequally fast."""


_Plan = namedtuple("_Plan", "locks past_alert idle busy scrapes single at_once duration")
"""How much is measured: numbers of locks, and seconds."""
_FULL = _Plan(100_000, 200, 20.0, 15.0, 100, 300, 1000, 6.0)
_QUICK = _Plan(1_000, 20, 1.0, 1.0, 5, 10, 50, 1.5)


def unlocker(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return what the unlocker needs with so many locks, and how soon it removes those due."""
    plan = _QUICK if quick else _FULL
    names, now = population.names_of(plan.locks), time.time()
    past = Times(now - 90, now - 60, now + LASTING)  # the first are past their alert, for metrics
    with servers.etcd() as server:
        write = partial(population.fill, server.endpoint, etcd_values(server.endpoint))
        write((name, past) for name in names[: plan.past_alert])
        write((name, Times.of_now()) for name in names[plan.past_alert :])
        work = (server.endpoint, names[plan.past_alert :], RATE)
        url = f"etcd://{server.endpoint}{ROOT}"
        with (
            children(population.pushes, [work]) as (pusher,),
            Service("unlocker", url, "--max-removals", "off") as service,  # without its brake
        ):
            begun = time.monotonic()
            service.wait_ready()
            found: dict[str, Any] = {
                "ready": time.monotonic() - begun,
                "ready_cpu": cpu_seconds(service.pid),
                "idle": service.spends(plan.idle),
                "scrape": _scrapes(service, plan),
                **_busy(service, pusher, plan),
            }
            with _removals(server.endpoint) as gone:
                found["single"] = _single(write, gone, plan)
                found["at_once"] = _at_once(write, gone, plan)
            found |= service.memory()
    numbers = {"locks": plan.locks, "single_locks": plan.single, "at_once_locks": plan.at_once}
    return {**numbers, **found, "target": RATE, "resync": RESYNC}


def _busy(unlocker: Service, pusher: Any, plan: _Plan) -> dict[str, Any]:
    """Let locks be pushed; return the share of a core that this takes, at `RATE` a second."""
    pusher.send(plan.busy)
    share = unlocker.spends(plan.busy)
    rate: float = pusher.recv() / plan.busy
    pusher.send(plan.busy)
    scrape = _scrapes(unlocker, plan)
    pusher.recv()
    return {"busy": share * RATE / rate, "rate": rate, "busy_scrape": scrape}


def _scrapes(unlocker: Service, plan: _Plan) -> dict[str, float]:
    """Return how long scrapes take."""
    return summary(
        timed(partial(unlocker.get, "/metrics"), plan.scrapes, before=partial(time.sleep, 0.05))
    )


def _single(write: Any, gone: dict[str, float], plan: _Plan) -> dict[str, float]:
    """Take locks one by one and fall silent; return from due to removed."""
    due: dict[str, float] = {}
    for name in (f"single-{number}" for number in range(plan.single)):
        due[name] = time.monotonic() + plan.duration * _DRIFT
        write([(name, Times.of_now(plan.duration))])
        time.sleep(0.0237)  # so that they come due at any moment between two sweeps
    _wait_gone(gone, due)
    return summary(gone[name] - at for name, at in due.items())


def _at_once(write: Any, gone: dict[str, float], plan: _Plan) -> float:
    """Let many locks come due at one moment; return the seconds until the last was removed."""
    lasting: float = 2 * plan.duration
    begun, end = time.monotonic(), time.time() + lasting
    names = [f"many-{number}" for number in range(plan.at_once)]
    # Each is written when it says so, so that all durations end at the same moment.
    write((name, Times(time.time(), end - 1, end)) for name in names)
    _wait_gone(gone, names)
    return max(gone[name] for name in names) - (begun + lasting)


def _wait_gone(gone: dict[str, float], names: Collection[str]) -> None:
    wait_until(lambda: gone.keys() >= set(names), 120, "all removals")


@contextmanager
def _removals(endpoint: str) -> Iterator[dict[str, float]]:
    """Yield when which lock was removed, on the monotonic clock, as a watch tells it."""
    gone: dict[str, float] = {}
    stands: list[Batch] = []

    def note(batch: Batch) -> None:
        stands.append(batch)
        now = time.monotonic()
        for change in batch.changes:
            if (change.part, change.value) == ("uuid", None):
                gone[change.name] = now

    with closing(our_store(endpoint, ROOT)) as store:
        (now, *_) = store.load(("unlockers",), Deadline.after(30))
        store.follow(now.revision + 1, note)
        wait_until(lambda: stands, 30, "the watch to stand")
        yield gone
