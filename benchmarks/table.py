"""Section `table`: what the live picture of all locks costs, which the services live on."""

from __future__ import annotations

import time
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.children import children
from benchmarks.contenders import cycle_of, etcd_values, our_store
from benchmarks.floor import Floor, Wire
from benchmarks.population import ROOT, Times, fill
from benchmarks.samples import summary
from benchmarks.servers import Servers
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition


def table(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return how long it takes to load so many locks, and what following a change costs."""
    loads, made = dict[str, float](), 0
    with servers.etcd() as server:
        values = etcd_values(server.endpoint)
        for size in (20, 100) if quick else (1_000, 10_000):
            fill(server.endpoint, values, ((f"{n}", Times.of_now()) for n in range(made, size)))
            made = size
            loads[str(size)] = min(_load(server.endpoint, size) for _ in range(3))
        follow = _follow(server.endpoint, values, quick=quick)
    return {"load": loads, "locks": made, **follow}


def _load(endpoint: str, size: int) -> float:
    """Return the seconds from the start of a table until it knows all locks."""
    with closing(our_store(endpoint, ROOT)) as store:
        table, started = Table(store), time.perf_counter()
        table.start()
        table.wait_ready(120)
        took = time.perf_counter() - started
        if (found := len(table.rows())) < size:
            raise AssertionError(f"the table has {found} locks after {took:.0f} s, not {size}")
        table.stop()
    return took


def _follow(endpoint: str, values: dict[str, str], *, quick: bool) -> dict[str, Any]:
    """Let a process follow, change locks, and ask it when it saw that and what it took."""
    slow, fast = (5, 20) if quick else (200, 1500)
    with children(_follower, [(endpoint,)]) as (pipe,), closing(Wire(endpoint)) as wire_to:
        sent: dict[str, float] = {}
        for uuid in (f"seen-{number}" for number in range(slow)):  # one at a time: how soon
            lock = Floor(wire_to, uuid, values | {"uuid": uuid})
            sent[uuid] = time.monotonic()
            lock.acquire()
            time.sleep(0.005)
        pipe.send(slow)
        before, _ = pipe.recv()
        cycle = cycle_of(Floor(wire_to, "busy", values))
        for _ in range(fast):  # as fast as they come: what each costs
            cycle()
        pipe.send(slow + 2 * fast)
        after, seen = pipe.recv()
    return {
        "seen_after": summary(seen[uuid] - at for uuid, at in sent.items()),
        "cpu_a_change": (after - before) / (2 * fast),
        "changes": 2 * fast,
    }


def _follower(endpoint: str, pipe: Connection) -> None:
    """Follow all locks; told a number, answer once so many changes were seen."""
    seen: dict[str | None, float] = {}
    changes = 0

    def note(transitions: list[Transition]) -> None:
        nonlocal changes
        for transition in transitions:
            if transition.live:
                changes += 1
                if transition.after is not None and transition.before is None:
                    seen[transition.after.holder.uuid] = time.monotonic()

    table = Table(our_store(endpoint, ROOT), on_change=note)
    table.start()
    table.wait_ready(120)
    time.sleep(0.2)  # the watch is asked for right after the reading
    pipe.send("ready")
    while True:
        wanted: int = pipe.recv()
        while changes < wanted:
            time.sleep(0.01)
        pipe.send((time.process_time(), seen))
