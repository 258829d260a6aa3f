"""Section `table`: what the live picture of all locks costs, which the services live on."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.children import children
from benchmarks.contenders import holder_values
from benchmarks.floor import Floor, Wire
from benchmarks.population import ROOT, Times, fill
from benchmarks.samples import summary
from benchmarks.servers import Servers
from lockclient import Settings, open_store
from lockclient.overview.rows import Transition
from lockclient.overview.table import Table

LASTING = 36_000.0
"""Seconds for which the locks are healthy."""


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return how long it takes to load so many locks, and what following a change costs."""
    sizes = (20, 100) if quick else (1_000, 10_000)
    loads: dict[str, float] = {}
    with servers.etcd() as server:
        values = holder_values(server.endpoint)
        made = 0
        for size in sizes:
            now = time.time()
            locks = ((f"{n}", Times(now, now + LASTING, now + LASTING)) for n in range(made, size))
            fill(server.endpoint, values, locks)
            made = size
            loads[str(size)] = min(_load(server.endpoint, size) for _ in range(3))
        follow = _follow(server.endpoint, values, made, quick=quick)
    return {"load": loads, **follow}


def _load(endpoint: str, size: int) -> float:
    """Return the seconds from the start of a table until it knows all locks."""
    store = open_store(Settings(endpoints=(endpoint,), root=ROOT))
    table = Table(store)
    started = time.perf_counter()
    table.start()
    if not table.wait_ready(120):
        raise AssertionError(f"the table of {size} locks was not loaded within 120 s")
    took = time.perf_counter() - started
    found = len(table.rows())
    table.stop()
    store.close()
    if found < size:
        raise AssertionError(f"the table has {found} locks, not {size}")
    return took


def _follow(endpoint: str, values: dict[str, str], locks: int, *, quick: bool) -> dict[str, Any]:
    """Let a process follow, change locks, and ask it when it saw that and what it took."""
    slow, fast = (5, 20) if quick else (200, 1500)
    with children(_follower, [(endpoint,)]) as (pipe,):
        wire_to = Wire(endpoint)
        sent: dict[str, float] = {}
        for number in range(slow):  # one at a time: how soon it is seen
            lock = Floor(wire_to, f"seen-{number}", values | {"uuid": f"seen-{number}"})
            sent[f"seen-{number}"] = time.monotonic()
            lock.acquire()
            time.sleep(0.005)
        pipe.send(slow)
        before, _ = pipe.recv()
        lock = Floor(wire_to, "busy", values)
        for _ in range(fast):  # as fast as they come: what each costs
            lock.cycle()
        pipe.send(slow + 2 * fast)
        after, seen = pipe.recv()
        wire_to.close()
    return {
        "locks": locks,
        "seen_after": summary(seen[uuid] - at for uuid, at in sent.items()),
        "cpu_a_change": (after - before) / (2 * fast),
        "changes": 2 * fast,
    }


def _follower(endpoint: str, pipe: Connection) -> None:
    """Follow all locks; told a number, answer once so many changes were seen."""
    seen: dict[str, float] = {}
    changes = 0

    def note(transitions: list[Transition]) -> None:
        nonlocal changes
        now = time.monotonic()
        for transition in transitions:
            if transition.live:
                changes += 1
                after = transition.after
                if after is not None and transition.before is None and after.holder.uuid:
                    seen[after.holder.uuid] = now

    table = Table(open_store(Settings(endpoints=(endpoint,), root=ROOT)), on_change=note)
    table.start()
    table.wait_ready(120)
    time.sleep(0.2)  # the watch is asked for right after the reading
    pipe.send("ready")
    while True:
        wanted: int = pipe.recv()
        while changes < wanted:
            time.sleep(0.01)
        pipe.send((time.process_time(), seen))
