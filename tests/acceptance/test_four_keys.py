"""Locks of four plain keys in a bucket and on servers of Valkey, beside the `unlocker` program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

import pytest

from lockclient import Settings, open_store
from lockclient.model.clocks import format_stamp
from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.service_protocol import ServiceStore
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of
from tests.support.clock_shim import Clock, compile_library
from tests.support.locks import has, read
from tests.support.processes import wait_until
from tests.support.unlocker_process import figure, unlocker, when_ready
from tests.support.valkey_servers import running

HOUR, DISTANCE_S, ALERT_S = 3600.0, 4.0, 1.0
UNDECIDED = 'clustermutex_locks{state="undecided"}'
SEEN = ('clustermutex_locks{state="ok"}', 'clustermutex_locks{state="alert"}')


class Place(Protocol):
    """Where scripts write locks, without our library."""

    settings: Settings

    def put(self, name: str, values: dict[str, str]) -> None:
        """Write keys of a lock, at once."""

    def move_clock(self, ahead: float) -> None:
        """Set the wall clock of all servers."""


class Bucket:
    def __init__(self, server: BucketServer) -> None:
        self.settings = settings_of(server)
        self._server = server
        self._names = ObjectNames("of/the/test/")

    def put(self, name: str, values: dict[str, str]) -> None:
        path, bucket = self._names.lock(name), self._server.bucket
        if path in bucket.names():
            bucket.patch(path, {"metadata": values}, Conditions())
        else:
            bucket.insert(path, b"", Conditions(), metadata=values)

    def move_clock(self, ahead: float) -> None:
        self._server.ahead = ahead


@pytest.fixture(params=["bucket", "Valkey"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "bucket":
        yield Bucket(request.getfixturevalue("server"))
        return
    clock = Clock(compile_library(tmp_path))
    with running(tmp_path, 3, env=clock.env) as servers, servers.store() as store:

        class Valkey:
            settings = Settings(location=servers.place())

            def put(self, name: str, values: dict[str, str]) -> None:
                fields = {"take": "1", "expiry": "0", "push": str(time.time_ns() // 10**6)}
                words = [word for field in (fields | values).items() for word in field]
                servers.command("HSET", store.keys.lock(name), *words)

            def move_clock(self, ahead: float) -> None:
                clock.move(ahead)

        yield Valkey()


@pytest.fixture
def store(place: Place) -> Iterator[ServiceStore]:
    with closing(open_store(place.settings)) as opened:
        yield opened


def stamps(ahead: float = 0.0) -> dict[str, str]:
    alert_at = time.time() + ahead + ALERT_S
    return {
        "alert_at": format_stamp(alert_at),
        "auto_unlock_at": format_stamp(alert_at + DISTANCE_S),
    }


def taken(name: str, ahead: float = 0.0) -> dict[str, str]:
    return {"uuid": f"{name}-1", "hostname": "script", **stamps(ahead)}


def test_the_silent_one_goes_no_sooner_than_its_distance(place: Place, store: ServiceStore) -> None:
    """Whatever its holder's clock says; one of whose stamps a hand moved is undecided."""
    with when_ready(unlocker(place.settings, "--poll", "0.5")) as service:
        far = {"auto_unlock_at": format_stamp(time.time() + HOUR)}
        place.put("moved", taken("moved") | far)
        wait_until(lambda: sum(figure(service, state) or 0 for state in SEEN), what="a look")
        place.put("moved", {"auto_unlock_at": format_stamp(time.time() + HOUR / 2)})
        sent = time.monotonic()
        for name, ahead in (("silent", 0.0), ("behind", -HOUR)):
            place.put(name, taken(name, ahead))
        wait_until(lambda: has(store, "silent") is None, what="the removal")
        wait_until(lambda: has(store, "behind") is None, what="the removal of the other one")
        assert time.monotonic() >= sent + DISTANCE_S
        wait_until(lambda: figure(service, UNDECIDED) == 1, what="the one that was moved")
        assert has(store, "moved") == "moved-1"
        removal = read(store, "silent", "silent-1").removal
        assert removal is not None
        assert removal.how == "auto-unlock"
