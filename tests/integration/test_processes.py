"""The ways in which programs make processes: each worker has locks of its own, none its parent's.

multiprocessing, concurrent.futures, and a web server that loads the application and forks.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_store import ServiceStore
from tests.integration.pool_program import TIMES, WORKERS
from tests.support.locks import has, held, read, remove
from tests.support.processes import Figure, Service, run_to_end, start_service, wait_until
from tests.support.soak import soaking

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
WAYS = [
    *("process fork", "process forkserver", "pool spawn", "threads"),
    *soaking("process spawn", "pool fork"),
]
REQUESTS = 60


@pytest.mark.parametrize("way", WAYS)
def test_workers_share_a_lock(way: str, settings: Settings, tmp_path: Path) -> None:
    """No addition is lost, the tokens rise, and the parent's own lock is as it was."""
    program = [sys.executable, str(HERE / "pool_program.py")]
    done = run_to_end(*program, way, settings.url(), tmp_path / "number", folder=CHECKOUT)
    assert "Traceback" not in done.stderr
    tokens = [int(word) for word in done.stdout.split()]
    assert (tmp_path / "number").read_text() == str(WORKERS * TIMES)
    assert len(tokens) == WORKERS * TIMES
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))


class Site:
    """A gunicorn with a few workers that serves `gunicorn_app.py`."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = service.url

    @property
    def master(self) -> int:
        """The pid of the process that loaded the application and forked the workers."""
        return self.service.process.pid

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=90) as answer:
            page: dict[str, Any] = json.load(answer)
            return page


@pytest.fixture(params=["sync", "gthread"])
def site(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[Site]:
    """The server, of both kinds that serve with threads and without."""
    number = tmp_path / "number"
    number.write_text("0")
    words = [
        *("gunicorn", "--preload", "--workers", "3", "--worker-class", request.param),
        *("--threads", "2" if request.param == "gthread" else "1", "--bind", "127.0.0.1:0"),
        *("--chdir", str(CHECKOUT), "tests.integration.gunicorn_app:app"),
    ]
    environ = {"CLUSTERMUTEX_URL": settings.url(), "COUNT_FILE": str(number)}
    with start_service(words, environ) as service:
        yield Site(service)


def test_a_pre_fork_server(site: Site, store: ServiceStore, tmp_path: Path, figure: Figure) -> None:
    assert site.get("/boot") == {"locked": False, "healthy": False}
    with ThreadPoolExecutor(6) as pool:
        turns = list(pool.map(lambda _: site.get("/count"), range(REQUESTS)))
    assert sorted(turn["number"] for turn in turns) == list(range(1, REQUESTS + 1))
    tokens = [turn["token"] for turn in sorted(turns, key=lambda turn: int(turn["number"]))]
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))
    pids = {turn["pid"] for turn in turns}
    assert len(pids) > 1
    assert site.master not in pids

    _kill_who_holds(site, store)

    boot = held(store, "boot")
    assert boot.pid == site.master
    wait_until(lambda: held(store, "boot").alive_at != boot.alive_at, what="a push")
    began = time.monotonic()
    assert site.service.terminate() == 0
    figure(
        f"{REQUESTS} requests by {len(pids)} workers; SIGTERM ended the server in "
        f"{time.monotonic() - began:.2f} s"
    )
    assert "Traceback" not in site.service.log_text()
    assert has(store, "count") is None
    assert ClusterMutex("count", store=store).waiters() == []


def _kill_who_holds(site: Site, store: ServiceStore) -> None:
    """Kill a worker that holds the lock: it stays locked until it is removed, then work goes on."""

    def hold() -> None:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            site.get("/hold")

    asking = threading.Thread(target=hold)
    asking.start()
    dead = wait_until(lambda: read(store, "count").holder, what="a worker to hold the lock")
    assert dead.pid is not None
    os.kill(dead.pid, signal.SIGKILL)
    asking.join(60)
    assert held(store, "count") == dead, "a lock has no lease"
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(site.get, "/count")
        wait_until(ClusterMutex("count", store=store).waiters, what="another worker in line")
        remove(store, dead)
        assert next_one.result(60)["pid"] not in (dead.pid, site.master)
