"""A try of a bucket ends on time, whatever the other side does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from google.auth.credentials import AnonymousCredentials

from lockclient import Settings, StoreUnavailable, open_store
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read, Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import Answer, BucketServer

BUCKET = Settings.load("gs://locks")


@pytest.mark.parametrize("head", [False, True])
def test_a_dripping_answer_is_no_answer(
    server: BucketServer, store: ServiceStore, head: bool
) -> None:
    body = b'{"generation":"17","metageneration":"1"}' + b" " * 300
    answer = Answer(200, body, {"X-More": "x" * 1000}, drip=0.05, drip_all=head)
    server.instead = lambda _: answer
    with pytest.raises(StoreUnavailable, match=r"did not answer in time \(no answer") as caught:
        store.ask(Take(holder()), Deadline.after(1.0))
    assert caught.value.unknown
    assert 0 < server.dripped < (1000 if head else len(body))


@contextmanager
def tunnel_that_says(said: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Run a proxy that answers each request like this and closes; None: it never answers.

    Yield where it listens, and the first lines of what it is asked.
    """
    asked: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connections.append(connection)
                connection.settimeout(5.0)
                asked.append(connection.recv(1 << 16))
                if said is not None:
                    connection.sendall(said)
                    connection.close()

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        over.set()
        thread.join(60)
        for connection in connections:
            connection.close()


Silent = Callable[[int, list[str]], None]


@pytest.fixture
def silent(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    """Give the bucket's host so many addresses that nobody answers, and then these."""
    port = urlsplit(server.url).port or 0
    with ExitStack() as stack:

        def resolve(silent: int, answering: list[str]) -> None:
            addresses = [f"127.0.1.{i}" for i in range(1, silent + 1)]
            for each in addresses:
                listener = stack.enter_context(socket.socket())
                listener.bind((each, port))
                listener.listen(0)
                # A queue that is full: what comes now is dropped, as by a firewall.
                filler = stack.enter_context(socket.socket())
                filler.connect((each, port))
            found = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
                for each in (*addresses, *answering)
            ]
            ask = socket.getaddrinfo

            def answer(host: Any, *args: Any, **how: Any) -> Any:
                return found if host == "a.bucket.test" else ask(host, *args, **how)

            monkeypatch.setattr(socket, "getaddrinfo", answer)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://a.bucket.test:{port}")

        yield resolve


def test_a_host_of_many_addresses_has_no_more_time(silent: Silent) -> None:
    """Google's has a dozen: where nobody answers, they share the time of a try."""
    silent(20, [])
    begun = monotonic()
    with pytest.raises(StoreUnavailable):
        open_store(BUCKET).ask(Read(NAME), Deadline.after(1.0))
    assert monotonic() - begun < 10  # one after the other they would take 20 s


def test_a_silent_address_leaves_time_for_another(silent: Silent) -> None:
    silent(1, ["127.0.0.1"])
    other = open_store(BUCKET)
    assert isinstance(other.ask(Read(NAME), Deadline.after(60)), ReadResult)
    other.close()


@pytest.mark.parametrize("how", ["refused", "hangs", "closes", "no TLS behind it"])
def test_an_unsent_request_has_a_known_outcome(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    said = {
        "refused": b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        "hangs": None,
        "closes": b"",
        "no TLS behind it": b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n",
    }[how]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://a.bucket.test")
    with tunnel_that_says(said) as (proxy, asked):
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy}")
        other = open_store(BUCKET, credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
        with pytest.raises(StoreUnavailable) as told:
            other.ask(Take(holder()), Deadline.after(1.0))
        other.close()
        assert asked
        assert asked[0].startswith(b"CONNECT a.bucket.test:443 ")
    assert not told.value.unknown
