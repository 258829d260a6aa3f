"""Undo queue: what is still to be undone on each server, retried until it is confirmed.

A take that came to nothing, a release, a withdrawal: what a majority has confirmed counts. But each
server that was sent the take may have done it, or may do it yet, and three such keys of three dead
acquisitions would block a name on five servers. So what undoes it is queued for each of them, with
a tombstone where the take was never answered and so may arrive after that. For a server that was
sent nothing, nothing is queued: a queue does not grow while its server is down.

If the process ends before that, what is left stands on that server until it expires, or until who
takes the lock finds that it is stale (`TakeExecutor._purge_stale`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey.lua_scripts import Reply
from lockclient.stores.valkey.voting.quorum import GRANTED
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads import scheduler
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

_RETRY_PAUSE_S, _REFUSED_PAUSE_S = 1.0, 30.0
"""Seconds between two tries with a server that does not do it for now, and with one that refuses it
for want of a right."""
_MAX_POSTPONED: Final = 16
"""Commands that were not done, after which the rest waits for the next try."""
_TIMEOUT_S: Final = 1.0
_MAX_PENDING: Final = 10_000
"""Of one server; each is less than a kilobyte."""


class _Undo(NamedTuple):
    """A command that undoes requests to a server, after each was answered or never will be."""

    drop: Command
    tombstone: Command
    requests: tuple[Sent, ...] = ()

    def is_in_flight(self) -> bool:
        return any(request.answer is None for request in self.requests)

    def command(self) -> Command | None:
        """Return what is to be done. A take that was answered needs no tombstone: it can't arrive
        any more. One that was refused, or not sent, needs nothing."""
        if any(request.unanswered for request in self.requests):
            return self.tombstone
        return self.drop if not self.requests or any(map(is_granted, self.requests)) else None


class UndoQueue:
    """Commands that wait for each server, sent in the background.

    Args:
        servers: whose.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._pending: list[OrderedDict[_Undo, None]] = [OrderedDict() for _ in servers.all]
        self._running: set[int] = set()
        self._overflowed: set[int] = set()
        self._workers = WorkerPool("undo", len(servers.all))

    def add(self, which: Iterable[int], command: Command) -> None:
        """Have this done by these servers, as soon as they can be reached."""
        for i in which:
            self._add(i, _Undo(command, command))

    def add_when_answered(
        self, i: int, requests: Sequence[Sent], drop: Command, tombstone: Command
    ) -> None:
        """Have requests to a server undone when each was answered, or never will be."""
        undo = _Undo(drop, tombstone, tuple(requests))
        if requests and (undo.is_in_flight() or undo.command()):
            self._add(i, undo)

    def _add(self, i: int, undo: _Undo) -> None:
        pending = self._pending[i]
        pending[undo] = None
        if len(pending) > _MAX_PENDING:
            pending.popitem(last=False)
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
        """Begin with a server's queue, unless that is under way: also as a server comes back, or
        has answered late."""
        if self._pending[i] and i not in self._running and self._servers.reachable(i):
            self._running.add(i)
            self._workers.submit(partial(self._run, i))

    def _run(self, i: int) -> None:
        pending, postponed, pause = self._pending[i], 0, _RETRY_PAUSE_S
        try:
            while len(pending) > postponed < _MAX_POSTPONED and self._servers.reachable(i):
                undo, _ = pending.popitem(last=False)  # atomic: `_add` runs meanwhile
                if undo.is_in_flight():
                    failure = None
                elif (command := undo.command()) is None:
                    continue
                else:
                    result = self._servers.ask({i: Sent(command)}, Deadline.after(_TIMEOUT_S), bool)
                    failure = result.failures.get(i)
                    if failure is None or failure.foreign_key:
                        continue
                pending[undo] = None  # at the end: it holds up nothing behind it
                postponed += 1
                if failure is not None and failure.permanent:
                    pause = _REFUSED_PAUSE_S
        finally:
            self._running.discard(i)
            if pending and not self._servers.closed:  # out of reach, it goes on as it comes back
                scheduler.shared.after(pause, partial(self.run, i))

    def drain(self, seconds: float) -> None:
        """Wait until all is done that can be, but not longer than that."""
        deadline, servers = Deadline.after(seconds), self._servers
        while any(
            self._pending[i] or i in self._running for i in servers.all if servers.reachable(i)
        ):
            if deadline.expired():
                return
            time.sleep(0.005)

    def close(self) -> None:
        """End it; say what is left where."""
        for i, pending in enumerate(self._pending):
            if pending:
                log.warning(
                    "%s: %d deletions were not confirmed before the store was closed; their keys "
                    "expire, or the next taker of the lock deletes them.",
                    self._servers.endpoints[i],
                    len(pending),
                )
        self._workers.close()


def is_granted(request: Sent) -> bool:
    """Tell whether a server said that it gives its vote."""
    return isinstance(request.answer, Reply) and request.answer.kind in (*GRANTED, "given")
