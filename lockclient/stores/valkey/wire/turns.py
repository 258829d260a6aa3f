"""Turns: of all in one process who wait for one name, one asks at a time, in the order they came.

A hundred threads that each take votes from each other get no lock for minutes, and a hundred that
are told of one release ask for it a hundred times. So the first of the queue alone is told of a
release, and alone asks; the others are answered as it was. Between processes nobody is first: each
first one lets a moment pass, any between none and longer the more of them listen, so that one of
them has the votes of all before the next one asks.

Nothing here takes a lock, as a signal's handler may come in between and ask as well: each change is
one step. What that leaves open costs a try more, or a wait of `_AGAIN_S`, and never a lock: those
are given by servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lockclient.model.clocks import monotonic
from lockclient.stores.protocol import WatchEvent

_STALE_S: Final = 1.0
"""Seconds after which what one was told is no answer to another any more: whoever looks then asks
the servers, so that one that sleeps, or a hint that was lost, keeps nobody waiting for long."""
_AGAIN_S: Final = 0.5
"""Seconds after which who is first is told again of a release, if nobody has seen who has the lock
since: its votes were split, or it sleeps, and then the next one is first."""


class Waiter:
    """One who waits.

    Args:
        channel: on which releases are told of the lock, or of all.
        notify: tells it.
        uuid: the acquisition that waits; empty: it only listens, and is told of everything.
        end: has it hear no more.
    """

    def __init__(
        self,
        channel: str,
        notify: Callable[[WatchEvent], None],
        uuid: str,
        end: Callable[[Waiter], None],
    ) -> None:
        self.channel = channel
        self.uuid = uuid
        self.notify = notify
        self.gone = False
        self._end = end

    def close(self) -> None:
        self._end(self)


class Waiters:
    """All who wait for one name in this process; the thread that listens adds to them, alone."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.queue: list[Waiter] = []
        self.listeners: list[Waiter] = []
        self.holder: str | None = None
        """Who had the lock when one of them was told last."""
        self.last_hint = b""
        """The release that was told last: each server tells of it."""
        self.hints = 0
        self._settled = 0  # the hint since which it was seen who has the lock
        self._asking: set[str] = set()
        self._asked_at = -math.inf
        self._told: Waiter | None = None
        self._told_at = -math.inf

    def everybody(self) -> list[Waiter]:
        """Return all, the first of the queue first."""
        return [*self.queue, *self.listeners]

    def remove(self, waiter: Waiter) -> None:
        """Somebody waits no more. If it was first, and was told of a release, the next one is."""
        waiter.gone = True  # first: who puts it at the end meanwhile looks afterwards
        for waiting in (self.queue, self.listeners):
            with suppress(ValueError):
                waiting.remove(waiter)
        if self._told is waiter:
            self.tell_first(self.hints)

    # ------------------------------------------------------------ asking

    def may_ask(self, uuid: str) -> bool:
        """Tell whether an acquisition may ask the servers now; else it is as `holder` says."""
        with suppress(IndexError):
            if self.queue[0].uuid != uuid and self._clock() < self._asked_at + _STALE_S:
                return False
        self._asked_at = self._clock()
        return True

    def asking(self, uuid: str) -> int:
        """An acquisition asks for the lock; return which hint it has heard."""
        self._asking.add(uuid)
        return self.hints

    def asked(self, uuid: str, heard: int, *, taken: bool, holder: str | None) -> None:
        """It was told: that it has the lock, who has, or (neither) nothing that is certain."""
        self._asking.discard(uuid)
        if taken or holder is not None:
            self.holder, self._settled = uuid if taken else holder, max(self._settled, heard)
        if taken:  # what is told from now on is of its own release
            for waiter in [waiter for waiter in self.queue if waiter.uuid == uuid]:
                self.remove(waiter)
        elif heard < self.hints:  # it was released meanwhile, and nobody was told
            self.tell_first(self.hints)

    # ------------------------------------------------------------ being told

    def tell_first(self, hint: int) -> float | None:
        """Tell who is first that the lock is free; return in how many seconds to do it again.

        None: there was another hint since, which does that, or it is known who has the lock.
        """
        if hint != self.hints or self._settled >= hint:
            return None
        if self._asking:  # it will be seen
            return _AGAIN_S
        try:
            first = self.queue[0]
            if (
                first is self._told
                and self._asked_at < self._told_at < self._clock() - _AGAIN_S / 2
            ):
                self.queue.append(self.queue.pop(0))
                if first.gone:
                    self.remove(first)
                first = self.queue[0]
        except IndexError:  # nobody waits any more
            return None
        self._told, self._told_at = first, self._clock()
        first.notify(WatchEvent(0))
        return _AGAIN_S
