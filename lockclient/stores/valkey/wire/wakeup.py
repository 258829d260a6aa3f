"""Wakes a thread that polls file descriptors."""

from __future__ import annotations

import socket
from contextlib import suppress


class WakeUp:
    """A self-pipe: `fd` can be read from once it was set, until it is cleared."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()

    def set(self) -> None:
        with suppress(OSError):  # full: it wakes anyway; closed: nobody polls any more
            self._writer.send(b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
