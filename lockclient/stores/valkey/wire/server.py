"""One server: its idle connections, its workers, and the reason why it has no vote.

A server that failed is absent from all rounds until a worker has reached it again, so a server that
hangs costs each process one wait, and not each of its requests. Workers open connections, so an
unknown host name, a network that drops packets, or a slow server delays no other server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from valkey.exceptions import InvalidResponse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import Command, Reply
from lockclient.stores.valkey.wire.connection import Connection, ServerUnusable, connected
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import Repeating, WorkerPool

log = get_logger(__name__)

_FIRST_PROBE_PAUSE_S, _MAX_PROBE_PAUSE_S = 0.05, 1.0
"""Seconds between two tries to reach a server again."""
_SAME_MOMENT_S: Final = 2.0
"""Seconds by which the ends of one quarantine may differ in two answers."""
QUARANTINE_REASON: Final = (
    "it is new to this keyspace, or was emptied, or restarted and may have forgotten locks"
)
_MAX_WORKERS: Final = 8
_MAX_IDLE_CONNECTIONS: Final = 16


@dataclass(eq=False, slots=True)
class Sent:
    """A request to one server.

    Attributes:
        command: the request.
        answer: its result; None: none yet. Within 2 s of the sending there is one.
    """

    command: Command
    answer: Reply | VoteFailure | None = None

    @property
    def unanswered(self) -> bool:
        """True if the command may still be executed although no caller waits for its answer."""
        return isinstance(self.answer, VoteFailure) and self.answer.unanswered


class Server:
    """One server; safe to share between threads.

    Args:
        i: its place in the URL.
        location: all servers.
        keys: the names of the keys.
        owners: by the run ids of processes, through which server of the URL each was reached.
        on_news: called by a worker when the server can be reached again, or has answered late.

    Attributes:
        failure: why the server can't be asked; None: it can.
        closed: no connection is stored any more.
        durable: False if it may lose confirmed writes and no operator vouched for it.
    """

    def __init__(
        self,
        i: int,
        location: ValkeyLocation,
        keys: KeyNames,
        owners: dict[str, int],
        on_news: Callable[[], object],
    ) -> None:
        self.failure: VoteFailure | None = None
        self.closed = False
        self.endpoint = location.endpoints[i]
        self.workers = WorkerPool("server", _MAX_WORKERS)
        self._i, self._location, self._keys = i, location, keys
        self._owners = owners
        self._on_news = on_news
        self._idle = deque[Connection]()
        self._run_id = ""
        self.durable = True
        self._quarantine_ends: float | None = None  # by this machine's wall clock
        self._down_since: float | None = None
        self._probing = Repeating(self.workers.submit, self._probe)
        self._probe_pause_s = _FIRST_PROBE_PAUSE_S
        self._is_probe_due = False

    # ------------------------------------------------------------ asking

    def read_late(self, sent: Sent, connection: Connection, until: Deadline) -> None:
        """Have a worker wait for an answer after the end of its round."""

        def work() -> None:
            self.read(sent, connection, until)
            self._on_news()

        self.workers.submit(work)

    def read(self, sent: Sent, connection: Connection, until: Deadline | None) -> None:
        """Wait for the answer and note it. Without a deadline: note it if all of it has arrived."""
        try:
            reply = connection.read(until)
            if reply is None:
                return
            answer = self._checked(sent.command, reply)
        except errors.ErrorReply as error:
            answer = errors.classify(error)
        except errors.Unanswered as error:
            self.note_unanswered(sent, connection, error)
            return
        except (AttributeError, LookupError, TypeError, ValueError):  # no script of ours answers so
            self.note_unanswered(sent, connection, InvalidResponse("of an unknown shape"))
            return
        # A key of another program, or a key without rights, does not exclude the server.
        if isinstance(answer, VoteFailure) and answer.by_connection:
            self.mark_failed(answer, connection)
        else:
            self.give_back(connection)
        sent.answer = answer

    def note_unanswered(self, sent: Sent, connection: Connection, error: Exception) -> None:
        """Note that a connection broke, or that 2 s passed: its command may be executed."""
        failure = errors.classify(error)._replace(unanswered=True)
        self.mark_failed(failure, connection)
        sent.answer = failure

    def _checked(self, command: Command, reply: Reply) -> Reply | VoteFailure:
        """Return a reply that counts, or the reason why it does not."""
        seconds = int(reply.rest[0]) / 1000 if reply.kind == "waits" else 0.0
        # More than the longest wait: its clock was ahead, and was set back since.
        if reply.kind in ("empty", "another") or seconds > 1.02 * self._location.longest:
            reason = "it was emptied, or is new to this keyspace"
            return VoteFailure(reason, by_connection=True)
        if seconds:
            self._note_quarantine(seconds)
            reason = f"{QUARANTINE_REASON}: it votes in {seconds:.0f} s"
            return VoteFailure(reason, advice=errors.VOUCH_ADVICE)
        if reply.kind == "terms":
            return errors.config_mismatch(reply.rest[0], self._location)
        if command.script.votes:
            self._quarantine_ends = None
        return reply

    # ------------------------------------------------------------ connections

    def borrow_idle(self) -> Connection | None:
        """Return an idle connection; None: a worker has to open one."""
        with suppress(IndexError):  # none is left
            while True:
                connection = self._idle.pop()
                if not connection.has_ended():
                    return connection
                connection.close()
                self._disown()  # another process may be at this address
        return None

    def give_back(self, connection: Connection) -> None:
        self._idle.append(connection)  # before `closed` is read, so that `close` finds it
        if self.closed or len(self._idle) > _MAX_IDLE_CONNECTIONS:
            with suppress(IndexError):
                self._idle.pop().close()

    def connect(self) -> None:
        if self.failure is None:
            try:
                self.give_back(self.open())
            except ServerUnusable as refusal:
                self.mark_failed(refusal.failure)

    def open(self, *, idle: bool = False, kept: bool | None = None) -> Connection:
        """Return a new connection to the server; see `Connection.identify`.

        Raises:
            ServerUnusable: it was not reached, or gives no locks.
        """
        try:
            connection = connected(self._location, self.endpoint)
            try:
                connection.identify(self._keys, idle=idle, kept=kept)
                self._own(connection)
            except BaseException:
                connection.close()
                raise
        except errors.FAILED as error:
            raise ServerUnusable(errors.classify(error, self._location)) from error
        self._note_quarantine(connection.quarantine_s)
        return connection

    def _own(self, connection: Connection) -> None:
        """Note which process answers at this address."""
        other = self._owners.setdefault(connection.run_id, self._i)
        if other != self._i:
            reason = f"it is the same server as {self._location.endpoints[other]}"
            raise ServerUnusable(VoteFailure(reason, permanent=True))
        self.durable = connection.durable
        if not self.durable and self._run_id != connection.run_id:
            log.warning(
                "%s may forget what it has answered, as nobody vouches that it keeps it "
                "(clustermutex vouch --kept): after a restart it gives no locks for %.0f s.",
                self.endpoint,
                self._location.longest,
            )
        self._run_id = connection.run_id

    def _disown(self) -> None:
        """Note that another process may be at this address, and the earlier one elsewhere."""
        if self._owners.get(self._run_id) == self._i:
            self._owners.pop(self._run_id, None)

    # ------------------------------------------------------------ failures

    def mark_failed(self, failure: VoteFailure, connection: Connection | None = None) -> None:
        """Note that the server is absent until a worker has reached it again."""
        if connection is not None:
            connection.close()
        self.failure = failure
        self._disown()
        self._close_idle()
        if not (self.closed or self._is_probe_due):  # a due probe keeps its pause
            self._is_probe_due = True
            self._probing.run_within(_FIRST_PROBE_PAUSE_S)

    def _probe(self) -> float | None:
        """Try to reach the server again; return the seconds until the next try."""
        if self.closed:
            return None
        self._is_probe_due = False  # a failure from now on needs another probe
        try:
            connection = self.open()
        except ServerUnusable as refusal:
            self.failure = refusal.failure
            if self._down_since is None and self._probe_pause_s >= _MAX_PROBE_PAUSE_S:
                self._down_since = monotonic()  # not for a hiccup
                log.warning("%s has no vote (%s); retrying.", self.endpoint, refusal.failure.reason)
            self._probe_pause_s = min(2 * self._probe_pause_s, _MAX_PROBE_PAUSE_S)
            self._is_probe_due = True
            return self._probe_pause_s
        self._probe_pause_s = _FIRST_PROBE_PAUSE_S
        self.give_back(connection)
        self.failure = None
        if self._down_since is not None:
            passed = monotonic() - self._down_since
            self._down_since = None
            log.warning("%s can be reached again after %.1f s.", self.endpoint, passed)
        self._on_news()
        return None

    def _note_quarantine(self, seconds: float) -> None:
        """Note that the server votes in so many seconds, and log it once."""
        if not seconds:
            self._quarantine_ends = None
            return
        at = time.time() + seconds
        if at > (self._quarantine_ends or 0.0) + _SAME_MOMENT_S:
            self._quarantine_ends = at
            log.warning("%s has no vote for %.0f s: %s.", self.endpoint, seconds, QUARANTINE_REASON)

    # ------------------------------------------------------------ for people

    def reason_without_vote(self) -> str:
        """Return why the server had no vote when it was last asked; empty: it has one."""
        if (failure := self.failure) is not None:
            return failure.reason
        if self._owners.get(self._run_id) != self._i:
            return "it has not been reached yet"
        if self._quarantine_ends is None:
            return ""
        votes_from = time.strftime("%H:%M:%S UTC", time.gmtime(self._quarantine_ends))
        return f"{QUARANTINE_REASON}; it votes from {votes_from} on"

    def close(self) -> None:
        """Close all connections, and open none any more."""
        self.closed, self.failure = True, errors.NO_CONNECTION
        self._close_idle()
        self.workers.close()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
