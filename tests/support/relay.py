"""A TCP relay before a server: it delays, swallows or cuts data, and counts connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable


class Relay:
    """Passes on what either side says; a context manager.

    Args:
        address, port: where it listens; 0 is any port.

    Attributes:
        target: the server.
        endpoint: where clients reach it.
        accepted: how many connections there were.
        delay: seconds after which each side hears what the other one has said.
        change: makes of what was said what is heard.
    """

    def __init__(self, target: str, address: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self._listener = socket.create_server((address, port))
        self.endpoint = f"{address}:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.delay = 0.0
        self.change: Callable[[bytes], bytes] = bytes
        self._whole = True
        self._requests_pass, self._answers_pass = threading.Event(), threading.Event()
        self._requests_pass.set()
        self._answers_pass.set()
        self._swallows = threading.Event()
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Close all connections, and those to come as soon as they are made."""
        self._whole = False
        with self._lock:
            _close(*self._ends)
            self._ends.clear()

    def hold(self, *, requests: bool) -> None:
        """Cut one way, of requests or of answers, until `mend`: what is lost is then sent again,
        as TCP does it."""
        (self._requests_pass if requests else self._answers_pass).clear()

    def mend(self) -> None:
        self._whole = True
        self._requests_pass.set()
        self._answers_pass.set()

    def swallow(self) -> None:
        """Pass on nothing more of what is connected now, without a word; new ones are well."""
        self._swallows.set()
        self._swallows = threading.Event()

    def swap(self, other: Relay) -> None:
        """Stand before the other one's server from now on, and it before this one's."""
        for relay in (self, other):
            relay.cut()
        self.target, other.target = other.target, self.target
        for relay in (self, other):
            relay.mend()

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; those to come are refused."""
        self.cut()
        self.mend()  # a waiting client finds its connection closed
        _close(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                self._join(client)

    def _join(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if not self._whole:
                    raise ConnectionError("the cable is cut")
                host, _, port = self.target.rpartition(":")
                server = socket.create_connection((host, int(port)))
            except OSError:
                _close(client)
                return
            self._ends |= {client, server}
        ways = ((client, server, self._requests_pass), (server, client, self._answers_pass))
        for source, sink, passes in ways:
            how = (source, sink, passes, self._swallows)
            threading.Thread(target=self._pass_on, args=how, daemon=True).start()

    def _pass_on(
        self,
        source: socket.socket,
        sink: socket.socket,
        passes: threading.Event,
        swallows: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                passes.wait()
                if not swallows.is_set():
                    sink.sendall(self.change(data))
        if not swallows.is_set():  # else the other side is not to see the end either
            _close(source, sink)


def _close(*sockets: socket.socket) -> None:
    for connection in sockets:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
