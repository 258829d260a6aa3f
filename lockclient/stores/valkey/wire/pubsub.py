"""That a lock was let go of, as servers tell it: a thread that listens for those who wait or look.

A hint is only that. It is told when a release is confirmed, by each server that somebody listens
to, and may get lost with a connection: who waits looks for itself besides, from time to time.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.protocol import WatchEvent
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import connection_to
from lockclient.threads.pool import IDLE_S, WorkerPool

log = logging.getLogger(__name__)

_AGAIN: Final = 2.0
"""Seconds between two tries to reach a server."""
_QUIET: Final = 5.0
"""Seconds without a word after which a server is asked whether it is still there."""
_PROOF: Final = 2.0
"""Seconds that it has to say so."""
_AT_ONCE: Final = 100
"""Messages of one server that are read before all else has its turn."""


class Listener:
    """One who waits for hints about one lock."""

    def __init__(self, hints: PubSub, channel: str, notify: Callable[[WatchEvent], None]) -> None:
        self.channel = channel
        self.heard: bytes | None = None
        """The acquisition of which it was told last: each server tells of it."""
        self._hints = hints
        self._notify = notify

    def tell(self, event: WatchEvent) -> None:
        """Tell it."""
        self._notify(event)

    def close(self) -> None:
        self._hints.forget(self)


class PubSub:
    """Listens to all servers while somebody waits; with nobody it has no thread and no connection.

    Args:
        servers: which they are.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._keys = servers.keys
        self._new: deque[tuple[bool, Listener]] = deque()  # the thread's own is all else
        self._crew = WorkerPool("hints", 1)
        self._running = deque[bool]()
        self._ring: socket.socket | None = None  # while it runs: what wakes it
        self._closed = False

    def listen(self, name: str, notify: Callable[[WatchEvent], None]) -> Listener:
        """Tell of a lock's releases from now on; first, by `Event.started`, that this has begun."""
        listener = Listener(self, self._keys.channel(name), notify)
        self._say(True, listener)
        return listener

    def listen_to_all(self, notify: Callable[[], None]) -> Listener:
        """Tell of all locks' releases from now on, as far as they are told at all.

        Of one that nobody waits for several servers tell nothing: it would be a round more.
        """

        def tell(event: WatchEvent) -> None:
            if not event.started or event.gap:  # from the begin all is read anyway
                notify()

        listener = Listener(self, self._keys.channels, tell)
        self._say(True, listener)
        return listener

    def forget(self, listener: Listener) -> None:
        """Tell it nothing more."""
        self._say(False, listener)

    def _say(self, comes: bool, listener: Listener) -> None:
        self._new.append((comes, listener))
        self._wake()
        # First what is new, then the look: the thread does it the other way round as it ends.
        if not (self._running or self._closed):
            self._crew.submit(self._run)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake()
        self._crew.close()

    def _wake(self) -> None:
        ring = self._ring
        if ring is not None:
            with suppress(OSError):  # full: it will wake anyway; or closed: it looks once more
                ring.send(b"!")

    def _run(self) -> None:
        bell, self._ring = socket.socketpair()
        with bell, self._ring:
            bell.setblocking(False)
            self._ring.setblocking(False)
            self._running.append(True)
            try:
                self._listen(bell)
            finally:
                self._ring = None
                self._running.pop()
        if self._new and not self._closed:
            self._crew.submit(self._run)

    def _listen(self, bell: socket.socket) -> None:
        ears = [_Ear(self._servers, i) for i in self._servers.all]
        listeners: dict[str, set[Listener]] = {}
        idle = Deadline.after(IDLE_S)
        try:
            while not self._closed and not (idle.expired() and not listeners and not self._new):
                self._take_note(bell, listeners, ears)
                if listeners:
                    idle = Deadline.after(IDLE_S)
                for ear in ears:
                    ear.see_to(listeners)
                self._wait(bell, ears, listeners)
        finally:
            for ear in ears:
                ear.close()

    def _take_note(
        self, bell: socket.socket, listeners: dict[str, set[Listener]], ears: list[_Ear]
    ) -> None:
        with suppress(BlockingIOError):
            bell.recv(4096)
        while self._new:
            comes, listener = self._new.popleft()
            if comes:
                listeners.setdefault(listener.channel, set()).add(listener)
                if any(listener.channel in ear.confirmed for ear in ears):
                    listener.tell(WatchEvent(0, started=True))
            elif listener.channel in listeners:
                listeners[listener.channel].discard(listener)
                if not listeners[listener.channel]:
                    del listeners[listener.channel]

    def _wait(
        self, bell: socket.socket, ears: list[_Ear], listeners: dict[str, set[Listener]]
    ) -> None:
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        by_fd = {ear.fd: ear for ear in ears if ear.fd >= 0}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        full = [ear for ear in ears if ear.more]
        ready = {fd for fd, _ in poll.poll(0 if full else 1000 * _AGAIN / 2)}
        for fd, ear in by_fd.items():
            if fd in ready or ear.more:
                self._tell(ear, listeners)

    @staticmethod
    def _tell(ear: _Ear, listeners: dict[str, set[Listener]]) -> None:
        hinted: dict[Listener, None] = {}  # once, however many have let go of it meanwhile
        for kind, channel, payload in ear.read():
            for each in [*listeners.get(channel, ())]:
                if kind in ("subscribe", "back"):
                    each.tell(WatchEvent(0, started=True, gap=kind == "back"))
                elif kind == "message" and each.heard != payload:
                    each.heard = payload
                    hinted[each] = None
        for each in hinted:
            each.tell(WatchEvent(0))


class _Ear:
    """A connection that listens to one server."""

    def __init__(self, servers: Broadcast, i: int) -> None:
        self.fd = -1
        self.confirmed: set[str] = set()
        self.more = False
        """Whether it has said more than was read, so that nothing need come for it to be read."""
        self._heard_at = 0.0
        self._asked_at: float | None = None
        self._endpoint = servers.place.endpoints[i]
        self._connection = connection_to(servers.place, self._endpoint)
        self._all = servers.keys.channels
        self._servers = servers
        self._number = i
        self._asked: set[str] = set()
        self._lost: set[str] = set()
        self._next_try = 0.0
        self._refused = False

    def see_to(self, wanted: dict[str, set[Listener]]) -> None:
        """Listen to these channels, and to no other one; nothing is waited for but a connection.

        And not for one to a server that is away: the hints of all others would wait as long.
        """
        if not self._servers.reachable(self._number):
            if self.fd >= 0:  # most likely its way is cut: there is a new one when it is back
                self.close()
            return
        if self.fd < 0 and not (wanted and monotonic() >= self._next_try):
            return
        try:
            if self.fd < 0:
                self._connection.connect()
                self.fd = self._connection._sock.fileno()
                self._heard_at = monotonic()
            self._prove()
            for command, channels in (
                ("SUBSCRIBE", wanted.keys() - self._asked),
                ("UNSUBSCRIBE", self._asked - wanted.keys()),
            ):
                patterns = channels & {self._all}
                if channels - patterns:
                    self._connection.send_command(command, *channels - patterns)
                if patterns:
                    self._connection.send_command(f"P{command}", *patterns)
            self._asked = set(wanted)
            self.confirmed &= self._asked
            self._lost &= self._asked
        except (*errors.Unanswered, errors.Refused) as error:
            self._failed(error)

    def _prove(self) -> None:
        """See to it that the server has said something lately, or fail: a connection that was cut
        without a word looks like one on which nothing happens.

        It is asked to tell again that it is listened to, which needs no right besides.
        """
        now = monotonic()
        if self._asked_at is None and self._asked and now > self._heard_at + _QUIET:
            self._asked_at = now
            channel = next(iter(self._asked))
            command = "PSUBSCRIBE" if channel == self._all else "SUBSCRIBE"
            self._connection.send_command(command, channel)
        elif self._asked_at is not None and now > self._asked_at + _PROOF:
            raise TimeoutError("it says nothing any more")

    def read(self) -> list[tuple[str, str, bytes]]:
        """Return what was told: kind, channel or pattern, and what was said."""
        told: list[tuple[str, str, bytes]] = []
        self.more, self._heard_at, self._asked_at = False, monotonic(), None
        try:
            for _ in range(_AT_ONCE):
                words, channel, *_, payload = self._connection.read_response()
                kind, channel = words.decode().removeprefix("p"), channel.decode(errors="replace")
                if kind == "subscribe":
                    kind = self._confirmed(channel)
                told.append((kind, channel, payload if isinstance(payload, bytes) else b""))
                if not self._connection.can_read(0):
                    return told
            self.more = True
        except (*errors.Unanswered, errors.Refused) as error:
            self._failed(error)
        return told

    def _confirmed(self, channel: str) -> str:
        """Return what a confirmation says: that it begins, that it goes on after a break in which
        something may have been told, or nothing new."""
        if channel in self.confirmed:
            return "again"
        self.confirmed.add(channel)
        lost = channel in self._lost
        self._lost.discard(channel)
        return "back" if lost else "subscribe"

    def _failed(self, error: Exception) -> None:
        if isinstance(error, errors.Refused) and not self._refused:
            self._refused = True
            words = errors.answered(error).words
            log.warning("%s tells no hints, so it is only looked: %s", self._endpoint, words)
        self.close()
        self._next_try = monotonic() + _AGAIN

    def close(self) -> None:
        """Listen no more."""
        self._connection.disconnect()
        self._lost |= self._asked
        self.fd, self.more, self._asked_at = -1, False, None
        self._asked, self.confirmed = set(), set()
