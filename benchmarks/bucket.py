"""Section `bucket`: a lock in a bucket that answers after 50 ms, beside one bare request to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import patch

import requests

from benchmarks.samples import Rounds, compare, flat, summary, timed
from benchmarks.servers import Servers
from lockclient import ClusterMutex, Settings, open_store
from tests.support.bucket.server import BucketServer

DELAY = 0.05
"""Seconds: what a bucket in the same region takes, about."""


def bucket(_servers: Servers, *, quick: bool) -> dict[str, Any]:
    """Take and release a free lock, and count what that asks of the bucket."""
    rounds, calls_a_round = (2, 3) if quick else (10, 20)
    with (
        BucketServer() as server,
        patch.dict("os.environ", STORAGE_EMULATOR_HOST=server.url),
        closing(open_store(Settings.load(f"gs://{server.bucket.name}"))) as store,
    ):
        mutex = ClusterMutex("measured", store=store)
        mutex.acquire()
        mutex.alive()
        mutex.release()
        take, release = server.counted("POST"), server.counted("DELETE")
        between = len(server.asked) - take - release
        server.delay = DELAY
        calls: dict[str, Callable[[], object]] = {  # in turns: what is taken is released next
            "request": _bare(server),
            "acquire": mutex.acquire,
            "release": mutex.release,
        }
        found: dict[str, Rounds] = {name: [[] for _ in range(rounds)] for name in calls}
        for number in range(rounds):
            for _ in range(calls_a_round):
                for name, call in calls.items():
                    found[name][number] += timed(call, 1)
    return {
        "delay": DELAY,
        "take": take,
        "release": release,
        "between": between,
        "seconds": {name: summary(flat(every)) for name, every in found.items()},
        "acquire_over_request": compare(found["acquire"], found["request"]),
    }


def _bare(server: BucketServer) -> Callable[[], object]:
    """Return what sends the upload of a take, with its bytes, to another object."""
    take, session = server.asked[0], requests.Session()
    ask = partial(
        session.post,
        f"{server.url}{take.path}",
        params={"uploadType": take.query["uploadType"], "name": "bare"},
        data=take.body,
        headers={"Content-Type": take.headers["Content-Type"]},
    )
    return lambda: ask().raise_for_status()
