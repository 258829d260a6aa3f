"""Wakes a thread that polls file descriptors, and hands it connections that others open.

A round waits for those as for answers: who has a connection already is asked at once, and one that
is let in too late to have a vote in this round has one in the next.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from lockclient.stores.valkey.wire.connection import Connection


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


class PendingConnections:
    """What is opened for one round; `fd` can be read from when something came of one.

    Args:
        servers: that a connection is opened to.

    Attributes:
        awaited: those of them from which nothing came yet.
        closed: nobody waits for them any more.
    """

    def __init__(self, servers: Iterable[int]) -> None:
        self.awaited = set(servers)
        self.closed = False
        self._wakeup = WakeUp()
        self.fd = self._wakeup.fd
        self._lock = Lock()
        self._new: list[tuple[int, Connection | None]] = []

    def put(self, i: int, connection: Connection | None) -> bool:
        """Hand in a server's connection, None: there is none. False: the round is over."""
        with self._lock:
            if not self.closed:
                self._new.append((i, connection))
                self._wakeup.set()
            return not self.closed

    def take_new(self) -> list[tuple[int, Connection | None]]:
        """Return what came since this was asked last."""
        with self._lock:
            self._wakeup.clear()
            new, self._new = self._new, []
        self.awaited.difference_update(i for i, _ in new)
        return new

    def close(self) -> list[tuple[int, Connection | None]]:
        """End it: return what came in the last moment; of the others no more is taken."""
        with self._lock:
            self.closed = True
            self._wakeup.close()
            return self._new
