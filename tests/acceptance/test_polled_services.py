"""The programs on polled stores, a bucket and Valkey: a dead holder is removed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_store import ServiceStore
from tests.support.bucket_store import settings_of, store_of
from tests.support.locks import HolderProcess, read
from tests.support.processes import Service, start_service, wait_until
from tests.support.soak import soaking
from tests.support.terminal import COMMAND, environment
from tests.support.unlocker_process import (
    REMOVED,
    fetch,
    figure,
    figures,
    mutexdash,
    ready,
    unlocker,
    when_ready,
)
from tests.support.valkey_servers import Servers, running

SERVERS = {"bucket": 0, "one server": 1, "five servers": 5}
OFTEN = ("--poll", "0.5")
Store = ServiceStore


def stores(*daily: str) -> pytest.MarkDecorator:
    """A mark for a test of these stores, and in `make soak` of servers in any number."""
    rest = {"one server", "five servers"} - {*daily}
    return pytest.mark.parametrize("servers", [*daily, *soaking(*rest)], indirect=True)


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Servers of Valkey; none: there is a bucket."""
    with running(tmp_path, SERVERS[request.param]) as some:
        yield some


@pytest.fixture
def store(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Store]:
    if servers.all:
        with servers.store() as opened:
            yield opened
        return
    in_a_bucket = store_of(settings_of(request.getfixturevalue("server")))
    yield in_a_bucket
    in_a_bucket.close()


@pytest.fixture
def settings(store: Store, servers: Servers, request: pytest.FixtureRequest) -> Settings:
    del store  # it has vouched for the servers
    if servers.all:
        return Settings(location=servers.place())
    return settings_of(request.getfixturevalue("server"))


@stores("bucket", "five servers")
def test_a_killed_holder_is_alerted_on_removed_and_shown(
    settings: Settings, store: Store, servers: Servers
) -> None:
    """With a record that has the code which took the lock; also with one of five servers away."""
    with when_ready(unlocker(settings, *OFTEN)) as service, mutexdash(settings, *OFTEN) as pages:
        away = servers.all[0].endpoint if len(servers.all) > 1 else ""
        if away:
            servers.all[0].freeze()
        holder = HolderProcess(settings, "nightly", expected_runtime=2, auto_unlock_after=8)
        uuid = holder.kill()
        wait_until(lambda: "/lock/nightly" in fetch(pages, "/")[1])
        assert "in &lt;module&gt;" in fetch(pages, "/lock/nightly")[1]
        wait_until(lambda: "Lock 'nightly' is past its alert" in service.log_text())
        assert read(store, "nightly").holder is not None
        removal = wait_until(lambda: read(store, "nightly", uuid).removal, what="the removal")
        assert removal.how == "auto-unlock"
        assert removal.removed_by.startswith("unlocker@")
        assert "in <module>" in (removal.holder.backtrace or "")
        wait_until(lambda: figure(service, REMOVED) == 1)
        wait_until(lambda: figure(service, 'clustermutex_removals_seen_total{how="auto-unlock"}'))
        wait_until(lambda: "nightly" in fetch(pages, "/removed")[1])
        wait_until(lambda: f"{away} has no vote" in fetch(pages, "/")[1] if away else True)
        page = fetch(pages, f"/removal?name=nightly&uuid={uuid}")[1]
        assert "in &lt;module&gt;" in page
        with ClusterMutex("nightly", store=store):
            assert read(store, "nightly").holder is not None
            wait_until(lambda: "/lock/nightly" in fetch(pages, "/")[1])
        connected = "Valkey connected" if servers.all else "Google Cloud Storage connected"
        assert connected in fetch(pages, "/")[1]
        for path in ("/", "/removed", "/timeline", "/lock/nightly"):
            assert "etcd" not in fetch(pages, path)[1], path


@stores("bucket")
def test_the_poll_interval_is_no_clock_skew(settings: Settings, store: Store) -> None:
    """A heartbeat may be a whole interval old when an unlocker sees it."""
    skew = f'clustermutex_client_clock_skew_seconds{{hostname="{socket.gethostname()}"}}'
    starting = unlocker(settings, "--poll", "12")
    with when_ready(starting) as service, ClusterMutex("nightly", store=store):
        wait_until(lambda: skew in figures(service), 60, what="the skew")
        assert abs(figures(service)[skew]) < 2


@stores("five servers")
def test_unreachable_servers_are_reported(settings: Settings, servers: Servers) -> None:
    listing = [COMMAND, "ls", "--watch", "--json"]
    with (
        when_ready(unlocker(settings, *OFTEN)) as service,
        when_ready(mutexdash(settings, *OFTEN)) as pages,
        start_service(listing, environment(settings)) as watching,
    ):
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
