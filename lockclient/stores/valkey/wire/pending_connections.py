"""Connections that a round waits for while others open them.

It waits for them as for answers: who has a connection already is asked at once, and one that is let
in too late to have a vote in this round has one in the next.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from lockclient.stores.valkey.wire.connection import Connection


class Openings:
    """What is opened for one round; `fd` can be read from when something came of one.

    Args:
        which: the servers that a connection is opened to.

    Attributes:
        pending: those of them from which nothing came yet.
        over: nobody waits for them any more.
    """

    def __init__(self, which: Iterable[int]) -> None:
        self.pending = set(which)
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)
        self.fd = self._ear.fileno()
        self._lock = Lock()
        self._came: list[tuple[int, Connection | None]] = []
        self.over = False

    def came(self, i: int, line: Connection | None) -> bool:
        """Hand in a server's connection, None: there is none. False: the round is over."""
        with self._lock:
            if self.over:
                return False
            self._came.append((i, line))
            with suppress(BlockingIOError):  # full: it will be heard anyway
                self._bell.send(b"!")
            return True

    def take(self) -> list[tuple[int, Connection | None]]:
        """Return what came since this was asked last."""
        with self._lock:
            with suppress(BlockingIOError):
                self._ear.recv(64)
            came, self._came = self._came, []
        self.pending.difference_update(i for i, _ in came)
        return came

    def close(self) -> list[tuple[int, Connection | None]]:
        """End it: return what came in the last moment; of the others no more is taken."""
        came = self.take()
        with self._lock:
            self.over = True
            came += self._came
            self._bell.close()
            self._ear.close()
        return came
