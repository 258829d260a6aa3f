"""Section `dashboard`: the real program, many viewers, very many locks."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import population
from benchmarks.children import children
from benchmarks.contenders import holder_values
from benchmarks.floor import Wire
from benchmarks.population import Times
from benchmarks.samples import summary
from benchmarks.servers import Servers
from benchmarks.services import Service, service
from lockclient.cli.setup.etcd_server import Etcd

INTERVAL = 2.0
"""Seconds between two polls of one viewer."""
_LASTING = 36_000.0
"""Seconds for which the locks are well."""


@dataclass(frozen=True)
class _Plan:
    """How much is measured: numbers of locks, viewers and questions, and seconds."""

    listed: int
    viewers: int
    seconds: float
    locks: int
    questions: int


_FULL = _Plan(1_000, 200, 20.0, 50_000, 100)
_QUICK = _Plan(100, 10, 2.0, 1_000, 5)


def measure(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return what viewers wait for, and what the dashboard takes, with so many locks."""
    plan = _QUICK if quick else _FULL
    names = [f"bench-{number:06d}" for number in range(plan.locks)]
    with servers.etcd() as server:
        values = holder_values(server.endpoint)
        population.fill(server.endpoint, values, _well(names[: plan.listed]))
        with _dashboard(server) as dash:
            found = {"listed": plan.listed, "viewers": plan.viewers, **_few(dash, plan)}
        population.fill(server.endpoint, values, _well(names[plan.listed :]))
        with _dashboard(server) as dash:
            found |= {"locks": plan.locks, **_many(dash, server.endpoint, names, plan)}
    return found


def _well(names: list[str]) -> Iterator[tuple[str, Times]]:
    now = time.time()
    for name in names:
        yield name, Times(now - 90, now + _LASTING / 2, now + _LASTING)


def _few(dash: Service, plan: _Plan) -> dict[str, Any]:
    """Let many look at a list that does not change; return how long each answer took."""
    path = f"/api/locks?per_page={plan.listed}"
    listed = _get(dash, path, {"Accept-Encoding": "gzip"})
    whole = gzip.decompress(listed)
    assert len(json.loads(whole)["locks"]) == plan.listed
    work = (dash.port(), plan.viewers, plan.seconds)
    with children(viewers, [work]) as (pipe,):
        waits: list[float] = pipe.recv()
    return {"poll": summary(waits), "json": len(whole), "json_compressed": len(listed)}


def _many(dash: Service, endpoint: str, names: list[str], plan: _Plan) -> dict[str, Any]:
    """Ask for pages while locks change: each is made anew, from all locks."""
    wire_to, turns = Wire(endpoint), itertools.count()

    def change() -> None:
        name, now = names[next(turns) * 7919 % len(names)], time.time()
        population.push(wire_to, name, Times(now, now + _LASTING / 2, now + _LASTING))
        time.sleep(0.35)  # the watch brings it, and the picture of before has had its time

    def asked(path: Callable[[], str]) -> dict[str, Any]:
        waits = []
        for _ in range(plan.questions):
            change()
            waits.append(_timed(dash, path()))
        return dict(summary(waits))

    chosen = random.Random(7)  # noqa: S311 - the same questions each time
    found = {
        "first_page": asked(lambda: "/"),
        "search": asked(lambda: f"/?q=web-{chosen.randrange(population.HOSTS)}.example"),
        "search_one": asked(lambda: f"/?q={chosen.choice(names)}"),
        "sorted": asked(lambda: "/?sort=-locked_at"),
    }
    wire_to.close()
    return found | dash.memory()


# ---------------------------------------------------------------- the viewers


def viewers(port: int, count: int, seconds: float, pipe: Connection) -> None:
    """Poll the list of locks as so many open pages do; tell how long each answer took."""
    pipe.send("ready")
    pipe.send(asyncio.run(_look(port, count, seconds)))


async def _look(port: int, count: int, seconds: float) -> list[float]:
    lists = await asyncio.gather(
        *(_viewer(port, viewer / count, seconds) for viewer in range(count))
    )
    return list(itertools.chain(*lists))


async def _viewer(port: int, phase: float, seconds: float) -> list[float]:
    await asyncio.sleep(phase * INTERVAL)
    _, etag = await _ask(port, "")
    waits = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # With the jitter of a page's own.
        await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.2))  # noqa: S311
        begun = time.perf_counter()
        status, _ = await _ask(port, etag)
        waits.append(time.perf_counter() - begun)
        if status != 304:
            raise AssertionError(f"an unchanged list was answered with {status}")
    return waits


async def _ask(port: int, etag: str) -> tuple[int, str]:
    """Ask on a new connection, as a browser has to: waitress closes it after a 304."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    known = f"If-None-Match: {etag}\r\n" if etag else ""
    writer.write(f"GET / HTTP/1.1\r\nHost: localhost\r\n{known}Connection: close\r\n\r\n".encode())
    head, _, _ = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    tag = re.search(r"(?im)^etag: (\S+)", head.decode())
    return int(head.split()[1]), tag[1] if tag else ""


# ---------------------------------------------------------------- the program


@contextmanager
def _dashboard(server: Etcd) -> Iterator[Service]:
    with service("mutexdash", server) as dash:
        dash.wait_ready()
        _timed(dash, "/")  # the first picture of all
        yield dash


def _get(dash: Service, path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the body of an answer."""
    status, body = dash.ask(path, headers)
    if status != 200:
        raise AssertionError(f"{path} was answered with {status}: {body[:300]!r}")
    return body


def _timed(dash: Service, path: str) -> float:
    """Return how long an answer takes, seconds."""
    begun = time.perf_counter()
    _get(dash, path)
    return time.perf_counter() - begun
