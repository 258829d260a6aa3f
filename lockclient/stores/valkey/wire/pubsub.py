"""Pub/sub hints of releases: one thread subscribes to all servers for waiters and followers.

A process that releases a lock publishes a hint once the release is confirmed, on each server that
has subscribers. A hint may get lost with a connection, so waiters and followers poll besides.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

from valkey.exceptions import InvalidResponse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import CONNECT_TIMEOUT_S, Connection, connected
from lockclient.stores.valkey.wire.wakeup import WakeUp
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import IDLE_S, WorkerPool

log = get_logger(__name__)

_RECONNECT_PAUSE_S: Final = 2.0
"""Seconds between two tries to reach a server."""
_QUIET_S: Final = 5.0
"""Seconds without a word after which a server is asked whether it is still there."""
_PROOF_TIMEOUT_S: Final = 2.0
"""Seconds that it has to say so."""
_SPREAD: Final = 2.0
_MAX_SPREAD_S: Final = 0.5
"""Each process that hears of a release pauses for a random time, up to that of so many rounds for
each of the others and no longer than this: so one takes the lock before the next one asks."""

Hear = Callable[[str, float], None]
"""Called with `subscribe` when a server begins to send hints, `back` when it does so after a break,
or `message`, and the seconds to pause."""


class Listener:
    """A subscription to the hints of one channel."""

    def __init__(self, channel: str, hear: Hear, end: Callable[[Listener], None]) -> None:
        self.channel = channel
        self.hear = hear
        self._end = end

    def close(self) -> None:
        self._end(self)


class _Channel:
    """The listeners of one channel, and the release that was told last: each server tells of it."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.last_hint = b""

    def tell(self, news: str, pause: float) -> None:
        for hear in dict.fromkeys(listener.hear for listener in self.listeners):
            hear(news, pause)


class PubSub:
    """Listens to all servers while somebody waits; with nobody it has no thread and no connection.

    Args:
        servers: which they are.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._keys = servers.keys
        self._requests: deque[tuple[bool, Listener]] = deque()
        self._worker = WorkerPool("hints", 1)
        self._running = deque[bool]()
        self._wakeup: WakeUp | None = None  # while it runs
        self._closed = False
        # What follows is the thread's own.
        self._subscribers: list[_Subscriber] = []
        self._channels: dict[str, _Channel] = {}

    def listen(self, name: str, hear: Hear) -> Listener:
        """Tell of a lock's releases from now on, of each once."""
        return self._listen(self._keys.channel(name), hear)

    def listen_to_all(self, notify: Callable[[], None]) -> Listener:
        """Tell of all locks' releases from now on, as far as they are published at all.

        Several servers publish none that nobody waits for: it would be a round more.
        """

        def hear(news: str, _pause: float) -> None:
            if news != "subscribe":  # from the begin all is read anyway
                notify()

        return self._listen(self._keys.channels, hear)

    def _listen(self, channel: str, hear: Hear) -> Listener:
        listener = Listener(channel, hear, partial(self._request, False))
        self._request(True, listener)
        return listener

    def _request(self, comes: bool, listener: Listener) -> None:
        """Have the thread begin with a listener, or end it."""
        self._requests.append((comes, listener))
        self._wake()
        # The caller appends the request, then reads `_running`. The thread empties `_running`, then
        # reads the requests. So at least one of them sees the other, and starts a thread.
        if not (self._running or self._closed):
            self._worker.submit(self._run)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake()
        self._worker.close()

    def _wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()

    def _run(self) -> None:
        wakeup = self._wakeup = WakeUp()
        self._running.append(True)
        try:
            self._serve(wakeup)
        finally:
            self._wakeup = None
            wakeup.close()
            self._running.pop()
        if self._requests and not self._closed:
            self._worker.submit(self._run)

    def _serve(self, wakeup: WakeUp) -> None:
        self._subscribers = [_Subscriber(self._servers, i) for i in self._servers.all]
        self._channels = {}
        idle = Deadline.after(IDLE_S)
        try:
            while not self._closed:
                if idle.expired() and not self._channels and not self._requests:
                    return
                wakeup.clear()
                self._apply_requests()
                if self._channels:
                    idle = Deadline.after(IDLE_S)
                for subscriber in self._subscribers:
                    subscriber.update(self._channels)
                self._wait(wakeup)
        finally:
            for subscriber in self._subscribers:
                subscriber.close()

    def _apply_requests(self) -> None:
        channels = self._channels
        while self._requests:
            comes, listener = self._requests.popleft()
            if comes:
                channels.setdefault(listener.channel, _Channel()).listeners.append(listener)
            elif (channel := channels.get(listener.channel)) is not None:
                with suppress(ValueError):
                    channel.listeners.remove(listener)
                if not channel.listeners:
                    del channels[listener.channel]

    def _wait(self, wakeup: WakeUp) -> None:
        poll = select.poll()
        poll.register(wakeup.fd, select.POLLIN)
        connections = {}
        for subscriber in self._subscribers:
            if (connection := subscriber.connection) is not None:
                connections[connection.fileno()] = subscriber, connection
                poll.register(connection.fileno(), select.POLLIN)
        for fd, _ in poll.poll(1000 * _RECONNECT_PAUSE_S / 2):
            if fd in connections:
                subscriber, connection = connections[fd]
                self._deliver(subscriber.read(connection))

    def _deliver(self, messages: list[tuple[str, str, bytes]]) -> None:
        hinted: dict[str, int] = {}  # once, however many releases there were meanwhile
        for kind, name, payload in messages:
            if (channel := self._channels.get(name)) is None:
                continue
            if kind in ("subscribe", "back"):
                channel.tell(kind, 0.0)
            elif kind == "message" and channel.last_hint != payload:
                channel.last_hint = payload
                hinted[name] = number_of(payload.partition(b" ")[2], 4)
        for name, listening in hinted.items():
            self._channels[name].tell("message", self._pause(listening))

    def _pause(self, listening: int) -> float:
        """Return the pause after a release of which so many connections are told."""
        rivals = listening - 1 if len(self._servers.all) > 1 else 0
        spread = min(rivals * _SPREAD * self._servers.round_s, _MAX_SPREAD_S)
        return Backoff(spread, 0.0, 0.0).next() if spread > 0 else 0.0


def _message(answer: Any) -> tuple[str, str, Any]:
    """Return the kind of a message, its channel or pattern, and what it says."""
    match answer:
        case [bytes() as kind, bytes() as channel, *_, payload]:
            return kind.decode().removeprefix("p"), channel.decode(errors="replace"), payload
    raise InvalidResponse("it sends something else than messages")


class _Subscriber:
    """A connection that listens to one server."""

    def __init__(self, servers: Broadcast, i: int) -> None:
        self.connection: Connection | None = None
        self.confirmed: set[str] = set()
        self._last_message_at = 0.0
        self._proof_asked_at: float | None = None
        self._endpoint = servers.endpoints[i]
        self._all = servers.keys.channels
        self._servers = servers
        self._server = i
        self._subscribed: set[str] = set()
        self._interrupted: set[str] = set()
        self._next_try = 0.0
        self._refusal_logged = False

    def update(self, wanted: Collection[str]) -> None:
        """Listen to these channels, and to no other one; nothing is waited for but a connection.

        And not for one to a server that is away: the hints of all others would wait as long.
        """
        connection = self.connection
        if not self._servers.reachable(self._server):
            if connection is not None:  # most likely its way is cut: there is a new one when it is
                self.close()  # back
            return
        if connection is None and not (wanted and monotonic() >= self._next_try):
            return
        try:
            if connection is None:
                connection = connected(self._servers.location, self._endpoint)
                self.connection, self._last_message_at = connection, monotonic()
            self._prove(connection)
            for command, channels in (
                ("SUBSCRIBE", {*wanted} - self._subscribed),
                ("UNSUBSCRIBE", self._subscribed - {*wanted}),
            ):
                patterns = channels & {self._all}
                if channels - patterns:
                    self._send(connection, command, *channels - patterns)
                if patterns:
                    self._send(connection, f"P{command}", *patterns)
            self._subscribed = set(wanted)
            self.confirmed &= self._subscribed
            self._interrupted &= self._subscribed
        except errors.FAILED as error:
            self._disconnected(error)

    @staticmethod
    def _send(connection: Connection, *words: str) -> None:
        connection.send_words(words, Deadline.after(CONNECT_TIMEOUT_S))

    def _prove(self, connection: Connection) -> None:
        """See to it that the server has said something lately, or fail: a connection that was cut
        without a word looks like one on which nothing happens.

        It is asked to tell again that it is listened to, which needs no right besides.
        """
        now = monotonic()
        if (
            self._proof_asked_at is None
            and self._subscribed
            and now > self._last_message_at + _QUIET_S
        ):
            self._proof_asked_at = now
            channel = next(iter(self._subscribed))
            command = "PSUBSCRIBE" if channel == self._all else "SUBSCRIBE"
            self._send(connection, command, channel)
        elif self._proof_asked_at is not None and now > self._proof_asked_at + _PROOF_TIMEOUT_S:
            raise TimeoutError("it says nothing any more")

    def read(self, connection: Connection) -> list[tuple[str, str, bytes]]:
        """Return what was told: kind, channel or pattern, and what was said."""
        messages: list[tuple[str, str, bytes]] = []
        self._last_message_at, self._proof_asked_at = monotonic(), None
        try:
            for answer in connection.receive():
                kind, channel, payload = _message(answer)
                if kind == "subscribe":
                    kind = self._confirmed(channel)
                messages.append((kind, channel, payload if isinstance(payload, bytes) else b""))
        except errors.FAILED as error:
            self._disconnected(error)
        return messages

    def _confirmed(self, channel: str) -> str:
        """Return what a confirmation says: that it begins, that it goes on after a break in which
        something may have been told, or nothing new."""
        if channel in self.confirmed:
            return "again"
        self.confirmed.add(channel)
        lost = channel in self._interrupted
        self._interrupted.discard(channel)
        return "back" if lost else "subscribe"

    def _disconnected(self, error: Exception) -> None:
        if isinstance(error, errors.ErrorReply) and not self._refusal_logged:
            self._refusal_logged = True
            reason = errors.classify(error).reason
            log.warning("%s sends no hints, so it is only polled: %s", self._endpoint, reason)
        self.close()
        self._next_try = monotonic() + _RECONNECT_PAUSE_S

    def close(self) -> None:
        """Listen no more."""
        if self.connection is not None:
            self.connection.close()
        self._interrupted |= self._subscribed
        self.connection, self._proof_asked_at = None, None
        self._subscribed, self.confirmed = set(), set()
