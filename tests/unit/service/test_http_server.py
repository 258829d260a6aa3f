"""The HTTP server: which request is the last of a connection, and what runs when it closes."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from lockclient.service.http_server import HttpServer

SECOND = b"GET /second HTTP/1.1\r\nHost: x\r\nX-Forwarded-User: root\r\n\r\n"
LAST = SECOND.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    body = environ["wsgi.input"].read() + environ["PATH_INFO"].encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def answers(request: bytes) -> bytes:
    return received_from(HttpServer(echo, ("127.0.0.1", 0), proxied=True), request)


def received_from(server: HttpServer, request: bytes) -> bytes:
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), 30) as made:
            made.sendall(request)
            received = b""
            while part := made.recv(65536):
                received += part
            return received
    finally:
        server.close()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        # A proxy that reads Content-Length passes SECOND on as a part of the body.
        (b"Content-Length: %d\r\nTransfer-Encoding: chunked" % (5 + len(SECOND)), b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"4\r\nbody\r\n0\r\n\r\n"),
        (b"Content-Length: 4", b"body"),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_body_ends_a_connection_and_nothing_else_does(
    method: bytes, headers: bytes, body: bytes
) -> None:
    """Else a client could smuggle one past a proxy, which would count as the proxy's own."""
    kept = answers(SECOND + LAST)
    assert kept.count(b"HTTP/1.1 200") == kept.count(b"Content-Length: 7") == 2
    received = answers(
        method + b" /first HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % headers + body + LAST
    )
    assert received.count(b"HTTP/1.1 200") == 1
    assert b"/first" in received
    assert b"Connection: close" in received


def test_a_request_that_outlasts_the_server_ends_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_closed = threading.Event()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        threading.Thread(target=close).start()
        is_closed.wait(30)
        return echo(environ, start_response)

    def close() -> None:
        server.close()
        is_closed.set()

    server = HttpServer(answer, ("127.0.0.1", 0))
    with caplog.at_level(logging.ERROR):
        received = received_from(server, LAST)
    assert b"/second" in received
    assert not caplog.records
