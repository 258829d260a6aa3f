"""Slow clients against the programs themselves: probes and viewers are answered beside them."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockclient.service.http_server import MAX_ANSWER_BYTES, HttpServer
from tests.support.processes import start_service, wait_until

MANY = 200
ANSWER_TIMEOUT_S = 10
"""Seconds on a slow machine; the slow clients of a test stay until it ends."""


@contextmanager
def dripping(port: int) -> Iterator[None]:
    """Open many connections that begin a request, each with another byte now and then."""
    with ExitStack() as opened:
        connections = []
        for _ in range(MANY):
            made = opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            made.sendall(b"GET / HTTP/1.1\r\n")
            connections.append(made)
        end = threading.Event()

        def drip() -> None:
            while not end.wait(0.1):
                for connection in connections:
                    connection.sendall(b"X")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def status(port: int, path: str) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        client.request("GET", path)
        return client.getresponse().status
    finally:
        client.close()


@pytest.mark.parametrize(
    ("program", "path", "code"), [("unlocker", "/metrics", 200), ("mutexdash", "/", 503)]
)
def test_slow_clients_delay_no_probe(program: str, path: str, code: int) -> None:
    command = [program, "--url", "etcd://127.0.0.1:1/x", "--listen", "127.0.0.1:0"]
    with start_service(command) as service:
        port = urlsplit(service.url).port
        assert port is not None
        wait_until(lambda: status(port, "/healthz") == 200)
        with dripping(port):
            for _ in range(20):
                assert status(port, "/healthz") == 200
                assert status(port, path) == code


def large(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    size = MAX_ANSWER_BYTES if environ["PATH_INFO"] == "/large" else 1
    start_response("200 OK", [("Content-Length", str(size))])
    return [b"x" * size]


def test_unread_downloads_delay_no_client() -> None:
    server = HttpServer(large, ("127.0.0.1", 0))
    server.start()
    port = urlsplit(server.url).port
    assert port is not None
    with ExitStack() as opened:
        for _ in range(12):
            last = opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            last.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert last.recv(8, socket.MSG_PEEK) == b"HTTP/1.1"
        with dripping(port):
            assert [status(port, "/healthz") for _ in range(20)] == [200] * 20
        received = 0
        while part := last.recv(1 << 20):
            received += len(part)
        assert received > MAX_ANSWER_BYTES
    assert server.trouble() is None
    server.close()
    wait_until(lambda: server.trouble() is not None, what="the server's thread to end")
