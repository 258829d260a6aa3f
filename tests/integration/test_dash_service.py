"""The program `mutexdash` itself, against a real etcd."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from lockclient import ClusterMutex
from lockclient.stores.settings import Settings
from tests.support.board import hashed
from tests.support.pages import request
from tests.support.processes import Service, start_service, wait_until
from tests.support.unlocker_process import mutexdash, when_ready


@pytest.fixture
def dash(settings: Settings) -> Iterator[Service]:
    with when_ready(mutexdash(settings)) as service:
        yield service


def status(service: Service, path: str) -> int:
    return request(service.url, path).status


def get(service: Service, path: str) -> Any:
    answer = request(service.url, path)
    assert answer.status == 200, answer.text
    return answer.json


# ---------------------------------------------------------------- what it shows


NAMES = ("deploy/prod", "deploy%2Fprod", "..", ".", "a b?c#d", "/x/", "🔒", "../etc", "é" * 100)


def test_names_stay_apart_on_the_way_through_the_server(dash: Service, store: Any) -> None:
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


# ---------------------------------------------------------------- etcd away


def test_without_etcd_the_dashboard_waits_and_says_so() -> None:
    with mutexdash(Settings(endpoints=("127.0.0.1:1",))) as dash:
        assert wait_until(lambda: status(dash, "/healthz")) == 200
        assert {status(dash, path) for path in ("/readyz", "/", "/api/locks")} == {503}
        began = time.monotonic()
        assert dash.terminate() == 0
        assert time.monotonic() - began < 20


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_status_0(dash: Service, number: int) -> None:
    url, began = dash.url, time.monotonic()
    dash.process.send_signal(number)
    assert dash.process.wait(30) == 0
    assert time.monotonic() - began < 20
    first, *rest = dash.log_text().splitlines()
    assert f"Listening on {url}," in first
    assert any(f"Ending on {signal.Signals(number).name}" in line for line in rest)
    assert "Traceback" not in dash.log_text()


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        ("--listen 0.0.0.0:0", True),
        ("--listen 127.0.0.1:0", False),
        ("--listen 0.0.0.0:0 --proxy-hops 1 --trusted-proxy 10.0.0.1", False),
    ],
)
def test_passwords_in_clear_text_are_logged(
    settings: Settings, tmp_path: Path, flags: str, warned: bool
) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{hashed('x')}\n")
    login = ("--auth", "basic", "--htpasswd", str(users))
    words = ["mutexdash", "--url", settings.url(), *login, *flags.split()]
    with start_service(words) as dash:
        wait_until(lambda: status(dash, "/readyz") == 200)
        assert ("Passwords come to 0.0.0.0 unencrypted" in dash.log_text()) == warned


def test_an_address_in_use_is_a_one_line_error(dash: Service, settings: Settings) -> None:
    taken = urlsplit(dash.url).netloc
    with mutexdash(settings, "--listen", taken) as second:
        assert second.process.wait(30) == 1
        assert f"Can't listen on {taken}" in second.log_text()
        assert "Traceback" not in second.log_text()
