"""Section `dashboard`: the real program, many viewers, very many locks."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import population
from benchmarks.children import children
from benchmarks.contenders import etcd_values
from benchmarks.floor import Wire
from benchmarks.population import Times
from benchmarks.samples import summary, timed
from benchmarks.servers import Servers, Service

INTERVAL = 2.0
"""Seconds between two polls of one viewer."""


def dashboard(servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Return what viewers wait for, and what the dashboard takes, with so many locks."""
    listed, many, questions = (100, 1_000, 5) if quick else (1_000, 50_000, 100)
    viewers, seconds = (10, 2.0) if quick else (200, 20.0)
    names = population.names_of(many)
    with servers.etcd() as server:
        values = etcd_values(server.endpoint)
        fill = partial(population.fill, server.endpoint, values)
        fill((name, Times.of_now()) for name in names[:listed])
        with _dashboard(server.endpoint) as dash:
            found = {"listed": listed, "viewers": viewers, **_few(dash, listed, viewers, seconds)}
        fill((name, Times.of_now()) for name in names[listed:])
        with _dashboard(server.endpoint) as dash, closing(Wire(server.endpoint)) as wire_to:
            found |= {"locks": many, **_many(dash, wire_to, names, questions), **dash.memory()}
    return found


@contextmanager
def _dashboard(endpoint: str) -> Iterator[Service]:
    with Service("mutexdash", f"etcd://{endpoint}{population.ROOT}") as dash:
        dash.wait_ready()
        dash.get("/")  # the first picture of all
        yield dash


def _few(dash: Service, listed: int, viewers: int, seconds: float) -> dict[str, Any]:
    """Let many look at a list that does not change; return how long each answer took."""
    answer = dash.get(f"/api/locks?per_page={listed}", {"Accept-Encoding": "gzip"})
    whole = gzip.decompress(answer)
    assert len(json.loads(whole)["locks"]) == listed
    with children(_look, [(int(dash.address.rpartition(":")[2]), viewers, seconds)]) as (pipe,):
        waits: list[float] = pipe.recv()
    return {"poll": summary(waits), "json": len(whole), "json_compressed": len(answer)}


def _many(dash: Service, wire_to: Wire, names: list[str], questions: int) -> dict[str, Any]:
    """Ask for pages while locks change: each is made anew, from all locks."""
    turns = itertools.count()
    chosen = random.Random(7)  # noqa: S311 - the same questions each time

    def change() -> None:
        population.push(wire_to, names[next(turns) * 7919 % len(names)])
        time.sleep(0.35)  # the watch brings it, and the picture of before has had its time

    paths: dict[str, Callable[[], str]] = {
        "first_page": lambda: "/",
        "search": lambda: f"/?q=web-{chosen.randrange(population.HOSTS)}.example",
        "search_one": lambda: f"/?q={chosen.choice(names)}",
        "sorted": lambda: "/?sort=-locked_at",
    }

    def ask(path: Callable[[], str]) -> dict[str, float]:
        return summary(timed(lambda: dash.get(path()), questions, before=change))

    return {page: ask(path) for page, path in paths.items()}


# ---------------------------------------------------------------- the viewers


def _look(port: int, count: int, seconds: float, pipe: Connection) -> None:
    """Poll the list of locks as so many open pages do; tell how long each answer took."""

    async def look() -> list[list[float]]:
        lists = (_viewer(port, viewer / count, seconds) for viewer in range(count))
        return await asyncio.gather(*lists)

    pipe.send("ready")
    pipe.send(list(itertools.chain(*asyncio.run(look()))))


async def _viewer(port: int, phase: float, seconds: float) -> list[float]:
    await asyncio.sleep(phase * INTERVAL)
    _, etag = await _ask(port, "")
    waits, until = [], time.monotonic() + seconds
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
