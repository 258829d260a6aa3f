"""Broadcast: asks several servers at once, and gathers their answers.

A round has three ends for a server: it *answered*; it is *silent*, so that what it was sent may
have been done, or may be yet; or it is *absent*, and was sent nothing. Nothing is sent twice here.

The calling thread sends and reads. A worker of the server's own connects where no connection is
idle, and reads an answer that comes after the round: that has no vote, but is known, see `Sent`. A
command that is still queued for a worker when its round ends is never sent.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.wire.connection import (
    ANSWER_TIMEOUT_S,
    NOTHING_VOUCHED,
    Command,
    Connection,
    Reply,
    ServerUnusable,
    Vouched,
)
from lockclient.stores.valkey.wire.server import Sent, Server
from lockclient.stores.valkey.wire.wakeup import WakeUp

GRACE_S: Final = 0.1
"""Seconds that those who have not answered yet have when the votes are enough already."""

_MAX_ROUND_S: Final = 0.1
"""Seconds of a round that count at most: what is longer waits for one that is unreachable."""

_NO_CONNECTION: Final = VoteFailure("no connection in time")

Enough = Callable[[Mapping[int, Reply]], bool]


class Round:
    """One round: which server is sent what, and what came of it.

    Servers go by their place in the URL.

    Attributes:
        answers: of those that voted.
        silent: those that were sent it, and have not answered in time.
        failures: why each other one has no vote, the silent ones included.
        sent: what becomes of each server's request.
    """

    def __init__(
        self, servers: list[Server], commands: Mapping[int, Command], sent: Mapping[int, Sent]
    ) -> None:
        self.answers: dict[int, Reply] = {}
        self.silent: set[int] = set()
        self.failures: dict[int, VoteFailure] = {}
        self.sent = sent
        self._servers = servers
        self._commands = commands
        self._unsent = dict(sent)  # who pops one may send it, or cancels it
        self._run_ids: dict[str, int] = {}
        self._poll = select.poll()
        self._awaited: dict[int, tuple[int, Connection]] = {}  # by file descriptors
        self._connecting: set[int] = set()
        self._connected = deque[int]()
        self._wakeup: WakeUp | None = None

    def run(self, until: Deadline, enough: Enough) -> None:
        """Ask all, and gather the answers."""
        began = monotonic()
        try:
            for i in self.sent:
                server = self._servers[i]
                if server.failure is not None:
                    self._cancel(i, server.failure)
                elif (idle := server.borrow_idle()) is not None:
                    self._send(i, idle, until)
                else:
                    self._connect(i)
            self._gather(began, until, enough)
        finally:
            if self._wakeup is not None:
                self._wakeup.close()
        for i in [*self._unsent]:
            self._cancel(i, _NO_CONNECTION)
        limit = Deadline(began + ANSWER_TIMEOUT_S)
        for i, connection in self._awaited.values():
            self._servers[i].read_late(self._commands[i], connection, self.sent[i], limit)
        for i in self.sent.keys() - self.answers.keys() - self.failures.keys():
            self.silent.add(i)
            self.failures[i] = VoteFailure("no answer in time")

    def _cancel(self, i: int, failure: VoteFailure) -> None:
        """Give up a request that is not sent yet."""
        if (request := self._unsent.pop(i, None)) is not None:
            self.failures[i] = failure
            request.end(failure)

    def _gather(self, began: float, until: Deadline, enough: Enough) -> None:
        """Take all answers until there are enough, or nobody is left who could give one."""
        last, satisfied = until, False
        while self._awaited or self._connecting:
            events = self._poll.poll(1000 * last.remaining())
            if not events:
                return
            for fd, _ in events:
                if fd in self._awaited:
                    i, connection = self._awaited[fd]
                    self._servers[i].read(self._commands[i], connection, self.sent[i], None)
                    if self.sent[i].answer is not None:
                        self._poll.unregister(fd)
                        del self._awaited[fd]
                        self._count(i)
                elif self._wakeup is not None:
                    self._wakeup.clear()
                    while self._connected:
                        self._count(self._connected.popleft())
            if not satisfied and enough(self.answers):
                satisfied = True
                now = monotonic()
                last = Deadline(min(until, now + GRACE_S + now - began))

    def _count(self, i: int) -> None:
        """Count a server's answer."""
        answer = self.sent[i].answer
        self._connecting.discard(i)
        if isinstance(answer, Reply):
            self.answers[i] = answer
        elif answer is not None:
            self.failures[i] = answer
            if answer.unanswered:
                self.silent.add(i)

    def _claim(self, i: int, connection: Connection) -> Sent | None:
        """Return the request, to be sent by this connection now; None: it is not to be sent."""
        request = self._unsent.pop(i, None)
        if request is not None and self._run_ids.setdefault(connection.run_id, i) != i:
            # It goes by another name, too, and has one vote.
            request.end(VoteFailure("it is the same server as another one", permanent=True))
            request = None
        if request is None:
            self._servers[i].give_back(connection)
        return request

    def _send(self, i: int, connection: Connection, until: Deadline) -> None:
        if (request := self._claim(i, connection)) is not None:
            try:
                connection.send(self._commands[i], until)
            except errors.Unanswered as error:
                self._servers[i].note_unanswered(connection, request, error)
            else:
                fd = connection.fileno()
                self._awaited[fd] = i, connection
                self._poll.register(fd, select.POLLIN)
                return
        self._count(i)

    # ------------------------------------------------------------ those without a connection

    def _connect(self, i: int) -> None:
        """Have a worker connect to a server, and ask it."""
        if self._wakeup is None:
            try:
                self._wakeup = WakeUp()
            except OSError as error:  # too many open files
                self._cancel(i, errors.classify(error))
                return
            self._poll.register(self._wakeup.fd, select.POLLIN)
        self._connecting.add(i)
        self.sent[i].then(partial(self._wake, i, self._wakeup))
        self._servers[i].workers.submit(partial(self._work, i))

    def _wake(self, i: int, wakeup: WakeUp) -> None:
        self._connected.append(i)
        wakeup.set()

    def _work(self, i: int) -> None:
        """Connect to a server and ask it; called by one of its workers."""
        server = self._servers[i]
        if i not in self._unsent:
            return
        connection = None
        if server.failure is None:
            connection = server.borrow_idle() or server.connect()
        if connection is None:
            if (request := self._unsent.pop(i, None)) is not None:
                request.end(server.failure or VoteFailure("it was not reached"))
        elif (request := self._claim(i, connection)) is not None:
            server.ask(self._commands[i], connection, request)


class Broadcast:
    """All servers; safe to share between threads.

    Args:
        location: which they are.
        on_back: called with the number of a server that can be reached again.
    """

    round_s = 0.002
    """Seconds that a round takes, about, by the last ones."""

    def __init__(self, location: ValkeyLocation, on_back: Callable[[int], object]) -> None:
        self.location = location
        self.endpoints = location.endpoints
        self.keys = KeyNames(location.root)
        self.all = range(len(location.endpoints))
        self.closed = False
        owners = dict[str, int]()
        self._servers = [
            Server(i, location, self.keys, owners, partial(on_back, i)) for i in self.all
        ]

    def ask(
        self,
        commands: Mapping[int, Command],
        until: Deadline,
        enough: Enough,
        sent: Mapping[int, Sent] | None = None,
    ) -> Round:
        """Ask these servers at once, until `enough` have answered, or the deadline.

        Those that are left then have a moment more: a healthy one's answer is on its way. With
        `sent` the caller sees what becomes of each request before it is sent.
        """
        requests = sent if sent is not None else {i: Sent() for i in commands}
        asked, began = Round(self._servers, commands, requests), monotonic()
        asked.run(until, enough)
        self.round_s += (min(monotonic() - began, _MAX_ROUND_S) - self.round_s) / 16
        return asked

    def open_all(
        self, vouched: Vouched = NOTHING_VOUCHED
    ) -> Iterator[tuple[str, Connection | VoteFailure]]:
        """Yield each server's address, and a new connection to it, or why there is none.

        The connection is closed when the next one is asked for.
        """
        for server in self._servers:
            try:
                connection = server.open(vouched)
            except ServerUnusable as refusal:
                yield server.endpoint, refusal.failure
            else:
                with closing(connection):
                    yield server.endpoint, connection

    def reachable(self, i: int) -> bool:
        """Tell whether a server answered the last time."""
        return self._servers[i].failure is None

    # ------------------------------------------------------------ for people

    def warnings(self) -> Iterator[str]:
        """Say of each server why it has no vote, and which may lose what they have answered.

        The same words as long as it stays so: no seconds are counted down.
        """
        for endpoint, why in self.votes().items():
            if why:
                yield f"{endpoint} has no vote: {why}."
        not_durable = [server.endpoint for server in self._servers if server.may_forget]
        if not_durable:
            they_have = "it has" if len(not_durable) == 1 else "they have"
            yield (
                f"{', '.join(not_durable)} may lose what {they_have} "
                "answered (nobody vouches that it is kept), and would vote again "
                f"{self.location.longest:g} s after a restart."
            )

    def votes(self) -> dict[str, str]:
        """Return by the servers' addresses why each has no vote, by what was last seen; empty: it
        has one."""
        return {server.endpoint: server.reason_without_vote() for server in self._servers}

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        for server in self._servers:
            server.close()
