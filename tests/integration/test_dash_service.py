"""The program `mutexdash` itself, against a real etcd."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from lockclient import ClusterMutex, HeldLock
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.settings import Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_store import etcd_store
from tests.support.processes import Service, start_service, wait_until

ANY_PORT = ("--listen", "127.0.0.1:0")


@pytest.fixture
def dash(settings: Settings) -> Iterator[Service]:
    with start_service(["mutexdash", "--url", settings.url(), *ANY_PORT]) as service:
        wait_until(lambda: status(service, "/readyz") == 200, what="the dashboard to be ready")
        yield service


@contextmanager
def lock(store: EtcdStore, name: str, **options: Any) -> Iterator[HeldLock]:
    with ClusterMutex(name, store=store, **options) as mutex:
        yield mutex


def raw(service: Service, target: str, host: str = "localhost") -> tuple[int, str]:
    """Ask without any client's own ideas of what a path should look like."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(service.url).port, timeout=30)
    with closing(connection):
        connection.request("GET", target, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def status(service: Service, path: str) -> int:
    return raw(service, path)[0]


def get(service: Service, path: str) -> Any:
    code, body = raw(service, path)
    assert code == 200, body
    return json.loads(body)


# ---------------------------------------------------------------- what it shows


def test_a_lock_of_a_client_comes_and_goes(dash: Service, store: EtcdStore) -> None:
    with lock(store, "nightly", reason="rebuild totals", expected_runtime=30) as mutex:
        (shown,) = wait_until(lambda: get(dash, "/api/locks")["locks"])
        assert (shown["name"], shown["uuid"], shown["state"]) == ("nightly", mutex.uuid, "ok")
        assert (shown["pid"], shown["reason"]) == (os.getpid(), "rebuild totals")
        assert shown["fencing_token"] == mutex.fencing_token
        whole = get(dash, "/api/locks/nightly")
        assert "test_dash_service.py" in whole["backtrace"]
        assert whole["queue"] == []
    wait_until(lambda: get(dash, "/api/locks")["total"] == 0)
    assert status(dash, "/api/locks/nightly") == 404


NAMES = ("deploy/prod", "deploy%2Fprod", "..", ".", "a b?c#d", "/x/", "🔒", "../etc", "é" * 100)


def test_names_stay_apart_on_the_way_through_the_server(dash: Service, store: EtcdStore) -> None:
    """waitress decodes a path once, and that once is all: as in the keyspace."""
    held = [ClusterMutex(name, store=store) for name in NAMES]
    for mutex in held:
        mutex.acquire()
    wait_until(lambda: get(dash, "/api/locks")["total"] == len(NAMES))
    for mutex in held:
        name = quote(mutex.name, safe="")
        for target in (f"/api/locks/{name}", f"/api/lock?name={name}"):
            assert get(dash, target)["uuid"] == mutex.uuid, target
        mutex.release()


def test_locks_that_others_wrote_are_shown_as_far_as_they_go(
    dash: Service, root: str, etcdctl: Callable[..., str]
) -> None:
    """By hand, half written, no UTF-8, far too long, with keys of the future."""
    values = {"uuid": "u1", "hostname": "by-hand", "alert_at": "99999999999"}
    for key, value in values.items():
        etcdctl("put", f"{root}/locks/by-hand/{key}", value)
    etcdctl("put", f"{root}/locks/odd/uuid", "u2")
    etcdctl("put", f"{root}/locks/odd/alert_at", "tomorrow")
    etcdctl("put", f"{root}/locks/odd/colour", "red")
    etcdctl("put", f"{root}/locks/long/uuid", input="x" * 1_000_000)
    etcdctl("put", f"{root}/queue/by-hand/w1", "{not json")
    etcdctl("put", f"{root}/removed/gone/u9", '{"how": 7, "pid": "x", "removed_by": "me"}')

    locks = wait_until(lambda: (found := get(dash, "/api/locks"))["total"] == 3 and found)["locks"]
    assert {each["name"]: each["state"] for each in locks} == {
        "by-hand": "ok",
        "odd": "broken",
        "long": "broken",
    }
    wait_until(lambda: get(dash, "/api/removed")["total"] == 1)
    for path in ("/", "/lock/by-hand", "/lock/odd", "/lock/long", "/removed", "/lock/gone"):
        assert status(dash, path) == 200
    assert 'mutexdash_locks{state="broken"} 2.0' in raw(dash, "/metrics")[1]


# ---------------------------------------------------------------- etcd away


def test_with_etcd_away_it_shows_the_last_known_state_and_goes_on(own_etcd: Etcd) -> None:
    settings = Settings(endpoints=(own_etcd.endpoint,))
    store = etcd_store(settings)
    with start_service(["mutexdash", "--url", settings.url(), *ANY_PORT]) as dash:
        mutex = ClusterMutex("held", store=store)
        mutex.acquire()
        wait_until(lambda: status(dash, "/readyz") == 200 and get(dash, "/api/locks")["total"])
        own_etcd.stop()
        wait_until(lambda: not get(dash, "/api/locks")["connected"], what="etcd to be missed")
        assert get(dash, "/api/locks")["total"] == 1
        assert (status(dash, "/"), status(dash, "/lock/held")) == (200, 200)
        assert status(dash, "/api/locks/held") == 503
        own_etcd.start()
        wait_until(lambda: get(dash, "/api/locks")["connected"], what="etcd to be seen again")
        mutex.release()
        wait_until(lambda: get(dash, "/api/locks")["total"] == 0)
    store.close()


def test_without_etcd_it_waits_and_says_so(tmp_path: Any) -> None:
    command = ["mutexdash", "--url", "etcd://127.0.0.1:1/x", *ANY_PORT]
    with start_service(command) as dash:
        assert wait_until(lambda: status(dash, "/healthz")) == 200
        assert (status(dash, "/readyz"), status(dash, "/"), status(dash, "/api/locks")) == (
            503,
            503,
            503,
        )
        began = time.monotonic()
        assert dash.terminate() == 0
        assert time.monotonic() - began < 20


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(dash: Service, number: int) -> None:
    url, began = dash.url, time.monotonic()
    dash.process.send_signal(number)
    assert dash.process.wait(30) == 0
    assert time.monotonic() - began < 20
    first, *rest = dash.log_text().splitlines()
    assert f"Listening on {url}," in first
    assert any(f"Ending on {signal.Signals(number).name}" in line for line in rest)
    assert "Traceback" not in dash.log_text()


def test_every_flag_is_a_variable_too(settings: Settings) -> None:
    variables = {
        "MUTEXDASH_URL": settings.url(),
        "MUTEXDASH_LISTEN": "127.0.0.1:0",
        "MUTEXDASH_LOG_FORMAT": "json",
    }
    with start_service(["mutexdash"], env=variables) as dash:
        wait_until(lambda: status(dash, "/readyz") == 200)
        assert settings.url() in json.loads(dash.log_text().splitlines()[0])["message"]


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:80"])
def test_it_listens_elsewhere_only_when_told_that_there_is_no_login(address: str) -> None:
    with start_service(["mutexdash", "--listen", address]) as dash:
        assert dash.process.wait(30) == 2
        assert "--no-auth" in dash.log_text()
        assert "Listening on http" not in dash.log_text()


def test_with_no_auth_and_names_it_listens_anywhere(settings: Settings) -> None:
    command = ["mutexdash", "--url", settings.url(), "--listen", "0.0.0.0:0", "--no-auth"]
    with start_service(command) as refused:
        assert refused.process.wait(30) == 2
        assert "--allowed-host" in refused.log_text()
    with start_service([*command, "--allowed-host", "locks.example"]) as dash:
        wait_until(lambda: raw(dash, "/readyz", host="10.1.2.3")[0] == 200)
        assert raw(dash, "/", host="locks.example")[0] == 200
        assert raw(dash, "/", host="evil.example")[0] == 421


def test_an_address_in_use_is_told_in_a_sentence(dash: Service, settings: Settings) -> None:
    taken = urlsplit(dash.url).netloc
    with start_service(["mutexdash", "--url", settings.url(), "--listen", taken]) as second:
        assert second.process.wait(30) == 1
        assert f"Can't listen on {taken}" in second.log_text()
        assert "Traceback" not in second.log_text()
