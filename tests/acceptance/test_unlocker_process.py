"""The `unlocker` program, as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import BIN, run_to_end, start_service, wait_until
from tests.support.unlocker_process import (
    UNLOCKER,
    fetch,
    ready,
    unlocker,
    unready,
    when_ready,
)
from unlocker.cli import main

IN_TIME = 20
"""Seconds in which it is gone: its own patience is four, the rest is a busy machine's."""


def test_variables_flags_and_pages(settings: Settings) -> None:
    variables = {
        "UNLOCKER_URL": settings.url(),
        "UNLOCKER_LISTEN": "127.0.0.1:0",
        "UNLOCKER_MAX_REMOVALS": "7",
        "UNLOCKER_LOG_FORMAT": "json",
        "UNLOCKER_LOG_LEVEL": "info",
    }
    with start_service([*UNLOCKER, "--max-removals", "25"], env=variables) as service:
        wait_until(lambda: ready(service), what="readiness")
        first = json.loads(service.log_text().splitlines()[0])
        for said in (service.url, settings.url(), "25 removals a minute"):
            assert said in first["message"]
        assert "allow only Prometheus" not in service.log_text(), "it is reached from here alone"
        assert fetch(service, "/healthz") == (200, "alive\n")
        assert fetch(service, "/readyz") == (200, "ready\n")
        assert fetch(service, "/")[0] == 200
        assert fetch(service, "/nothing")[0] == 404
        assert "clustermutex_unlocker_info{" in fetch(service, "/metrics")[1]


class TestTheEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_with_status_0_and_withdraws_its_announcement(
        self, settings: Settings, etcdctl: Callable[..., str], number: int
    ) -> None:
        path = f"{settings.root}/unlockers/"
        with unlocker(settings) as service:
            wait_until(lambda: etcdctl("get", "--prefix", path), what="the heartbeat")
            service.process.send_signal(number)
            assert service.process.wait(IN_TIME) == 0
            assert etcdctl("get", "--prefix", path) == ""
            assert "Traceback" not in service.log_text()

    def test_sigterm_at_the_start_ends_it_in_time(self, settings: Settings) -> None:
        with unlocker(settings) as service:
            assert service.url
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0

    @pytest.mark.parametrize("how", ["stopped", "frozen"])
    def test_sigterm_without_etcd_ends_it_in_time(
        self, own_etcd: Etcd, root: str, how: str
    ) -> None:
        settings = Settings(endpoints=(own_etcd.endpoint,), root=root)
        with when_ready(unlocker(settings)) as service:
            assert own_etcd.process is not None
            if how == "stopped":
                own_etcd.stop()
            else:
                os.kill(own_etcd.process.pid, signal.SIGSTOP)
            assert unready(service)
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0
            assert "Traceback" not in service.log_text()

    def test_sigterm_without_any_etcd_ends_it_in_time(self) -> None:
        nowhere = Settings(endpoints=("127.0.0.1:9",))
        with unlocker(nowhere) as service:
            assert fetch(service, "/readyz")[0] == 503
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0


class TestWithoutEtcd:
    def test_it_may_start_before_etcd(self, etcd_binary: str, own_etcd: Etcd, root: str) -> None:
        own_etcd.stop()
        with unlocker(Settings(endpoints=(own_etcd.endpoint,), root=root)) as service:
            assert own_etcd.endpoint in unready(service)
            own_etcd.start()
            wait_until(lambda: ready(service), what="readiness")

    def test_a_scrape_asks_etcd_nothing(self, own_etcd: Etcd, root: str) -> None:
        settings = Settings(endpoints=(own_etcd.endpoint,), root=root)
        with when_ready(unlocker(settings)) as service:
            assert own_etcd.process is not None
            os.kill(own_etcd.process.pid, signal.SIGSTOP)
            for _ in range(5):
                assert fetch(service, "/metrics")[0] == 200


class TestBadFlags:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            (["--grace", "10"], "--grace"),  # up to 0.1.0: no wall clock is judged by any more
            (["--listen", "9722"], "--listen"),
            (["--url", "consul://localhost"], "--url"),
            (["--url", "etcd://nowhere"], "nowhere"),
            (["--no-such-thing"], "--no-such-thing"),
            (["--allowed-host", "http://x"], "--allowed-host"),
        ],
    )
    @pytest.mark.usefixtures("logging_as_before")
    def test_bad_flags_are_named(self, options: list[str], word: str) -> None:
        done = CliRunner().invoke(main, ["--listen", "127.0.0.1:0", *options])
        assert done.exit_code == 2
        assert word in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr

    def test_a_port_in_use_is_named(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"127.0.0.1:{other.getsockname()[1]}"
            done = run_to_end(*UNLOCKER, "--listen", address, status=1)
        assert address in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_console_script_is_the_same() -> None:
    assert "--max-removals" in run_to_end(BIN / "unlocker", "--help").stdout
