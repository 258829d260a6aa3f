"""Connection pool of all servers: idle connections, failed servers, and reconnecting to them.

A server that failed is absent from all rounds until a thread in the background has reached it
again, so that one that hangs costs each program one wait, and not each of its requests. Nobody
waits for a connection that can have the votes of others: whatever keeps a server from letting us
in (a name that is not found, a network that swallows, a server that is slow), it is its own thread
that waits.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from threading import Lock
from typing import Final

from lockclient.model.clocks import monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.wire.connection import Connection, ServerUnusable, Vouched
from lockclient.stores.valkey.wire.wakeup import PendingConnections
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

SLOW_CONNECT_S: Final = 2.0
"""Seconds in which a server has to let a client in, a few answers: as long as one round lasts."""
_STUCK_CONNECT_S: Final = 0.5
"""Seconds after which no round waits any more for a connection to that server."""
_FIRST_PROBE_PAUSE_S, _MAX_PROBE_PAUSE_S = 0.05, 1.0
"""Seconds between two tries to reach a server again."""
_SAME_MOMENT_S: Final = 2.0
"""Seconds by which two answers may differ that tell of the same moment from which one votes."""
QUARANTINE_REASON: Final = (
    "it is new to this keyspace, or was emptied, or restarted and may have forgotten locks"
)
NOTHING_VOUCHED: Final = Vouched()
_MAX_IDLE_CONNECTIONS: Final = 16
"""Connections to each server that are kept for the next request."""


class ServerPool:
    """Connections to all servers, and which have failed; safe to share between threads.

    Args:
        location: which they are.
        on_back: called with the number of a server that can be reached again.
    """

    def __init__(self, location: ValkeyLocation, on_back: Callable[[int], object]) -> None:
        self.location = location
        self.endpoints = location.endpoints
        self.keys = KeyNames(location.root)
        self.all = range(len(location.endpoints))
        self.closed = False
        self._on_back = on_back
        self._idle: list[deque[Connection]] = [deque() for _ in self.all]
        self.failures: dict[int, VoteFailure] = {}
        self._run_ids: dict[int, str] = {}  # of those that are reached
        self._last_run_ids: dict[int, str] = {}  # of each, when it was
        self._durable: dict[int, bool] = {}
        self._quarantine_ends: dict[int, float] = {}  # by this machine's wall clock
        self._run_ids_lock = Lock()
        self._down_since: dict[int, float] = {}
        self._workers = [WorkerPool("server", 2) for _ in self.all]
        self._connecting: list[dict[object, float]] = [{} for _ in self.all]  # since when

    def note_quarantine(self, i: int, seconds: float) -> None:
        """Take note that a server votes in so many seconds, and tell of it once."""
        if not seconds:
            self._quarantine_ends.pop(i, None)
            return
        at = time.time() + seconds
        if at > self._quarantine_ends.get(i, 0.0) + _SAME_MOMENT_S:
            self._quarantine_ends[i] = at
            endpoint = self.endpoints[i]
            log.warning("%s has no vote for %.0f s: %s.", endpoint, seconds, QUARANTINE_REASON)

    # ------------------------------------------------------------ connections

    def borrow_idle(self, which: Iterable[int], poll: select.poll) -> dict[int, Connection]:
        """Return a connection to each server that has an idle one; all are in the poll then.

        By one look at it those are told from which something came that nobody waits for: most
        likely their end.
        """
        connections: dict[int, Connection] = {}
        wanted = which
        while wanted:
            for i in wanted:
                if i not in self.failures:
                    with suppress(IndexError):  # none is idle
                        connections[i] = self._idle[i].pop()
                        poll.register(connections[i].fd, select.POLLIN)
            ended = {fd for fd, _ in poll.poll(0)}
            wanted = [i for i in connections if connections[i].fd in ended] if ended else ()
            for i in wanted:
                poll.unregister(connections[i].fd)
                connections.pop(i).close()
                self._run_ids.pop(i, None)  # who is there now is yet to be seen
        return connections

    def give_back(self, i: int, connection: Connection) -> None:
        idle = self._idle[i]
        idle.append(connection)  # first, so that who closes all finds it
        if self.closed or len(idle) > _MAX_IDLE_CONNECTIONS:
            with suppress(IndexError):
                idle.pop().close()

    def connect_in_background(self, pending: PendingConnections) -> None:
        """Have connections opened, each by a thread of its server's: one that hangs delays none."""
        for i in pending.awaited:
            self._workers[i].submit(partial(self._connect_for, i, pending))

    def is_stuck(self, i: int) -> bool:
        """Tell whether a server lets somebody wait at its door for so long that nobody else should
        as well."""
        now = monotonic()
        return any(now - since > _STUCK_CONNECT_S for since in [*self._connecting[i].values()])

    def _connect_for(self, i: int, pending: PendingConnections) -> None:
        connection, connecting = None, self._connecting[i]
        connecting[pending] = monotonic()
        try:
            # By now it may have failed, or nobody wait any more, and others stand behind this.
            if i not in self.failures and not pending.closed:
                connection = self.open(i)
        except ServerUnusable as refusal:
            self.mark_failed(i, None, refusal.failure)
        finally:
            del connecting[pending]
            if not pending.put(i, connection) and connection is not None:
                self.give_back(i, connection)

    def open(self, i: int, vouched: Vouched = NOTHING_VOUCHED) -> Connection:
        """Return a new connection to a server.

        Raises:
            ServerUnusable: there is none, or none to a server that gives locks.
        """
        began = monotonic()
        try:
            connection = Connection(self.location, self.endpoints[i])
            try:
                connection.identify(self.keys, vouched)
                if (took := monotonic() - began) > SLOW_CONNECT_S:  # so would be its answers
                    reason = f"it is slow: it took {took:.1f} s to let us in"
                    raise ServerUnusable(VoteFailure(reason))
                new = self._note_process(i, connection)
            except BaseException:
                connection.close()
                raise
        except (errors.ErrorReply, errors.Unanswered) as error:
            raise ServerUnusable(errors.classify(error, self.location)) from error
        if not connection.durable and new:
            log.warning(
                "%s may forget what it has answered, as nobody vouches that it keeps it "
                "(clustermutex vouch --kept): after a restart it gives no locks for %.0f s.",
                *(self.endpoints[i], self.location.longest),
            )
        self.note_quarantine(i, connection.quarantine_s)
        return connection

    def _note_process(self, i: int, connection: Connection) -> bool:
        """Note which process is there; return whether it is another one than before."""
        run_id = connection.run_id
        with self._run_ids_lock:  # two names of one server may be opened at a time
            twin = next((server for server, at in self._run_ids.items() if at == run_id), i)
            if twin != i:
                reason = f"it is the same server as {self.endpoints[twin]}"
                raise ServerUnusable(VoteFailure(reason, permanent=True))
            new, self._last_run_ids[i] = self._last_run_ids.get(i) != run_id, run_id
            self._run_ids[i], self._durable[i] = run_id, connection.durable
        return new

    def open_all(
        self, vouched: Vouched = NOTHING_VOUCHED
    ) -> Iterator[tuple[str, Connection | VoteFailure]]:
        """Yield each server's address, and a new connection to it, or why there is none.

        The connection is closed when the next one is asked for.
        """
        for i in self.all:
            try:
                connection = self.open(i, vouched)
            except ServerUnusable as refusal:
                yield self.endpoints[i], refusal.failure
            else:
                with closing(connection):
                    yield self.endpoints[i], connection

    def mark_failed(self, i: int, connection: Connection | None, failure: VoteFailure) -> None:
        """A server failed: until it is reached again, it is absent."""
        if connection is not None:
            connection.close()
        new = i not in self.failures
        self.failures[i] = failure
        self._run_ids.pop(i, None)  # another one may be there by now, and it elsewhere
        while self._idle[i]:
            self._idle[i].pop().close()
        if new and not self.closed:
            first = partial(self._schedule_probe, i, _FIRST_PROBE_PAUSE_S)
            scheduler.shared.after(_FIRST_PROBE_PAUSE_S, first)

    def _schedule_probe(self, i: int, pause: float) -> None:
        self._workers[i].submit(partial(self._probe, i, pause))

    def _probe(self, i: int, pause: float) -> None:
        """Try to reach a server again, for as long as it takes."""
        if self.closed:
            return
        connection = None
        try:
            connection = self.open(i)
        except ServerUnusable as refusal:
            self.failures[i] = refusal.failure
            if i not in self._down_since and pause >= _MAX_PROBE_PAUSE_S:  # not for a hiccup
                self._down_since[i] = monotonic()
                endpoint = self.endpoints[i]
                log.warning("%s has no vote (%s); retrying.", endpoint, refusal.failure.reason)
            return
        finally:
            if connection is None:  # whatever kept it: else it would stay absent for ever
                again = min(2 * pause, _MAX_PROBE_PAUSE_S)
                scheduler.shared.after(again, partial(self._schedule_probe, i, again))
        self.give_back(i, connection)
        self.failures.pop(i, None)
        since = self._down_since.pop(i, None)
        if since is not None:
            endpoint = self.endpoints[i]
            log.warning("%s can be reached again after %.1f s.", endpoint, monotonic() - since)
        self._on_back(i)

    # ------------------------------------------------------------ for people

    def warnings(self) -> Iterator[str]:
        """Say of each server why it has no vote, and which may lose what they have answered.

        The same words as long as it stays so: no seconds are counted down.
        """
        for endpoint, why in self.votes().items():
            if why:
                yield f"{endpoint} has no vote: {why}."
        not_durable = [self.endpoints[i] for i in self.all if not self._durable.get(i, True)]
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
        return {self.endpoints[i]: self._reason_without_vote(i) for i in self.all}

    def _reason_without_vote(self, i: int) -> str:
        if (failure := self.failures.get(i)) is not None:
            return failure.reason
        if i not in self._run_ids:
            return "it has not been reached yet"
        if (at := self._quarantine_ends.get(i)) is None:
            return ""
        votes_from = time.strftime("%H:%M:%S UTC", time.gmtime(at))
        return f"{QUARANTINE_REASON}; it votes from {votes_from} on"

    def reachable(self, i: int) -> bool:
        """Tell whether a server answered the last time."""
        return i not in self.failures

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        for idle in self._idle:
            while idle:
                idle.pop().close()
        for workers in self._workers:
            workers.close()
