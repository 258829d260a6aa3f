"""Pub/sub hints of releases: one thread subscribes to all servers for waiters and followers.

A process that releases a lock publishes a hint once the release is confirmed, on each server that
has subscribers. A hint may get lost with a connection, so waiters and followers poll as well.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from valkey.exceptions import InvalidResponse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.wire.broadcast import Broadcast, WakeUp
from lockclient.stores.valkey.wire.connection import CONNECT_TIMEOUT_S, Connection, connected
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import IDLE_S, Repeating, WorkerPool

log = get_logger(__name__)

_RECONNECT_PAUSE_S: Final = 2.0
"""Seconds between two tries to reach a server."""
_QUIET_S: Final = 5.0
"""Seconds without a message after which a server has to prove that the connection works."""
_PROOF_TIMEOUT_S: Final = 2.0
"""Seconds for that proof."""
_SPREAD: Final = 2.0
_MAX_SPREAD_S: Final = 0.5
"""After a release each process pauses for a random time: up to `_SPREAD` rounds for each other
process, and no longer than this. So one process takes the lock before the next one asks."""

Hear = Callable[[str, float], None]
"""Called with `subscribe` when a server begins to send hints, also after a break in which some were
lost, or `message`; and the seconds to pause."""


@dataclass(eq=False, frozen=True)
class Listener:
    """A subscription to the hints of one channel; `end` closes it."""

    channel: str
    hear: Hear
    end: Callable[[Listener], None]

    def close(self) -> None:
        self.end(self)


class _Channel:
    """The listeners of one channel, and its last release: each server publishes that."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.last_hint = b""

    def call(self, news: str, pause: float) -> None:
        """Call each different function of the listeners once."""
        for hear in dict.fromkeys(listener.hear for listener in self.listeners):
            hear(news, pause)


class PubSub:
    """Subscribes to all servers while there are listeners, and then runs a thread.

    Args:
        servers: which they are.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._keys = servers.keys
        self._requests: deque[tuple[bool, Listener]] = deque()
        self._worker = WorkerPool("hints", 1)
        self._serving = Repeating(self._worker.submit, self._serve)
        self._wakeup: WakeUp | None = None  # while the thread serves
        self._closed = False
        self._channels: dict[str, _Channel] = {}  # the thread's own

    def listen(self, name: str, hear: Hear) -> Listener:
        """Call `hear` with each release of a lock from now on, once."""
        return self._listen(self._keys.channel(name), hear)

    def listen_to_all(self, notify: Callable[[], None]) -> Listener:
        """Call `notify` after the published releases of all locks from now on.

        Several servers publish only releases that a waiter listens for: others would cost a round.
        """

        def hear(news: str, _pause: float) -> None:
            if news == "message":  # the caller polls by itself after a break
                notify()

        return self._listen(self._keys.channels, hear)

    def _listen(self, channel: str, hear: Hear) -> Listener:
        listener = Listener(channel, hear, partial(self._request, False))
        self._request(True, listener)
        return listener

    def _request(self, comes: bool, listener: Listener) -> None:
        """Have the thread add a listener, or remove it."""
        # The caller appends the request, then reads `_wakeup`. The thread clears `_wakeup`, then
        # reads the requests. So at least one of them sees the other, and the thread serves.
        self._requests.append((comes, listener))
        if not self._wake() and not self._closed:
            self._serving.run_within(0)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake()
        self._worker.close()

    def _wake(self) -> bool:
        """Wake the thread; return False if it does not serve."""
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()
        return wakeup is not None

    # ------------------------------------------------------------ the thread

    def _serve(self) -> float | None:
        """Serve until there was no listener for a while; return 0.0 to be called again."""
        if not self._requests:
            return None
        wakeup = self._wakeup = WakeUp()
        subscribers = [_Subscriber(self._servers, i) for i in self._servers.all]
        self._channels = {}
        idle = Deadline.after(IDLE_S)
        try:
            while not self._closed and (self._channels or self._requests or not idle.expired()):
                wakeup.clear()
                self._apply_requests()
                if self._channels:
                    idle = Deadline.after(IDLE_S)
                for subscriber in subscribers:
                    subscriber.update(self._channels)
                self._wait(wakeup, subscribers)
        finally:
            self._wakeup = None
            wakeup.close()
            for subscriber in subscribers:
                subscriber.close()
        return 0.0 if self._requests and not self._closed else None

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

    def _wait(self, wakeup: WakeUp, subscribers: Collection[_Subscriber]) -> None:
        """Wait for messages or requests, and deliver the messages."""
        poll = select.poll()
        poll.register(wakeup.fd, select.POLLIN)
        connections = {}
        for subscriber in subscribers:
            if (connection := subscriber.connection) is not None:
                connections[connection.fd] = subscriber, connection
                poll.register(connection.fd, select.POLLIN)
        for fd, _ in poll.poll(1000 * _RECONNECT_PAUSE_S / 2):
            if fd in connections:
                subscriber, connection = connections[fd]
                self._deliver(subscriber.read(connection))

    def _deliver(self, messages: list[tuple[str, str, bytes]]) -> None:
        listening: dict[str, int] = {}  # one call, however many releases there were meanwhile
        for kind, name, payload in messages:
            if (channel := self._channels.get(name)) is None:
                continue
            if kind == "subscribe":
                channel.call(kind, 0.0)
            elif kind == "message" and channel.last_hint != payload:
                channel.last_hint = payload
                listening[name] = number_of(payload.partition(b" ")[2], 4)
        for name, number in listening.items():
            self._channels[name].call("message", self._pause(number))

    def _pause(self, listening: int) -> float:
        """Return the pause after a release that so many connections received."""
        rivals = listening - 1 if len(self._servers.all) > 1 else 0
        spread = min(rivals * _SPREAD * self._servers.round_s, _MAX_SPREAD_S)
        return Backoff(spread, 0.0, 0.0).next() if spread > 0 else 0.0


def _message(answer: Any) -> tuple[str, str, bytes]:
    """Return the kind of a message, its channel or pattern, and its payload."""
    match answer:
        case [bytes() as kind, bytes() as channel, *_, payload]:
            text = payload if isinstance(payload, bytes) else b""
            return kind.decode().removeprefix("p"), channel.decode(errors="replace"), text
    raise InvalidResponse("it sends something else than messages")


class _Subscriber:
    """A connection that listens to one server."""

    def __init__(self, servers: Broadcast, i: int) -> None:
        self.connection: Connection | None = None
        self._servers, self._server = servers, i
        self._subscribed: set[str] = set()
        self._last_message_at = 0.0
        self._proof_asked_at: float | None = None
        self._next_try = 0.0
        self._refusal_logged = False

    def update(self, wanted: Collection[str]) -> None:
        """Subscribe to these channels, and to no other one.

        It waits only to connect, and not for an unreachable server: that would delay the hints of
        the others.
        """
        connection = self.connection
        if not self._servers.reachable(self._server):
            self.close()  # most likely the network cut it, too
            return
        if connection is None and not (wanted and monotonic() >= self._next_try):
            return
        try:
            if connection is None:
                endpoint = self._servers.endpoints[self._server]
                connection = self.connection = connected(self._servers.location, endpoint)
                self._last_message_at = monotonic()
            self._prove(connection)
            self._send(connection, "SUBSCRIBE", {*wanted} - self._subscribed)
            self._send(connection, "UNSUBSCRIBE", self._subscribed - {*wanted})
            self._subscribed = set(wanted)
        except errors.FAILED as error:
            self._disconnected(error)

    def _send(self, connection: Connection, command: str, channels: set[str]) -> None:
        """Send a command for channels, and its form for patterns, without waiting for answers."""
        patterns = channels & {self._servers.keys.channels}
        words = [(command, *channels - patterns), (f"P{command}", *patterns)]
        commands = [these for these in words if len(these) > 1]
        if commands:
            connection.write(commands, Deadline.after(CONNECT_TIMEOUT_S))

    def _prove(self, connection: Connection) -> None:
        """Have a quiet server prove that the connection works; raise if it did not.

        A connection that was cut without a packet is as quiet as one without releases. The server
        confirms a subscription to a channel that no lock has, which needs no further right.
        """
        now, asked_at = monotonic(), self._proof_asked_at
        if asked_at is not None:
            if now > asked_at + _PROOF_TIMEOUT_S:
                raise TimeoutError("timed out")
        elif self._subscribed and now > self._last_message_at + _QUIET_S:
            self._proof_asked_at = now
            self._send(connection, "SUBSCRIBE", {self._servers.keys.channel("")})

    def read(self, connection: Connection) -> list[tuple[str, str, bytes]]:
        """Return the messages that have arrived."""
        messages: list[tuple[str, str, bytes]] = []
        self._last_message_at, self._proof_asked_at = monotonic(), None
        try:
            messages += map(_message, connection.receive())
        except errors.FAILED as error:
            self._disconnected(error)
        return messages

    def _disconnected(self, error: Exception) -> None:
        if isinstance(error, errors.ErrorReply) and not self._refusal_logged:
            self._refusal_logged = True
            endpoint, reason = self._servers.endpoints[self._server], errors.classify(error).reason
            log.warning("%s sends no hints, so it is only polled: %s", endpoint, reason)
        self.close()
        self._next_try = monotonic() + _RECONNECT_PAUSE_S

    def close(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
        self.connection, self._proof_asked_at = None, None
        self._subscribed = set()
