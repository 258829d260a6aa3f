"""Pub/sub hints of releases: one thread subscribes to all servers for those who wait or poll.

A hint is only that. It is told when a release is confirmed, by each server that somebody listens
to, and may get lost with a connection: who waits looks for itself besides, from time to time.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from valkey.exceptions import InvalidResponse

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.protocol import WatchEvent
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import number_of
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import CONNECT_TIMEOUT_S, Connection, connected
from lockclient.stores.valkey.wire.turns import Waiter, Waiters
from lockclient.stores.valkey.wire.wakeup import WakeUp
from lockclient.threads import scheduler
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
"""Of those that are told of a release each waits for any time up to that of so many rounds for each
of the others, and no longer than this."""


class PubSub:
    """Listens to all servers while somebody waits; with nobody it has no thread and no connection.

    Args:
        servers: which they are.
    """

    def __init__(self, servers: Broadcast) -> None:
        self._servers = servers
        self._keys = servers.keys
        self._requests: deque[tuple[bool, Waiter]] = deque()
        self._worker = WorkerPool("hints", 1)
        self._running = deque[bool]()
        self._wakeup: WakeUp | None = None  # while it runs
        self._closed = False
        # What follows is the thread's own.
        self._subscribers: list[_Subscriber] = []
        self._subscriptions: dict[str, Waiters] = {}

    def subscribe(self, name: str, notify: Callable[[WatchEvent], None], uuid: str = "") -> Waiter:
        """Tell of a lock's releases from now on; first, by `Event.started`, that this has begun.

        With a `uuid` it waits for the lock, and is told when it is first of the queue.
        """
        return self._subscribe(self._keys.channel(name), notify, uuid)

    def waiters(self, name: str) -> Waiters | None:
        """Return who waits for a lock; None: nobody."""
        return self._subscriptions.get(self._keys.channel(name))

    def subscribe_to_all(self, notify: Callable[[], None]) -> Waiter:
        """Tell of all locks' releases from now on, as far as they are told at all.

        Of one that nobody waits for several servers tell nothing: it would be a round more.
        """

        def on_event(event: WatchEvent) -> None:
            if not event.started or event.gap:  # from the begin all is read anyway
                notify()

        return self._subscribe(self._keys.channels, on_event)

    def _subscribe(
        self, channel: str, notify: Callable[[WatchEvent], None], uuid: str = ""
    ) -> Waiter:
        waiter = Waiter(channel, notify, uuid, partial(self._request, False))
        self._request(True, waiter)
        return waiter

    def _request(self, comes: bool, waiter: Waiter) -> None:
        """Have the thread begin with a waiter, or end it."""
        self._requests.append((comes, waiter))
        self._wake()
        # First what is new, then the look: the thread does it the other way round as it ends.
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
        self._subscriptions = {}
        idle = Deadline.after(IDLE_S)
        try:
            while not self._closed:
                if idle.expired() and not self._subscriptions and not self._requests:
                    return
                wakeup.clear()
                self._apply_requests()
                if self._subscriptions:
                    idle = Deadline.after(IDLE_S)
                for subscriber in self._subscribers:
                    subscriber.update(self._subscriptions)
                self._wait(wakeup)
        finally:
            for subscriber in self._subscribers:
                subscriber.close()

    def _apply_requests(self) -> None:
        subscriptions = self._subscriptions
        while self._requests:
            comes, waiter = self._requests.popleft()
            channel = waiter.channel
            if comes:
                waiters = subscriptions.setdefault(channel, Waiters())
                (waiters.queue if waiter.uuid else waiters.listeners).append(waiter)
                if any(channel in subscriber.confirmed for subscriber in self._subscribers):
                    waiter.notify(WatchEvent(0, started=True))
            elif channel in subscriptions:
                subscriptions[channel].remove(waiter)
                if not subscriptions[channel].everybody():
                    del subscriptions[channel]

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
        hinted: dict[str, int] = {}  # once, however many have let go of it meanwhile
        for kind, channel, payload in messages:
            if (waiters := self._subscriptions.get(channel)) is None:
                continue
            if kind in ("subscribe", "back"):
                for waiter in waiters.everybody():
                    waiter.notify(WatchEvent(0, started=True, gap=kind == "back"))
            elif kind == "message" and waiters.last_hint != payload:
                waiters.last_hint = payload
                hinted[channel] = number_of(payload.partition(b" ")[2], 4)
        for channel, listening in hinted.items():
            self._hint(self._subscriptions[channel], listening)

    def _hint(self, waiters: Waiters, listening: int) -> None:
        """Tell of a release that so many connections are told of."""
        for waiter in [*waiters.listeners]:
            waiter.notify(WatchEvent(0))
        waiters.hints += 1
        rivals = listening - 1 if len(self._servers.all) > 1 else 0
        spread = min(rivals * _SPREAD * self._servers.round_s, _MAX_SPREAD_S)
        tell = partial(waiters.tell_first, waiters.hints)
        pause = Backoff(spread, 0.0, 0.0).next() if spread > 0 else tell()
        if pause is not None:
            scheduler.shared.after(pause, tell)


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

    def update(self, wanted: dict[str, Waiters]) -> None:
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
                ("SUBSCRIBE", wanted.keys() - self._subscribed),
                ("UNSUBSCRIBE", self._subscribed - wanted.keys()),
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
