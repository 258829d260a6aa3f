"""Broadcast: asks several servers at once, and gathers their answers.

In a round a server *answers*, or is *silent*: the command may be executed, now or later; or is
*absent*: nothing was sent. A round sends nothing twice.

The calling thread alone sends, so nothing is sent after the round. If no connection is idle, a
worker of the server opens one. A worker also reads an answer that arrives after the round: it has
no vote, but is noted in its `Sent`.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import Answers, Command, Reply
from lockclient.stores.valkey.wire.connection import ANSWER_TIMEOUT_S, Connection, ServerUnusable
from lockclient.stores.valkey.wire.server import Sent, Server

ROUND_TIMEOUT_S: Final = 2.0
GRACE_S: Final = 0.1
"""Seconds in which the remaining servers may still answer when there are enough votes."""
_MAX_ROUND_S: Final = 0.1
"""Seconds of a round that count in `round_s`: a longer one waited for an unreachable server."""

Enough = Callable[[Answers], bool]


class WakeUp:
    """A self-pipe that wakes a thread in `poll`: `fd` is readable from `set` to `clear`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self.fd = self._reader.fileno()

    def set(self) -> None:
        with suppress(OSError):  # full: the thread wakes anyway; closed: no thread polls any more
            self._writer.send(b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._reader.recv(4096)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


@dataclass(eq=False)
class Round:
    """One round. Servers go by their place in the URL.

    Attributes:
        servers: all servers.
        sent: the request to each server that is asked.
        answers: of those that voted.
        silent: those that were sent it, and have not answered in time.
        failures: why each other server has no vote, the silent ones included.
    """

    servers: list[Server]
    _poll: select.poll
    sent: dict[int, Sent] = field(default_factory=dict)
    answers: dict[int, Reply] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    failures: dict[int, VoteFailure] = field(default_factory=dict)
    _run_ids: dict[str, int] = field(default_factory=dict)
    # By file descriptor: server, connection, and when the request was sent.
    _awaited: dict[int, tuple[int, Connection, float]] = field(default_factory=dict)
    _connecting: set[int] = field(default_factory=set)
    _connected: deque[int] = field(default_factory=deque)
    _wakeup: WakeUp | None = None

    def run(
        self,
        commands: Mapping[int, Command],
        began: float,
        until: Deadline,
        enough: Enough | None,
    ) -> None:
        """Ask all, and gather the answers."""
        try:
            for i, command in commands.items():
                self.sent[i] = Sent(command)
                self._ask(i, until)
            self._gather(began, until, enough)
        finally:
            if self._wakeup is not None:
                self._wakeup.close()
        while self._connecting:
            i = self._connecting.pop()
            self._end(i, self.servers[i].failure or errors.NO_CONNECTION)
        for i, connection, sent_at in self._awaited.values():
            self.silent.add(i)
            self.failures[i] = errors.NO_ANSWER
            limit = Deadline(sent_at + ANSWER_TIMEOUT_S)
            self.servers[i].read_late(self.sent[i], connection, limit)

    def _gather(self, began: float, until: Deadline, enough: Enough | None) -> None:
        """Read all answers until there are enough, or no further one can arrive."""
        last, satisfied = until, False
        while self._awaited or self._connecting:
            events = self._poll.poll(1000 * last.remaining())
            if not events:
                return
            for fd, _ in events:
                if fd in self._awaited:
                    i, connection, _ = self._awaited[fd]
                    self.servers[i].read(self.sent[i], connection, None)
                    if self.sent[i].answer is not None:
                        self._poll.unregister(fd)
                        del self._awaited[fd]
                        self._count(i)
                elif self._wakeup is not None:
                    self._wakeup.clear()
                    while self._connected:
                        self._ask(self._connected.popleft(), until)
            if enough is not None and not satisfied and enough(self.answers):
                satisfied = True
                now = monotonic()
                last = Deadline(min(until, now + GRACE_S + now - began))

    def _ask(self, i: int, until: Deadline) -> None:
        """Send a server its command, or have a worker connect to it first."""
        server = self.servers[i]
        self._connecting.discard(i)
        if (failure := server.failure) is not None:
            self._end(i, failure)
        elif (connection := server.borrow_idle()) is None:
            self._connect(i)
        elif self._run_ids.setdefault(connection.run_id, i) != i:
            server.give_back(connection)  # a server with two names has one vote
            self._end(i, VoteFailure("it is the same server as another one", permanent=True))
        else:
            try:
                connection.send(self.sent[i].command, until)
            except errors.Unanswered as error:
                server.note_unanswered(self.sent[i], connection, error)
                self._count(i)
            else:
                self._awaited[connection.fd] = i, connection, monotonic()
                self._poll.register(connection.fd, select.POLLIN)

    def _end(self, i: int, failure: VoteFailure) -> None:
        self.sent[i].answer = failure
        self._count(i)

    def _count(self, i: int) -> None:
        answer = self.sent[i].answer
        if isinstance(answer, Reply):
            self.answers[i] = answer
        elif answer is not None:
            self.failures[i] = answer
            if answer.unanswered:
                self.silent.add(i)

    def _connect(self, i: int) -> None:
        """Have a worker open an idle connection to a server, then `_ask` it again."""
        if self._wakeup is None:
            try:
                self._wakeup = WakeUp()
            except OSError as error:  # too many open files
                self._end(i, errors.classify(error))
                return
            self._poll.register(self._wakeup.fd, select.POLLIN)
        self._connecting.add(i)
        self.servers[i].workers.submit(partial(self._work, i, self._wakeup))

    def _work(self, i: int, wakeup: WakeUp) -> None:
        if i in self._connecting:
            self.servers[i].connect()
            self._connected.append(i)
            wakeup.set()


class Broadcast:
    """All servers; safe to share between threads.

    Args:
        location: which they are.
        on_news: called with the number of a server that can be reached again, or has answered late.
    """

    round_s = 0.002
    """The moving average of the seconds that a round takes."""

    def __init__(self, location: ValkeyLocation, on_news: Callable[[int], object]) -> None:
        self.location = location
        self.endpoints = location.endpoints
        self.keys = KeyNames(location.root)
        self.all = range(len(location.endpoints))
        self.closed = False
        owners = dict[str, int]()
        self._servers = [
            Server(i, location, self.keys, owners, partial(on_news, i)) for i in self.all
        ]

    def ask(
        self,
        commands: Mapping[int, Command],
        until: Deadline | None = None,
        enough: Enough | None = None,
    ) -> Round:
        """Ask these servers at once, until `enough` have answered (None: all), or the deadline.

        The others then have `GRACE_S` more: the answer of a healthy server is on its way.
        """
        this, began = Round(self._servers, select.poll()), monotonic()
        this.run(commands, began, until or Deadline.after(ROUND_TIMEOUT_S), enough)
        self.round_s += (min(monotonic() - began, _MAX_ROUND_S) - self.round_s) / 16
        return this

    def open_all(
        self, *, idle: bool = False, kept: bool | None = None
    ) -> Iterator[tuple[str, Connection | VoteFailure]]:
        """Yield each server's address, and a new connection to it, or why that failed.

        The connection is closed before the next one opens. See `Connection.identify`.
        """
        for server in self._servers:
            try:
                connection = server.open(idle=idle, kept=kept)
            except ServerUnusable as refusal:
                yield server.endpoint, refusal.failure
            else:
                with closing(connection):
                    yield server.endpoint, connection

    def reachable(self, i: int) -> bool:
        """Tell whether a server answered the last time."""
        return self._servers[i].failure is None

    def warnings(self) -> Iterator[str]:
        """Yield why each server has no vote, and which servers may lose confirmed writes.

        The text stays the same as long as the reason does: no seconds are counted down.
        """
        for endpoint, why in self.votes().items():
            if why:
                yield f"{endpoint} has no vote: {why}."
        not_durable = [server.endpoint for server in self._servers if not server.durable]
        if not_durable:
            they_have = "it has" if len(not_durable) == 1 else "they have"
            yield (
                f"{', '.join(not_durable)} may lose what {they_have} "
                "answered (nobody vouches that it is kept), and would vote again "
                f"{self.location.longest:g} s after a restart."
            )

    def votes(self) -> dict[str, str]:
        """Return by the servers' addresses why each had no vote when last asked; empty: it has."""
        return {server.endpoint: server.reason_without_vote() for server in self._servers}

    def close(self) -> None:
        self.closed = True
        for server in self._servers:
            server.close()
