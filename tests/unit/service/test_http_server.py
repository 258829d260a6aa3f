"""The HTTP server: whatever clients do, each has a deadline, and others are answered."""

from __future__ import annotations

import http.client
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from lockclient.service.http_server import Bounds, HttpServer, _Channel
from tests.support.processes import wait_until

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
LONG = 600.0
"""Seconds that no test lasts: what is ended was not ended by this bound."""
PATIENT = {"header": LONG, "body": LONG, "idle": LONG, "reading": LONG}
PROBES = ("/healthz", "/readyz", "/metrics")
LARGE = 32 * 1024 * 1024
"""Bytes that no socket's buffer takes."""


class App:
    """A WSGI application that shows what the server does with it."""

    def __init__(self) -> None:
        self.files: list[IO[bytes]] = []
        self.busy = 0
        self.go_on = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        body = environ["wsgi.input"].read() or b"here\n"
        if path == "/busy" or environ["REQUEST_METHOD"] == "POST":
            self.busy += 1
            self.go_on.wait(LONG)
        size = LARGE if path in ("/file", "/large") else len(body)
        start_response("200 OK", [("Content-Length", str(size))])
        if path == "/file":
            file = tempfile.TemporaryFile()  # noqa: SIM115 - the server closes it
            file.truncate(LARGE)
            self.files.append(file)
            found: Iterable[bytes] = environ["wsgi.file_wrapper"](file)
            return found
        return [b"x" * LARGE] if path == "/large" else [body]


@contextmanager
def serving(app: App, **bounds: Any) -> Iterator[int]:
    server = HttpServer(app, ("127.0.0.1", 0), bounds=Bounds(**{**PATIENT, **bounds}))
    server.start()
    port = urlsplit(server.url).port
    assert port is not None
    try:
        yield port
    finally:
        app.go_on.set()
        server.close()


Connect = Callable[..., socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that opens a connection, from an address of choice."""
    there: list[socket.socket] = []

    def connected(port: int, said: bytes = b"", by: str = "127.0.0.1") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), 30, (by, 0))
        there.append(made)
        made.sendall(said)
        return made

    yield connected
    for connection in there:
        connection.close()


def ended(connection: socket.socket, say: bytes = b"") -> bool:
    """Tell whether the server has ended a connection, after saying something to it."""
    connection.settimeout(0.05)
    try:
        connection.sendall(say)
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def receive(connection: socket.socket, end: bytes) -> None:
    """Read an answer to its end."""
    connection.settimeout(30)
    answer = b""
    while not answer.endswith(end):
        answer += connection.recv(4096)
        assert answer


def status(port: int, path: str = "/", by: str = "127.0.0.1", method: str = "GET") -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, 60, source_address=(by, 0))
    try:
        client.request(method, path, headers={"Connection": "close"})
        return client.getresponse().status
    finally:
        client.close()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("bounds", "said", "say"),
    [
        ({"header": 1.0}, b"", b""),
        ({"header": 1.0}, GET, b"A"),
        ({"body": 1.0}, GET + b"Content-Length: 9000\r\n\r\n", b"A"),
        ({"idle": 1.0}, GET + b"\r\n", b""),
        ({"header": 1.0}, GET + b"\r\n" + GET, b"A"),
    ],
    ids=["nothing", "header", "body", "nothing more", "second header"],
)
def test_who_does_not_go_on_in_time_is_ended(
    connect: Connect, bounds: dict[str, float], said: bytes, say: bytes
) -> None:
    """Not by the time since the last byte: one comes now and then."""
    with serving(App(), **bounds) as port:
        connection = connect(port, said)
        if said.startswith(GET + b"\r\n"):
            receive(connection, b"here\n")
        wait_until(lambda: ended(connection, say), what="the connection to be ended")
        assert status(port) == 200


@pytest.mark.parametrize(
    "header", ["Content-Length: " + "9" * 5000, "Content-Length: -1", "Transfer-Encoding: x"]
)
def test_a_crooked_header_is_answered_and_is_no_error_of_ours(
    connect: Connect, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    with serving(App()) as port:
        connection = connect(
            port, b"POST / HTTP/1.1\r\nHost: x\r\n" + header.encode() + b"\r\n\r\n"
        )
        connection.settimeout(30)
        assert connection.recv(4096).split()[1] in (b"400", b"501")
    # waitress counts a thread that has not run yet as busy, and warns of its queue.
    assert not [record for record in caplog.records if record.name != "waitress.queue"]


def test_a_request_that_comes_in_pieces_is_answered(connect: Connect) -> None:
    with serving(App()) as port:
        connection = connect(port)
        for piece in (GET[:9], GET[9:] + b"Content-Length: 4\r\n\r\n", b"ab", b"cd"):
            assert not ended(connection, piece)
        receive(connection, b"abcd")


@pytest.mark.parametrize("path", ["/file", "/large"])
def test_who_does_not_read_is_ended_and_its_file_is_gone(connect: Connect, path: str) -> None:
    """As it stands: the server need not be able to send anything for that."""
    app = App()
    with serving(app, reading=1.0, slowest=10 * LARGE, unread=2 * LARGE) as port:
        connection = connect(port, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        wait_until(lambda: cut_off(connection), what="the connection to be ended")
        wait_until(lambda: all(file.closed for file in app.files), what="the file to be closed")
        assert len(app.files) == (path == "/file")


def cut_off(connection: socket.socket) -> bool:
    """Tell whether it was ended with an answer half sent, which is not read here."""
    connection.settimeout(0.05)
    try:
        connection.sendall(b"x")  # is refused once the other side is gone
    except OSError:
        return True
    return False


def test_a_file_is_closed_when_it_was_sent() -> None:
    app = App()
    with serving(app) as port:
        client = http.client.HTTPConnection("127.0.0.1", port, 60)
        client.request("GET", "/file")
        assert len(client.getresponse().read()) == LARGE
        wait_until(lambda: app.files[0].closed, what="the file to be closed")
        client.close()


def test_no_thread_waits_for_a_reader_and_answers_are_not_kept_without_end(
    connect: Connect,
) -> None:
    """Of answers that nobody reads only so much is kept: the largest goes first."""
    with serving(App(), unread=3 * LARGE) as port:
        ask = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
        one, two, greedy = connect(port, ask), connect(port, ask), connect(port, ask * 4)
        wait_until(lambda: cut_off(greedy), what="the one with most unread to be ended")
        for quiet in (one, two):
            quiet.settimeout(30)
            assert quiet.recv(8).startswith(b"HTTP/1.1")
        assert [status(port) for _ in range(8)] == [200] * 8


@pytest.mark.parametrize(
    ("method", "paths"), [("GET", ("/busy",) * 8), ("POST", (*PROBES, *PROBES))]
)
def test_probes_are_answered_while_all_threads_are_busy(
    method: str, paths: tuple[str, ...]
) -> None:
    """What only looks like a probe waits with the others: a POST to a probe's path may have the
    application hash a password."""
    app = App()
    with ThreadPoolExecutor(len(paths)) as threads, serving(app) as port:
        for path in paths:
            threads.submit(status, port, path, method=method)
        wait_until(lambda: app.busy == 4, what="the ordinary threads to be busy")
        assert [status(port, path) for path in PROBES] == [200] * 3
        assert app.busy == 4
        app.go_on.set()


def test_of_too_many_the_one_goes_that_waited_longest(connect: Connect) -> None:
    """Who asks is answered, however many connections there are from the same network."""
    with serving(App(), of_one_network=20) as port:
        first = connect(port, GET)
        others = [connect(port, GET) for _ in range(19)]
        elsewhere = connect(port, GET, "127.0.9.1")
        assert status(port) == 200
        wait_until(lambda: ended(first), what="the first one to be ended")
        assert sum(map(ended, others)) <= 1, "the one that has gone for `status`, at most"
        assert not ended(elsewhere)


def test_a_first_byte_makes_no_connection_younger(connect: Connect) -> None:
    with serving(App(), of_one_network=2) as port:
        first, second = connect(port), connect(port)
        assert status(port, by="127.0.9.1") == 200
        first.sendall(GET)
        assert status(port, by="127.0.9.1") == 200, "the byte has been read"
        third = connect(port)
        wait_until(lambda: ended(first), what="the first one to be ended")
        assert not ended(second)
        assert not ended(third)


def test_if_all_are_too_many_the_largest_network_loses(connect: Connect) -> None:
    with serving(App(), connections=30, of_one_network=25) as port:
        few = [connect(port, GET, "127.0.9.1") for _ in range(5)]
        many = [connect(port, GET) for _ in range(25)]
        new = [connect(port, GET, f"127.0.{number}.1") for number in range(10, 20)]
        wait_until(lambda: sum(map(ended, many)) >= 10, what="room to be made")
        assert not any(map(ended, few + new))
        assert status(port, by="127.0.9.2") == 200


def test_its_threads_end_with_it() -> None:
    before = set(threading.enumerate())  # some may be an earlier test's, on their way out
    with serving(App()) as port:
        assert status(port) == 200
        its_own = set(threading.enumerate()) - before
        assert len(its_own) > 4
    wait_until(lambda: not any(one.is_alive() for one in its_own), what="the threads to end")


# ---------------------------------------------------------------- what waitress keeps to itself

PRIVATE: dict[tuple[object, str], str] = {
    (wasyncore, "loop"): "nothing is served: it is the loop, a turn of which ends the late ones",
    (HTTPChannel, "handle_close"): "no connection is ended, however late",
    (HTTPChannel, "service"): "a connection's duty is never another one after an answer",
    (HTTPChannel, "request"): "a header that never ends has no deadline",
    (HTTPChannel, "total_outbufs_len"): "one that reads nothing is never ended",
    (TcpWSGIServer, "handle_accept"): "who opens many connections makes the others wait",
    (TcpWSGIServer, "add_task"): "probes wait behind viewers",
    (TcpWSGIServer, "maintenance"): "waitress ends connections by its own rules",
}


@pytest.mark.parametrize(("place", "breaks"), PRIVATE.items(), ids=lambda found: found[1])
def test_waitress_still_has_what_it_keeps_to_itself(place: tuple[object, str], breaks: str) -> None:
    """So its next major version, which may have none of it, is not taken."""
    assert hasattr(*place), breaks
    (pinned,) = re.findall(r'"(waitress[^"]*)"', PYPROJECT.read_text(encoding="utf-8"))
    assert not Requirement(pinned).specifier.contains(f"{int(version('waitress')[0]) + 1}.0")


def test_waitress_still_tells_what_is_unread_and_asked() -> None:
    """Else unread answers have no bound in memory, or who is being answered is ended as late."""
    server = HttpServer(App(), ("127.0.0.1", 0))
    (listener,) = server._listeners
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = _Channel(listener, ours, ("127.0.0.1", 1), listener.adj, map={})
        assert channel.requests == []
        channel.outbufs[-1].append(b"unread")
        assert channel.unread() == len(b"unread")
    server.close()
