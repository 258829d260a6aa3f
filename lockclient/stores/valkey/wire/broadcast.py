"""Broadcast: sends a command to all servers at once, and gathers their answers.

A round has three ends for a server: it *answered*; it is *silent*, so that what it was sent may
have been done, or may be yet; or it is *absent*, and was sent nothing. Nothing is sent twice here.
An answer that comes when nobody waits for it any more is never read: its connection is closed.

Who has a connection is asked at once. Others are asked as soon as they have let us in, and a round
waits for that as it does for answers: until there are enough, and a moment more.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.wire.connection import Command, Connection, Reply
from lockclient.stores.valkey.wire.pool import QUARANTINE_REASON, ServerPool
from lockclient.stores.valkey.wire.wakeup import PendingConnections

GRACE_S: Final = 0.1
"""Seconds that those who have not answered yet have when the votes are enough already."""

_MAX_ROUND_S: Final = 0.1
"""Seconds of a round that count at most: what is longer waits for one that is unreachable."""

Enough = Callable[[Mapping[int, Reply]], bool]


class Round:
    """One round: which server is sent what by which connection, and what came of it.

    Servers go by their place in the URL.

    Attributes:
        answers: of those that voted.
        silent: those that did not answer, and may have done it or do it yet.
        failures: why each other one has no vote, the silent ones included.
    """

    def __init__(
        self, servers: ServerPool, commands: Mapping[int, Command], until: Deadline, enough: Enough
    ) -> None:
        self.answers: dict[int, Reply] = {}
        self.silent: set[int] = set()
        self.failures: dict[int, errors.VoteFailure] = {}
        self._servers = servers
        self._commands = commands
        self._until = until
        self._enough = enough
        self._connections: dict[int, Connection] = {}
        self._run_ids: set[str] = set()
        self._poll = select.poll()
        self._awaited: dict[int, int] = {}  # servers by the file descriptors of their connections
        self._pending: PendingConnections | None = None

    def run(self) -> None:
        """Ask all, and gather the answers."""
        commands = self._commands
        for i, connection in self._servers.borrow_idle(commands, self._poll).items():
            self._send(i, connection)
        if len(self._connections) < len(commands):
            self._connect_others()
        self._gather()
        for i in self._awaited.values():
            self._mark_silent(i, errors.VoteFailure("no answer in time"))
        if self._pending is not None:
            for i, late in self._pending.close():
                if late is not None:  # it came in the last moment, and is for the next round
                    self._servers.give_back(i, late)
        for i in commands.keys() - self._connections.keys():
            self.failures.setdefault(i, errors.VoteFailure("no connection in time"))

    def _gather(self) -> None:
        """Take all answers until there are enough, or nobody is left who could give one."""
        began, last, satisfied = monotonic(), self._until, False
        while self._awaited or (self._pending is not None and self._pending.awaited):
            events = self._poll.poll(1000 * last.remaining())
            if not events:
                return
            for fd, _ in events:
                if self._pending is not None and fd == self._pending.fd:
                    self._send_to_new(self._pending)
                elif self._read(self._awaited[fd], last):
                    self._poll.unregister(fd)
                    del self._awaited[fd]
            if not satisfied and self._enough(self.answers):
                satisfied = True
                now = monotonic()
                last = Deadline(min(self._until, now + GRACE_S + now - began))

    # ------------------------------------------------------------ those without a connection

    def _connect_others(self) -> None:
        """Have connections opened to those that have none; one that has failed gets none."""
        servers, failures = self._servers, self.failures
        wanted = []
        for i in self._commands.keys() - self._connections.keys():
            if (failure := servers.failures.get(i)) is not None:
                failures[i] = failure
            elif not servers.is_stuck(i):
                wanted.append(i)
        if not wanted:
            return
        try:
            self._pending = PendingConnections(wanted)
        except OSError as error:  # too many open files
            failure = errors.VoteFailure(f"there can be no connection: {error.strerror}")
            failures |= dict.fromkeys(wanted, failure)
            return
        self._poll.register(self._pending.fd, select.POLLIN)
        servers.connect_in_background(self._pending)

    def _send_to_new(self, pending: PendingConnections) -> None:
        for i, connection in pending.take_new():
            if connection is None:
                failure = self._servers.failures.get(i)
                self.failures[i] = failure or errors.VoteFailure("it was not reached")
            else:
                self._poll.register(connection.fd, select.POLLIN)
                self._send(i, connection)

    # ------------------------------------------------------------ those with one

    def _send(self, i: int, connection: Connection) -> None:
        self._connections[i] = connection
        if connection.run_id in self._run_ids:  # it goes by another name, too, and has one vote
            failure = errors.VoteFailure("it is the same server as another one", permanent=True)
            self.failures[i] = failure
            self._poll.unregister(connection.fd)
            return self._servers.give_back(i, connection)
        self._run_ids.add(connection.run_id)
        try:
            connection.send(self._commands[i], self._until)
        except errors.Unanswered as error:
            self._poll.unregister(connection.fd)
            self._mark_silent(i, errors.classify(error))
        else:
            self._awaited[connection.fd] = i

    def _read(self, i: int, until: Deadline) -> bool:
        """Take a server's answer; False: it is yet to come."""
        connection, servers, failures = self._connections[i], self._servers, self.failures
        try:
            answer = connection.read(self._commands[i], until)
        except errors.ErrorReply as error:
            failures[i] = failure = errors.classify(error)
            # One key that another program has, or that this user may not touch, is no reason to
            # ask the server nothing else.
            if failure.by_connection:
                servers.mark_failed(i, connection, failure)
            else:
                servers.give_back(i, connection)
            return True
        except errors.Unanswered as error:
            self._mark_silent(i, errors.classify(error))
            return True
        if answer is None:
            return False
        # More than the longest wait: its clock was ahead, and has come back since.
        too_long = answer.kind == "waits" and int(answer.rest[0]) > 1020 * servers.location.longest
        if too_long or answer.kind in ("empty", "another"):
            failures[i] = failure = errors.VoteFailure("it was emptied, or is new to this keyspace")
            servers.mark_failed(i, connection, failure)
            return True
        if answer.kind == "waits":
            seconds = int(answer.rest[0]) / 1000
            servers.note_quarantine(i, seconds)
            failures[i] = errors.VoteFailure(f"{QUARANTINE_REASON}: it votes in {seconds:.0f} s")
        elif answer.kind == "terms":
            failures[i] = errors.config_mismatch(answer.rest[0], servers.location)
        else:
            self.answers[i] = answer
            if self._commands[i].script.votes:  # what needs no vote tells nothing of it
                servers.note_quarantine(i, 0.0)
        servers.give_back(i, connection)
        return True

    def _mark_silent(self, i: int, failure: errors.VoteFailure) -> None:
        """A connection broke, or its answer is late: what was sent by it may be done."""
        self.silent.add(i)
        self.failures[i] = failure
        self._servers.mark_failed(i, self._connections[i], failure)


class Broadcast(ServerPool):
    """All servers; safe to share between threads."""

    round_s = 0.002
    """Seconds that a round takes, about, by the last ones."""

    def ask(self, commands: Mapping[int, Command], until: Deadline, enough: Enough) -> Round:
        """Ask these servers at once, until `enough` have answered, or the deadline.

        Those that are left then have a moment more: a healthy one's answer is on its way.
        """
        asked, began = Round(self, commands, until, enough), monotonic()
        asked.run()
        self.round_s += (min(monotonic() - began, _MAX_ROUND_S) - self.round_s) / 16
        return asked
