"""Retry queue: commands that each server still has to execute, repeated until it confirms them.

A failed take, a release, a withdrawal: a majority's confirmation is enough. But each server that
was sent the take may have executed it, or may do so later, and three such keys of three ended
acquisitions would block a name on five servers. So the command that withdraws it is queued for each
of them, with a tombstone where the take was never answered and so may arrive later. Nothing is
queued for a server that was sent nothing, so a queue does not grow while its server is down.

If the process ends first, the rest stays on that server until it expires, or until a taker of the
lock deletes it as stale (`Taking._purge_stale`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey.errors import VoteFailure
from lockclient.stores.valkey.lua_scripts import Command, Reply
from lockclient.stores.valkey.voting.quorum import GRANTED
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import Repeating, WorkerPool

log = get_logger(__name__)

_RETRY_PAUSE_S = 1.0
"""Seconds until a failed command is repeated, a refused one, too: many refusals pass."""
_MAX_POSTPONED: Final = 16
"""Failed commands after which the others wait for the next try."""
_TIMEOUT_S: Final = 1.0
_MAX_PENDING: Final = 10_000
"""Commands queued for one server, each of less than a kilobyte."""


class _Queued(NamedTuple):
    """A command that withdraws requests to a server, after each was answered or never will be."""

    drop: Command
    tombstone: Command
    requests: tuple[Sent, ...] = ()

    def is_in_flight(self) -> bool:
        return any(request.answer is None for request in self.requests)

    def command(self) -> Command | None:
        """Return the command to send. A take that was answered can't arrive later, and needs no
        tombstone. One that was refused, or not sent, needs nothing."""
        if any(request.unanswered for request in self.requests):
            return self.tombstone
        return self.drop if not self.requests or any(map(is_granted, self.requests)) else None


class RetryQueue:
    """Commands that wait for each server, sent in the background.

    Args:
        servers: the servers.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._workers = WorkerPool("retries", len(servers.all))
        self._pending: list[dict[_Queued, None]] = [{} for _ in servers.all]
        self._sending: set[int] = set()
        self._overflowed: set[int] = set()
        self._jobs = [
            Repeating(self._workers.submit, partial(self._send_all, i)) for i in servers.all
        ]

    def add(self, which: Iterable[int], command: Command) -> None:
        """Have these servers execute this, as soon as they can be reached."""
        for i in which:
            self._add(i, _Queued(command, command))

    def add_when_answered(
        self, i: int, requests: Sequence[Sent], drop: Command, tombstone: Command
    ) -> None:
        """Have requests to a server withdrawn when each was answered, or never will be."""
        queued = _Queued(drop, tombstone, tuple(requests))
        if requests and (queued.is_in_flight() or queued.command()):
            self._add(i, queued)

    def _add(self, i: int, queued: _Queued) -> None:
        pending = self._pending[i]
        pending[queued] = None
        if len(pending) > _MAX_PENDING:
            oldest, *_ = pending  # one step in C, whatever other threads do
            pending.pop(oldest, None)
            if i not in self._overflowed:
                self._overflowed.add(i)
                log.warning(
                    "%s: more than %d pending deletions; the oldest were dropped. Their keys "
                    "expire by themselves.",
                    self._servers.endpoints[i],
                    _MAX_PENDING,
                )
        self.run(i)

    def run(self, i: int) -> None:
        """Send a server's commands: also when it can be reached again, or has answered late."""
        if self._pending[i] and self._servers.reachable(i):
            self._jobs[i].run_within(0)

    def _send_all(self, i: int) -> float | None:
        """Send a server's commands; return the seconds to the next try."""
        self._sending.add(i)
        try:
            return self._send_pending(i)
        finally:
            self._sending.discard(i)

    def _send_pending(self, i: int) -> float | None:
        pending, postponed = self._pending[i], 0
        for queued in list(pending):  # one step in C: `_add` may run meanwhile
            if not self._servers.reachable(i):
                return None  # `run` is called when it can be reached
            pending.pop(queued, None)  # before it is sent: `_add` may queue an equal one meanwhile
            failure = self._send(i, queued)
            if failure is not None:
                pending[queued] = None  # at the end: it delays no other command
                postponed += 1
                if postponed == _MAX_POSTPONED:
                    break
        return _RETRY_PAUSE_S if pending and not self._servers.closed else None

    def _send(self, i: int, queued: _Queued) -> VoteFailure | None:
        """Send a server one command; return why it has to be repeated."""
        if queued.is_in_flight():
            return _IN_FLIGHT
        if (command := queued.command()) is None:
            return None
        result = self._servers.ask({i: command}, Deadline.after(_TIMEOUT_S))
        failure = result.failures.get(i)
        return None if failure is None or failure.foreign_key else failure

    def drain(self, seconds: float) -> None:
        """Wait until all reachable servers have executed their commands, at most for `seconds`."""
        deadline, servers = Deadline.after(seconds), self._servers
        while any(
            self._pending[i] or i in self._sending for i in servers.all if servers.reachable(i)
        ):
            if deadline.expired():
                return
            time.sleep(0.005)

    def close(self) -> None:
        """Forget all commands; log how many."""
        for i, pending in enumerate(self._pending):
            if pending:
                log.warning(
                    "%s: %d deletions were not confirmed before the store was closed; their keys "
                    "expire, or the next taker of the lock deletes them.",
                    self._servers.endpoints[i],
                    len(pending),
                )
        self._workers.close()


_IN_FLIGHT: Final = VoteFailure("a request that it withdraws is in flight")


def is_granted(request: Sent) -> bool:
    """Tell whether a server answered that it gives its vote."""
    return isinstance(request.answer, Reply) and request.answer.kind in (*GRANTED, "restored")
