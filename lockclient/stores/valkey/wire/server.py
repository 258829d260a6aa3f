"""One server: its idle connections, its workers, and why it has no vote.

A server that failed is absent from all rounds until a worker has reached it again, so that one that
hangs costs each program one wait, and not each of its requests. Workers open connections, so that
a name that is not found, a network that swallows, or a slow server delays no other server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from valkey.exceptions import InvalidResponse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.wire.connection import (
    NOTHING_VOUCHED,
    Command,
    Connection,
    ServerUnusable,
    Vouched,
    connected,
)
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

_FIRST_PROBE_PAUSE_S, _MAX_PROBE_PAUSE_S = 0.05, 1.0
"""Seconds between two tries to reach a server again."""
_SAME_MOMENT_S: Final = 2.0
"""Seconds by which two answers may differ that tell of the same moment from which one votes."""
QUARANTINE_REASON: Final = (
    "it is new to this keyspace, or was emptied, or restarted and may have forgotten locks"
)
_MAX_WORKERS: Final = 8
_MAX_IDLE_CONNECTIONS: Final = 16
"""Connections that are kept for the next request."""

Answer = Reply | VoteFailure


class Sent:
    """A request to one server.

    Attributes:
        command: what is sent.
        answer: what came of it; None: nothing yet. Within 2 s of the sending there is one.
    """

    __slots__ = ("answer", "command")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.answer: Answer | None = None

    @property
    def unanswered(self) -> bool:
        """True if the command may still be executed although no caller waits for its answer."""
        return isinstance(self.answer, VoteFailure) and self.answer.unanswered


class Server:
    """One server; safe to share between threads.

    Args:
        i: its place in the URL.
        location: which servers there are.
        keys: the names of the keys.
        owners: by the run ids of processes, through which server of the URL each was reached.
        on_news: called by a worker when the server can be reached again, or has answered late.

    Attributes:
        failure: why it has no vote, since it can't be asked; None: it can.
        closed: nothing is kept any more.
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
        self._durable = True
        self._quarantine_ends: float | None = None  # by this machine's wall clock
        self._down_since: float | None = None
        self._probing: dict[str, object] = {}
        self._probe_pause_s = 0.0

    # ------------------------------------------------------------ asking

    def read_late(self, sent: Sent, connection: Connection, until: Deadline) -> None:
        """Have a worker wait for an answer that a round waits for no more."""

        def work() -> None:
            self.read(sent, connection, until)
            self._on_news()

        self.workers.submit(work)

    def read(self, sent: Sent, connection: Connection, until: Deadline | None) -> None:
        """Wait for the answer and note it. Without a deadline: note it if all of it has come."""
        try:
            reply = connection.read(until)
            if reply is None:
                return
            answer: Answer = self._judged(sent.command, reply)
        except errors.ErrorReply as error:
            answer = errors.classify(error)
        except errors.Unanswered as error:
            self.note_unanswered(sent, connection, error)
            return
        except (AttributeError, LookupError, TypeError, ValueError):  # no server of ours says that
            self.note_unanswered(sent, connection, InvalidResponse("of an unknown shape"))
            return
        # One key that another program has, or that this user may not touch, is no reason to ask
        # the server nothing else.
        if isinstance(answer, VoteFailure) and answer.by_connection:
            self.mark_failed(answer, connection)
        else:
            self.give_back(connection)
        sent.answer = answer

    def note_unanswered(self, sent: Sent, connection: Connection, error: Exception) -> None:
        """Note that a connection broke, or that 2 s passed: what was sent by it may be done."""
        failure = errors.classify(error)._replace(unanswered=True)
        self.mark_failed(failure, connection)
        sent.answer = failure

    def _judged(self, command: Command, reply: Reply) -> Answer:
        """Return an answer that counts, or why it does not."""
        seconds = int(reply.rest[0]) / 1000 if reply.kind == "waits" else 0.0
        # More than the longest wait: its clock was ahead, and has come back since.
        if reply.kind in ("empty", "another") or seconds > 1.02 * self._location.longest:
            reason = "it was emptied, or is new to this keyspace"
            return VoteFailure(reason, by_connection=True)
        if seconds:
            self._note_quarantine(seconds)
            reason = f"{QUARANTINE_REASON}: it votes in {seconds:.0f} s"
            return VoteFailure(reason, advice=errors.VOUCH_ADVICE)
        if reply.kind == "terms":
            return errors.config_mismatch(reply.rest[0], self._location)
        if command.script.votes:  # what needs no vote tells nothing of it
            self._quarantine_ends = None
        return reply

    # ------------------------------------------------------------ connections

    def borrow_idle(self) -> Connection | None:
        """Return an idle connection; None: a worker has to open one."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if not connection.has_ended():
                return connection
            connection.close()
            self._disown()  # who is there now is yet to be seen
        return None

    def give_back(self, connection: Connection) -> None:
        self._idle.append(connection)  # first, so that who closes all finds it
        if self.closed or len(self._idle) > _MAX_IDLE_CONNECTIONS:
            with suppress(IndexError):
                self._idle.pop().close()

    def connect(self) -> None:
        """Open another idle connection; called by a worker."""
        if self.failure is None:
            try:
                self.give_back(self.open())
            except ServerUnusable as refusal:
                self.mark_failed(refusal.failure)

    def open(self, vouched: Vouched = NOTHING_VOUCHED) -> Connection:
        """Return a new connection to the server.

        Raises:
            ServerUnusable: there is none, or none to a server that gives locks.
        """
        try:
            connection = connected(self._location, self.endpoint)
            try:
                connection.identify(self._keys, vouched)
                new = self._own(connection)
            except BaseException:
                connection.close()
                raise
        except errors.FAILED as error:
            raise ServerUnusable(errors.classify(error, self._location)) from error
        if not connection.durable and new:
            log.warning(
                "%s may forget what it has answered, as nobody vouches that it keeps it "
                "(clustermutex vouch --kept): after a restart it gives no locks for %.0f s.",
                self.endpoint,
                self._location.longest,
            )
        self._note_quarantine(connection.quarantine_s)
        return connection

    def _own(self, connection: Connection) -> bool:
        """Note which process is there; return whether it is another one than before."""
        run_id = connection.run_id
        other = self._owners.setdefault(run_id, self._i)
        if other != self._i:
            reason = f"it is the same server as {self._location.endpoints[other]}"
            raise ServerUnusable(VoteFailure(reason, permanent=True))
        new, self._run_id = self._run_id != run_id, run_id
        self._durable = connection.durable
        return new

    def _disown(self) -> None:
        """Note that another process may be there by now, and the one that was there elsewhere."""
        if self._owners.get(self._run_id) == self._i:
            self._owners.pop(self._run_id, None)

    # ------------------------------------------------------------ failures

    def mark_failed(self, failure: VoteFailure, connection: Connection | None = None) -> None:
        """The server failed: until it is reached again, it is absent."""
        if connection is not None:
            connection.close()
        self.failure = failure
        self._disown()
        self._close_idle()
        token = object()
        if not self.closed and self._probing.setdefault("probe", token) is token:
            self._probe_pause_s = _FIRST_PROBE_PAUSE_S
            self.workers.repeat(self._probe, _FIRST_PROBE_PAUSE_S)

    def _probe(self) -> float | None:
        """Try to reach the server again; return in how many seconds to do so once more."""
        if self.closed:
            return None
        try:
            connection = self.open()
        except ServerUnusable as refusal:
            self.failure = refusal.failure
            if self._down_since is None and self._probe_pause_s >= _MAX_PROBE_PAUSE_S:
                self._down_since = monotonic()  # not for a hiccup
                log.warning("%s has no vote (%s); retrying.", self.endpoint, refusal.failure.reason)
            self._probe_pause_s = min(2 * self._probe_pause_s, _MAX_PROBE_PAUSE_S)
            return self._probe_pause_s
        self._probing.clear()  # first: a failure from now on begins another one
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

    @property
    def may_forget(self) -> bool:
        """True if the server may lose confirmed writes and no operator vouched for it."""
        return not self._durable

    def reason_without_vote(self) -> str:
        """Return why the server has no vote, by what was last seen; empty: it has one."""
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
