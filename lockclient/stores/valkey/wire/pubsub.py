"""Pub/sub hints of releases: one thread subscribes to all servers for waiters and followers.

A process that releases a lock publishes a hint once the release is confirmed, on each server that
has subscribers. A hint may get lost with a connection, so waiters and followers poll as well.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
_QUIET_S: Final = 5.0
"""Seconds without a message after which a server has to prove that the connection works."""
_PROOF_TIMEOUT_S: Final = 2.0
_SPREAD: Final = 2.0
_MAX_SPREAD_S: Final = 0.5
"""After a release each process pauses for a random time: up to `_SPREAD` rounds for each other
process, and no longer than this. So one process takes the lock before the next one asks."""

Hear = Callable[[str, float], None]
"""Called with `subscribe` when a server begins to send hints, `back` when it does so after a break
that may have lost some, or `message`; and the seconds to pause."""


@dataclass(eq=False, frozen=True)
class Listener:
    """A subscription to the hints of one channel; `end` closes it."""

    channel: str
    hear: Hear
    end: Callable[[Listener], None]

    def close(self) -> None:
        self.end(self)


class PubSub:
    """Subscribes to all servers while there are listeners, and then runs a thread.

    Args:
        servers: which they are.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._keys = servers.keys
        self._listeners: dict[Listener, None] = {}
        self._worker = WorkerPool("hints", 1)
        self._serving = Repeating(self._worker.submit, self._serve)
        self._wakeup: WakeUp | None = None  # while the thread serves
        self._closed = False
        self._last_hints: dict[str, bytes] = {}  # by channel: each server publishes a release

    def listen(self, name: str, hear: Hear) -> Listener:
        """Call `hear` with each release of a lock from now on, once."""
        return self._listen(self._keys.channel(name), hear)

    def listen_to_all(self, notify: Callable[[], None]) -> Listener:
        """Call `notify` after the published releases of all locks from now on.

        Several servers publish only releases that a waiter listens for: others would cost a round.
        """

        def hear(news: str, _pause: float) -> None:
            if news != "subscribe":  # the caller reads all at the beginning anyway
                notify()

        return self._listen(self._keys.channels, hear)

    def _listen(self, channel: str, hear: Hear) -> Listener:
        listener = Listener(channel, hear, self._remove)
        self._listeners[listener] = None
        self._wake()
        return listener

    def _remove(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        self._wake()

    def _wake(self) -> None:
        # The caller adds a listener, then reads `_wakeup`. The thread clears `_wakeup`, then reads
        # the listeners. So at least one of them sees the other, and the thread serves.
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.set()
        elif self._listeners and not self._closed:
            self._serving.run_within(0)

    def close(self) -> None:
        self._closed = True
        self._wake()
        self._worker.close()

    # ------------------------------------------------------------ the thread

    def _serve(self) -> float | None:
        """Serve until there was no listener for a while; return 0.0 to be called again."""
        wakeup = self._wakeup = WakeUp()
        subscribers = [_Subscriber(self._servers, i) for i in self._servers.all]
        idle = Deadline.after(IDLE_S)
        try:
            while not self._closed and (self._listeners or not idle.expired()):
                wakeup.clear()
                hears = self._hears()
                if hears:
                    idle = Deadline.after(IDLE_S)
                for subscriber in subscribers:
                    subscriber.update(hears)
                self._wait(wakeup, subscribers, hears)
        finally:
            self._wakeup = None
            wakeup.close()
            for subscriber in subscribers:
                subscriber.close()
        return 0.0 if self._listeners and not self._closed else None

    def _hears(self) -> dict[str, dict[Hear, None]]:
        """Return by channel the functions to call, each once."""
        hears: dict[str, dict[Hear, None]] = {}
        for listener in list(self._listeners):
            hears.setdefault(listener.channel, {})[listener.hear] = None
        for channel in self._last_hints.keys() - hears.keys():
            del self._last_hints[channel]
        return hears

    def _wait(
        self,
        wakeup: WakeUp,
        subscribers: Collection[_Subscriber],
        hears: Mapping[str, Collection[Hear]],
    ) -> None:
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
                self._deliver(subscriber.read(connection), hears)

    def _deliver(
        self, messages: list[tuple[str, str, bytes]], hears: Mapping[str, Collection[Hear]]
    ) -> None:
        news: dict[tuple[str, str], float] = {}  # one call, however many releases there were
        for kind, channel, payload in messages:
            if kind in ("subscribe", "back"):
                news[kind, channel] = 0.0
            elif kind == "message" and self._last_hints.get(channel) != payload:
                self._last_hints[channel] = payload
                news[kind, channel] = self._pause(number_of(payload.partition(b" ")[2], 4))
        for (kind, channel), pause in news.items():
            for hear in hears.get(channel, ()):
                hear(kind, pause)

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
    def __init__(self, servers: Broadcast, i: int) -> None:
        self.connection: Connection | None = None
        self._servers, self._server = servers, i
        self._subscribed: set[str] = set()
        self._interrupted: set[str] = set()
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
            self._interrupted &= self._subscribed
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
        messages: list[tuple[str, str, bytes]] = []
        self._last_message_at, self._proof_asked_at = monotonic(), None
        try:
            for kind, channel, payload in map(_message, connection.receive()):
                if kind == "subscribe" and channel in self._interrupted:
                    self._interrupted.discard(channel)
                    kind = "back"
                messages.append((kind, channel, payload))
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
        if self.connection is not None:
            self.connection.close()
        self._interrupted |= self._subscribed
        self.connection, self._proof_asked_at, self._subscribed = None, None, set()
