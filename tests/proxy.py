"""A TCP proxy in front of an etcd that loses answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType


class Proxy:
    """Passes bytes on to `target` (`host:port`), unless it is told otherwise.

    It may be told to break the connection at the next answer, so that a request is done and
    nobody hears of it.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._cut = threading.Event()
        self._sockets: list[socket.socket] = []

    def lose_next_answer(self) -> None:
        """Break the connection when the server next says something, before it is passed on."""
        self._cut.set()

    def lost(self) -> bool:
        """Tell whether an answer was lost since."""
        return not self._cut.is_set()

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(self._listener, *self._sockets)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._target)
                self._sockets += [client, upstream]
                for job in (self._up, self._down):
                    threading.Thread(target=job, args=(client, upstream), daemon=True).start()

    def _up(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                upstream.sendall(data)
        self._close(client, upstream)

    def _down(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                if self._cut.is_set():
                    time.sleep(0.2)  # these may be a mere acknowledgement: let the request be done
                    self._cut.clear()
                    break
                client.sendall(data)
        self._close(client, upstream)

    @staticmethod
    def _close(*sockets: socket.socket) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
