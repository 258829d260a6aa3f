"""What is still to be undone in servers that could not be asked: tried until it is confirmed.

A take that came to nothing, a release, a withdrawal: what a majority has confirmed counts. But each
server that was sent the take may have done it, or may do it yet, and three such keys of three dead
acquisitions would block a name on five servers. So each of them is owed what undoes it, with a mark
for what arrives after that. A server that was sent nothing is owed nothing: what is owed does not
grow while one is down.

If the process ends before that, what is left stands on that server until it expires, or until who
takes the lock finds that it is over (`getting`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Final

from lockclient.model.clocks import Deadline
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command
from lockclient.threads import scheduler
from lockclient.threads.pool import WorkerPool

log = logging.getLogger(__name__)

_AGAIN, _LONGEST_AGAIN = 0.5, 30.0
"""Seconds between two tries with a server that answers, and does not do it."""
_REFUSED: Final = 16
"""Refusals after which the rest waits for the next try."""
_TRY: Final = 1.0
_MOST: Final = 10_000
"""Of one server; each is less than a kilobyte."""


class UndoQueue:
    """What is owed to each server, paid in the background.

    Args:
        servers: whose.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._owed: list[OrderedDict[Command, None]] = [OrderedDict() for _ in servers.all]
        self._paying: set[int] = set()
        self._pause = [_AGAIN] * len(servers.all)
        self._crew = WorkerPool("undo", len(servers.all))

    def owe(self, which: Iterable[int], call: Command) -> None:
        """Have this done by these servers, as soon as they can be reached."""
        for i in which:
            owed = self._owed[i]
            owed[call] = None
            if len(owed) > _MOST:
                owed.popitem(last=False)
                if len(owed) == _MOST:
                    endpoint = self._servers.place.endpoints[i]
                    log.warning(
                        "%s was owed too much: some of it stays until it expires.", endpoint
                    )
            self.pay(i)

    def pay(self, i: int) -> None:
        """Begin, unless that is under way: also as a server comes back."""
        if self._owed[i] and i not in self._paying and self._servers.reachable(i):
            self._paying.add(i)
            self._crew.submit(partial(self._pay, i))

    def _pay(self, i: int) -> None:
        owed, refused, paid = self._owed[i], 0, False
        try:
            while len(owed) > refused < _REFUSED and self._servers.reachable(i):
                call = next(iter(owed))
                found = self._servers.ask({i: call}, Deadline.after(_TRY), bool)
                trouble = found.troubles.get(i)
                if i in found.answers or (trouble is not None and trouble.taken):
                    owed.pop(call, None)  # what is no lock there, is none of ours to undo
                    paid = True
                elif i in found.silent:
                    break
                else:  # what it refuses holds up nothing behind it
                    refused += 1
                    if call in owed:
                        owed.move_to_end(call)
        finally:
            self._paying.discard(i)
        self._pause[i] = _AGAIN if paid else min(2 * self._pause[i], _LONGEST_AGAIN)
        if owed and not self._servers.closed:  # if it is out of reach, it is paid as it comes back
            scheduler.shared.after(self._pause[i], partial(self.pay, i))

    def unpaid(self) -> int:
        """Return how much is owed to servers that can be reached."""
        return sum(len(owed) for i, owed in enumerate(self._owed) if self._servers.reachable(i))

    def settle(self, seconds: float) -> None:
        """Wait until all is paid that can be, but not longer than that."""
        deadline = Deadline.after(seconds)
        while self.unpaid() and not deadline.expired():
            time.sleep(0.005)

    def close(self) -> None:
        """End it; say what is left where."""
        for i, owed in enumerate(self._owed):
            if owed:
                log.warning(
                    "%s may keep locks that were let go of (%d), until they expire or are seen to "
                    "be over by who takes them: it was not done before the store was closed.",
                    *(self._servers.place.endpoints[i], len(owed)),
                )
        self._crew.close()
