"""The floor of section `valkey`: Redlock's bare commands over plain sockets, built beforehand.

`SET NX PX` with what a real holder writes, and a script that compares and deletes, sent to all
servers at once, and all answers waited for. No library is in between, and nothing is undone.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from hashlib import sha1

TTL = "60000"
CHANNEL = "floor-released"
UUID = 36
"""The length of what is compared: the value's beginning."""

_DROP = f"""if string.sub(redis.call('GET', KEYS[1]) or '', 1, {UUID}) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0"""


def words(*texts: str) -> bytes:
    """Return a command as it is sent."""
    parts = [text.encode() for text in texts]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


class Wires:
    """A connection to each of some servers on loopback."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._poll = select.poll()
        self._by_fd: dict[int, socket.socket] = {}
        for port in ports:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._poll.register(connection, select.POLLIN)
            self._by_fd[connection.fileno()] = connection

    def all(self, command: bytes) -> list[bytes]:
        """Send a command to all at once; return all answers, each of which is short."""
        for connection in self._by_fd.values():
            connection.sendall(command)
        answers: list[bytes] = []
        while len(answers) < len(self._by_fd):
            answers += self.heard()
        return answers

    def heard(self) -> list[bytes]:
        """Wait until some of them tell something; return that."""
        return [self._by_fd[fd].recv(4096) for fd, _ in self._poll.poll()]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._by_fd.values():
            connection.close()


class Bare(Wires):
    """A lock on all these servers, with no library.

    Args:
        ports: the servers'.
        value: what is written; it begins with the uuid.
        key: the lock's.
    """

    def __init__(self, ports: Sequence[int], value: str, key: str = "floor") -> None:
        super().__init__(ports)
        self.all(words("SCRIPT", "LOAD", _DROP))
        self._majority = len(ports) // 2 + 1
        self._take = words("SET", key, value, "NX", "PX", TTL)
        name = sha1(_DROP.encode()).hexdigest()  # noqa: S324 - it is their name for it
        self._drop = words("EVALSHA", name, "1", key, value[:UUID])
        self._tell = words("PUBLISH", CHANNEL, value[:UUID])

    def acquire(self) -> bool:
        """Take the lock; tell whether a majority gave it."""
        return self.all(self._take).count(b"+OK\r\n") >= self._majority

    def release(self) -> None:
        """Give it back."""
        if self.all(self._drop).count(b":1\r\n") < self._majority:
            raise AssertionError("the floor's lock was not held")

    def tell(self) -> None:
        """Tell those who listen that it is free."""
        self.all(self._tell)
