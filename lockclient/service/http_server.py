"""The HTTP server of both services: waitress, with an end to whatever a client may take of it.

Waitress counts a connection's time from its last byte, so that a byte now and then keeps it open
for ever; it stops listening when there are too many; and it never ends one whose client does not
read, because it waits until that can be written to. Here

- each connection has a duty at each time (to ask, to send on, to read), and a deadline for that;
- nobody is turned away: where there are too many connections, of one network or in all, the one
  goes that has kept us waiting for longest;
- no thread waits for a reader: answers are kept until they are read, and if that becomes too much,
  the connection goes that has left most unread;
- probes have threads of their own, so that they never wait behind viewers.

For that it uses what waitress keeps to itself (`wasyncore.loop`, `HTTPChannel.outbufs` and
`requests`, `handle_accept`, `maintenance`), and so takes no next major version of it;
tests/unit/service/test_http_server.py says of each what breaks without it.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.buffers import ReadOnlyFileBasedBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from lockclient.model.clocks import monotonic
from lockclient.service.request_filter import ALIVE, METRICS, READY, network_of

MAX_ACCEPTED_PER_TURN = 50
"""Connections that are accepted in one turn: else whoever opens many makes the others wait."""
CHECK_INTERVAL_S = 0.5
"""Between two checks for connections that are late."""
UNLIMITED = 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """What clients may take.

    Attributes:
        connections: at once. Most systems allow a process 1,024 open files.
        of_one_network: of these, from one /24 or /64. All that come by one proxy are one network.
        header: seconds for a request's header, also from the beginning of a connection.
        body: seconds for a request's body, which is small.
        idle: seconds from an answer to the next request.
        reading: seconds to read an answer; more for one that takes longer at the `slowest`.
        slowest: bytes a second.
        unread: bytes of all answers that nobody has read yet (files aside, which have bounds of
            their own).
    """

    connections: int = 500
    of_one_network: int = 200
    header: float = 10.0
    body: float = 10.0
    idle: float = 30.0
    reading: float = 30.0
    slowest: int = 64 * 1024
    unread: int = 64 * 1024 * 1024


_ASK, _HEADER, _BODY, _READ, _WORK = "ask", "header", "body", "read", "work"


class _Parser(HTTPRequestParser):
    """A request's header; what can't be read is answered by 400, and is no error of ours."""

    def parse_header(self, header_plus: bytes) -> None:
        """See `HTTPRequestParser`."""
        try:
            super().parse_header(header_plus)
        except ValueError as error:  # a number of more digits than Python reads
            raise ParsingError("a number in the header is too long") from error


class _Channel(HTTPChannel):
    """A connection that knows whose turn it is, and since when.

    The fields of before are changed by the loop's thread alone, but for `served`, by the one thread
    that serves the connection.
    """

    parser_class = _Parser

    def __init__(self, server: _Listener, *args: Any, **kwargs: Any) -> None:
        self.bounds = server.bounds
        self.served = 0
        self.since = monotonic()
        self._until = self.since + self.bounds.header
        self._duty = (_HEADER, 0)
        super().__init__(server, *args, **kwargs)
        server.accepted += 1
        self._number = server.accepted
        self.network = network_of(str(self.addr[0]))

    def service(self) -> None:
        """Answer a request, in a thread for that."""
        try:
            super().service()
        except OSError:
            if not self.server.closing:
                raise
            # It was answered as the service ended: what wakes the loop had been closed by then.
        self.served += 1

    def late(self, now: float) -> bool:
        """Tell whether the client has not done its duty in time."""
        if (duty := self._present_duty()) != self._duty:
            self._duty, self.since = duty, now
            self._until = now + self._time_for(duty[0])
        return now > self._until

    def patience(self) -> tuple[bool, float, int]:
        """Return what is least for the connection that has kept us waiting for longest, or of
        several of which one look has found that, for the oldest."""
        return self._duty[0] == _WORK, self.since, self._number

    def unread(self) -> int:
        """Return how many bytes of answers are kept in memory for it."""
        buffers = list(self.outbufs)
        return sum(len(kept) for kept in buffers if not isinstance(kept, ReadOnlyFileBasedBuffer))

    def _present_duty(self) -> tuple[str, int]:
        if self.total_outbufs_len:  # before the next: of requests sent ahead, one may be at work
            return _READ, self.served
        if self.requests:
            return _WORK, self.served
        if self.request is not None and self.request.headers_finished:
            return _BODY, self.served
        # A new connection owes a header from its beginning: were that another duty than to ask,
        # one whose first bytes were read would seem younger than one that has said nothing yet.
        return (_HEADER if self.request is not None or not self.served else _ASK), self.served

    def _time_for(self, duty: str) -> float:
        bounds = self.bounds
        times = {_ASK: bounds.idle, _HEADER: bounds.header, _BODY: bounds.body, _WORK: math.inf}
        times[_READ] = bounds.reading + self.total_outbufs_len / bounds.slowest
        return times[duty]


class _Listener(TcpWSGIServer):
    """One listening socket."""

    channel_class = _Channel

    def __init__(self, *args: Any, bounds: Bounds, **kwargs: Any) -> None:
        self.bounds = bounds
        self.accepted = 0
        self.closing = False
        self._probes = {ALIVE: _threads(1), METRICS: _threads(1)}
        self._probes[READY] = self._probes[ALIVE]
        super().__init__(*args, **kwargs)

    @property
    def threads(self) -> Iterable[ThreadedTaskDispatcher]:
        """Those of its probes."""
        return self._probes.values()

    def handle_accept(self) -> None:
        """Take in who waits to be."""
        for _ in range(MAX_ACCEPTED_PER_TURN):
            before = self.accepted
            super().handle_accept()
            if self.accepted == before:
                return

    def add_task(self, task: Any) -> None:
        """Have a connection's next request answered, probes by threads of their own."""
        request = task.requests[0]
        # None of both, if the request could not be read. Only reading is a probe: with any other
        # method the application goes other ways, on which it may have to hash a password.
        probe = getattr(request, "command", "") in ("GET", "HEAD")
        path = getattr(request, "path", "") if probe else ""
        self._probes.get(path, self.task_dispatcher).add_task(task)

    def maintenance(self, now: float) -> None:
        """Leave it to `HttpServer`: at this place a connection can only be ended when its client
        reads."""


class HttpServer:
    """A WSGI application under waitress, in a thread of its own.

    Args:
        proxied: the application itself tells which `X-Forwarded-…` headers to believe; else it
            sees none.

    Raises:
        click.ClickException: the address can't be listened on.
    """

    def __init__(
        self,
        app: Any,
        listen: tuple[str, int],
        *,
        threads: int = 4,
        proxied: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        host, port = listen
        self._bounds = bounds or Bounds()
        self._map: dict[int, Any] = {}
        try:
            settings = _settings(host, port, proxied=proxied)
            self._workers = workers = _threads(threads)
            self._listeners = [
                _Listener(
                    app,
                    map=self._map,
                    dispatcher=workers,
                    adj=settings,
                    sockinfo=address,
                    bounds=self._bounds,
                )
                for address in settings.listen  # several, for a name with several addresses
            ]
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.ClickException(
                f"Can't listen on {host}:{port}: {reason}. End what listens there, or give "
                "another --listen HOST:PORT."
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listeners[0].getsockname()[1]}"
        self._closing = False
        self._accepted, self._checked_at = 0, 0.0
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def trouble(self) -> str | None:
        """Say in a sentence that nobody answers any more, if so."""
        return None if self._thread.is_alive() else "The thread that answers HTTP has ended."

    def close(self) -> None:
        """Stop listening; requests under way get a moment to end."""
        self._closing = True
        for listener in self._listeners:
            listener.closing = True
            listener.close()

    def _serve(self) -> None:
        try:
            while self._map:
                wasyncore.loop(1.0, use_poll=True, map=self._map, count=1)
                self._end_some()
        except OSError:  # it may be polling what is closed just now
            if not self._closing:
                raise
        finally:  # nothing is left to be answered
            probes = (pool for listener in self._listeners for pool in listener.threads)
            for pool in {self._workers, *probes}:
                pool.set_thread_count(0)

    def _end_some(self) -> None:
        """End connections that are late or too many.

        Between two turns of the loop: in the midst of one, the number of a socket that is closed
        could be that of a new connection before its events are looked at.
        """
        now, accepted = monotonic(), sum(listener.accepted for listener in self._listeners)
        if accepted == self._accepted and now < self._checked_at + CHECK_INTERVAL_S:
            return
        self._accepted, self._checked_at = accepted, now
        there: list[_Channel] = []
        for channel in [found for found in self._map.values() if isinstance(found, _Channel)]:
            if channel.late(now):
                channel.handle_close()
            else:
                there.append(channel)
        for channel in _too_many(there, self._bounds):
            channel.handle_close()
        unread = {channel: channel.unread() for channel in there if channel.connected}
        while unread and sum(unread.values()) > self._bounds.unread:
            most = max(unread, key=lambda channel: unread[channel])
            most.handle_close()
            del unread[most]


def _too_many(there: list[_Channel], bounds: Bounds) -> Iterator[_Channel]:
    """Yield whom to end: of each network that has too many, and of the largest if all have."""
    if len(there) <= min(bounds.connections, bounds.of_one_network):
        return
    networks: defaultdict[str, list[_Channel]] = defaultdict(list)
    for channel in sorted(there, key=_Channel.patience, reverse=True):
        networks[channel.network].append(channel)  # at the end who has kept us waiting for longest
    over = len(there) - bounds.connections
    for of_one in networks.values():
        while len(of_one) > bounds.of_one_network:
            over -= 1
            yield of_one.pop()
    for _ in range(over):
        yield max(networks.values(), key=len).pop()


def _threads(number: int) -> ThreadedTaskDispatcher:
    made = ThreadedTaskDispatcher()
    made.set_thread_count(number)
    return made


def _settings(host: str, port: int, *, proxied: bool) -> Adjustments:
    return Adjustments(
        host=host,
        port=port,
        # Poll instead of select takes more than 1024 open files.
        asyncore_use_poll=True,
        # The limits that are ours to hold, see above.
        connection_limit=UNLIMITED,
        outbuf_high_watermark=UNLIMITED,
        outbuf_overflow=UNLIMITED,
        clear_untrusted_proxy_headers=not proxied,
        max_request_header_size=32 * 1024,
        max_request_body_size=64 * 1024,
        expose_tracebacks=False,
        ident=None,
    )
