"""Ended or hanging parts are noticed, stop systemd's watchdog, and end the process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient.service.supervision import SURE, Loop, Pulse, Supervisor, notify
from tests.support.processes import wait_until


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket that systemd reads."""
    name = f"{tmp_path.name}-{time.monotonic_ns()}"
    address = f"\0{name}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(address)
        heard.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        yield heard


def told(heard: socket.socket) -> list[str]:
    """Return all messages so far."""
    found = []
    while True:
        try:
            found.append(heard.recv(1000).decode())
        except BlockingIOError:
            return found


def test_systemd_is_notified_while_the_service_is_healthy(systemd: socket.socket) -> None:
    why: str | None = None
    supervisor = Supervisor(lambda: why)
    assert supervisor.check() is None
    assert told(systemd) == ["WATCHDOG=1"]
    why = "A bug."
    assert [supervisor.check() for _ in range(SURE - 1)] == [None] * (SURE - 1)
    why = None
    assert supervisor.check() is None
    assert told(systemd) == ["WATCHDOG=1"], "while it was sick, nothing"
    why = "A bug."
    assert [supervisor.check() for _ in range(SURE)] == [*[None] * (SURE - 1), "A bug."]
    assert told(systemd) == []


def test_an_unreachable_systemd_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "deaf"))
        for _ in range(5000):
            notify("WATCHDOG=1")


def test_a_check_that_raises_is_unhealthy() -> None:
    def fail() -> str | None:
        raise KeyError("a bug")

    supervisor = Supervisor(fail)
    reasons = [supervisor.check() for _ in range(SURE)]
    assert reasons[:-1] == [None] * (SURE - 1)
    assert "KeyError" in (reasons[-1] or "")


def test_a_pulse_is_late_by_its_interval_and_the_limit() -> None:
    pulse = Pulse("look", 60)
    assert pulse.trouble(0) is None
    said = pulse.trouble(-61) or ""
    assert said.startswith("The look hangs, or its thread has ended: the last one ended ")
    assert said.endswith(" ago, and there should be one every 1 min.")


def test_a_loop_survives_exceptions_and_is_missed_when_it_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []
    go_on = threading.Event()

    def work() -> None:
        runs.append(1)
        if len(runs) > 10:
            go_on.wait(60)
        if len(runs) % 5:
            raise RuntimeError("a bug")

    loop = Loop("work of a test", 0.01, work)
    assert loop.trouble(0) is None, "it was not started"
    loop.start()
    try:
        wait_until(lambda: len(runs) > 10, what="the runs")
        wait_until(lambda: loop.trouble(0.1), what="it to be missed")
    finally:
        loop.stop()
        go_on.set()
    begin = ("ERROR", "The work of a test failed, and is tried again.")
    end = ("WARNING", "The work of a test works again.")
    found = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert found[:4] == [begin, end, begin, end], "an outage is logged at begin and end"
    assert "RuntimeError: a bug" in caplog.text
