"""The programs on Valkey servers: a holder that dies is alerted on and removed, and is seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.stores.valkey.store import ValkeyStore
from tests.acceptance.polled import is_alerted_on_and_removed, watch_tells
from tests.support.bucket_store import die_with
from tests.support.http_requests import read
from tests.support.processes import Service, start_service, wait_until
from tests.support.soak import soaking
from tests.support.terminal import COMMAND, called, environment, one_line
from tests.support.unlocker_process import fetch, figures, ready, unlocker
from tests.support.valkey_servers import Servers, running

ONE_SERVER = pytest.mark.parametrize("servers", [1, *soaking(5)], indirect=True)
FIVE_SERVERS = pytest.mark.parametrize("servers", [5, *soaking(1)], indirect=True)
"""A store is of either; what is of the one in `make test` is of both in `make soak`."""


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    with running(tmp_path, request.param) as some:
        yield some


@pytest.fixture
def store(servers: Servers) -> Iterator[ValkeyStore]:
    with servers.store() as opened:
        yield opened


@pytest.fixture
def settings(servers: Servers, store: ValkeyStore) -> Settings:
    del store  # it has vouched
    return Settings.load(servers.place().url())


@FIVE_SERVERS
def test_a_killed_holder_is_alerted_on_removed_and_shown(
    settings: Settings, store: ValkeyStore, servers: Servers
) -> None:
    """With a record that has the code which took the lock; also with one of five servers away."""
    dashboard = ["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0", "--poll", "0.5"]
    with unlocker(settings, "--poll", "0.5") as service, start_service(dashboard) as pages:
        wait_until(lambda: ready(service))
        away = servers.all[0].endpoint if len(servers.all) > 1 else ""
        if away:
            servers.all[0].freeze()
        uuid = die_with(settings, "nightly", 2, 8)
        wait_until(lambda: "/lock/nightly" in fetch(pages, "/")[1])
        assert "in &lt;module&gt;" in fetch(pages, "/lock/nightly")[1]
        is_alerted_on_and_removed(service, store, "nightly", uuid)
        wait_until(lambda: "nightly" in fetch(pages, "/removed")[1])
        wait_until(lambda: f"{away} has no vote" in fetch(pages, "/")[1] if away else True)
        page = fetch(pages, f"/removal?name=nightly&uuid={uuid}")[1]
        assert "in &lt;module&gt;" in page
        with ClusterMutex("nightly", store=store):
            wait_until(lambda: "/lock/nightly" in fetch(pages, "/")[1])
        assert "Valkey connected" in fetch(pages, "/")[1]
        for path in ("/", "/removed", "/timeline", "/lock/nightly"):
            assert "etcd" not in fetch(pages, path)[1], path


@ONE_SERVER
def test_who_gives_signs_of_life_keeps_its_lock(settings: Settings, store: ValkeyStore) -> None:
    """Each push is seen by a look, and its time counts from then."""
    mutex = ClusterMutex(
        "kept", expected_runtime=2, auto_unlock_after=4, keepalive=True, store=store
    )
    with unlocker(settings, "--poll", "0.5") as service, mutex:
        wait_until(lambda: ready(service))
        other = die_with(settings, "dead", 1, 6)
        wait_until(lambda: read(store, "dead", other).removal)
        assert mutex.healthy
        assert "kept" not in service.log_text()


@FIVE_SERVERS
def test_servers_that_are_away_are_told(settings: Settings, servers: Servers) -> None:
    """By each program, which and why; and nothing is done until a majority is back."""
    dashboard = ["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0", "--poll", "0.5"]
    listing = [COMMAND, "ls", "--watch", "--json"]
    with (
        unlocker(settings, "--poll", "0.5") as service,
        start_service(dashboard) as pages,
        start_service(listing, environment(settings)) as watching,
    ):
        wait_until(lambda: ready(service) and ready(pages))
        # It ends with an error if nobody answers as it begins.
        wait_until(lambda: '"connected"' in watching.log_text(), what="the watched list")
        both, where = (service, pages), [server.endpoint for server in servers.all]
        assert [votes(program) for program in both] == [dict.fromkeys(where, 1.0)] * 2
        for server in servers.all:
            server.freeze()
        wait_until(lambda: not ready(service), 90)
        wait_until(lambda: [votes(program) for program in both] == [dict.fromkeys(where, 0.0)] * 2)
        for program in both:
            wait_until(partial(tells_of, program, where), what="all servers in /readyz")
        wait_until(
            lambda: all(f"{endpoint} has no vote" in watching.log_text() for endpoint in where),
            what="all servers in the watched list",
        )
        for server in servers.all:
            server.thaw()
        wait_until(lambda: ready(service), 90)
        wait_until(lambda: votes(service) == dict.fromkeys(where, 1.0))


def votes(service: Service) -> dict[str, float]:
    """Return which server has a vote, as its metrics say."""
    samples = figures(service).items()
    return {name.split('"')[1]: value for name, value in samples if "_server_votes{" in name}


def tells_of(service: Service, endpoints: list[str]) -> bool:
    """Tell whether it says that each of these has no vote, and why."""
    said = fetch(service, "/readyz")[1]
    return "have no vote" in said and all(
        f"{endpoint} (no answer" in said for endpoint in endpoints
    )


@ONE_SERVER
def test_the_command(settings: Settings, store: ValkeyStore) -> None:
    """`ls`, `show`, `force-unlock`, `removed`; no line, and no number that is no fencing token."""
    mutex = ClusterMutex("deploy/prod", reason="release 7", store=store)
    mutex.acquire()
    assert "deploy/prod" in called(settings, "ls").stdout
    (lock,) = json.loads(called(settings, "ls", "--json").stdout)["locks"]
    assert (lock["uuid"], lock["fencing_token"]) == (mutex.uuid, 0)
    said = called(settings, "show", "deploy/prod").stdout
    assert "release 7" in said
    assert "test_the_command" in said  # the backtrace
    assert "waiters" not in said
    assert "Fencing" not in said
    called(settings, "force-unlock", "deploy/prod", "--reason", "it hangs", "--yes")
    with pytest.raises(LockLost):
        mutex.alive(force=True)
    (gone,) = json.loads(called(settings, "removed", "--json").stdout)["removed"]
    assert (gone["name"], gone["uuid"], gone["why"]) == ("deploy/prod", mutex.uuid, "it hangs")
    assert "it hangs" in one_line(called(settings, "show", "deploy/prod", status=1))
    assert "can't be told" in one_line(called(settings, "restored", status=69))


@FIVE_SERVERS
def test_watch(settings: Settings, store: ValkeyStore) -> None:
    watch_tells(settings, store)
