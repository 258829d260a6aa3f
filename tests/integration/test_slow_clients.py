"""Slow clients against the programs themselves: as many as can be, before any login."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from tests.support.processes import Figure, Service, start_service, wait_until

MANY = 1100


@pytest.fixture
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Slowloris:
    """Connections that begin a request, each with another byte now and then, opened ever anew."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._end = threading.Event()
        self.opened = 0
        self._there: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.01):
            if len(self._there) < MANY:
                self._open()
            self._there = [each for each in self._there if self._goes_on(each)]
        for each in self._there:
            each.close()

    def _open(self) -> None:
        for _ in range(min(100, MANY - len(self._there))):
            with suppress(OSError):
                made = socket.create_connection(("127.0.0.1", self._port), 1)
                made.settimeout(1)
                made.sendall(b"GET / HTTP/1.1\r\n")
                self._there.append(made)
                self.opened += 1

    def _goes_on(self, connection: socket.socket) -> bool:
        try:
            connection.sendall(b"X")
        except OSError:
            connection.close()
            return False
        return True


def asked(port: int, path: str) -> tuple[int, float]:
    """Ask, and return the status and how many seconds the answer took."""
    client, began = http.client.HTTPConnection("127.0.0.1", port, 20), time.monotonic()
    try:
        client.request("GET", path)
        return client.getresponse().status, time.monotonic() - began
    finally:
        client.close()


@pytest.mark.usefixtures("_many_files")
@pytest.mark.parametrize(
    ("program", "path", "code"), [("unlocker", "/metrics", 200), ("mutexdash", "/", 503)]
)
def test_slow_clients_keep_nobody_out(program: str, path: str, code: int, figure: Figure) -> None:
    """Without etcd: who probes, scrapes or looks is told so, with more slow clients than there is
    room for, all from one address."""
    command = [program, "--url", "etcd://127.0.0.1:1/x", "--listen", "127.0.0.1:0"]
    with start_service(command) as service:
        port = port_of(service)
        wait_until(lambda: asked(port, "/healthz")[0] == 200)
        slow = Slowloris(port)
        try:
            wait_until(lambda: slow.opened >= MANY, what="more than there is room for")
            answers = [asked(port, each) for _ in range(20) for each in ("/healthz", path)]
        finally:
            slow.stop()
    assert {status for status, _ in answers[::2]} == {200}
    assert {status for status, _ in answers[1::2]} == {code}
    worst = max(seconds for _, seconds in answers)
    figure(
        f"{program} under {slow.opened:,} slow connections, {MANY:,} at a time: 40 answers, the "
        f"slowest after {worst:.2f} s"
    )


def port_of(service: Service) -> int:
    port = urlsplit(service.url).port
    assert port is not None
    return port
