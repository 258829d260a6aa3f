"""A TCP proxy between a client and an etcd that spoils one request: late, lost or unanswered.

It reads HTTP/2 just enough to tell requests apart: each is a stream of its own, opened by a HEADERS
frame of the client's. Both ends are set to keep no table of headers (RFC 7540, 6.5.2), so that
each HEADERS frame names its path in plain text, and can be held back, lost or sent elsewhere
without spoiling those that come after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections import Counter
from collections.abc import Coroutine
from enum import Enum
from typing import NamedTuple

_DATA, _HEADERS, _RST_STREAM, _SETTINGS = 0, 1, 3, 4
_ACK = _END_STREAM = 1
_NO_TABLE = b"\0\1\0\0\0\0"  # SETTINGS_HEADER_TABLE_SIZE is 0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PATIENCE = 120.0
_WATCH_DELAY = 1.0
"""Seconds for which the answer to a watch is delayed: it has no try that ends."""


class Fault(Enum):
    """The fate of a request. The four that are not late end its connection, too.

    What is late is delivered on a connection of its own, as by a member that was frozen: the
    RST_STREAM by which gRPC takes a call back never catches up with it.
    """

    LOSE_ANSWER = "answer lost"
    """etcd has done it and says so, and nobody hears."""
    DELAY_ANSWER = "answer late"
    """etcd has done it and says so, which is heard when the client has given the try up."""
    CUT_BEFORE = "cut before"
    """etcd never sees it."""
    CUT_AFTER = "cut after"
    """etcd has got it and may do it."""
    HOLD = "request late"
    """etcd gets it when the client has given the try up."""
    HOLD_TO_THE_END = "request very late"
    """etcd gets it when `deliver()` is called."""


_HOLDS = (Fault.HOLD, Fault.HOLD_TO_THE_END)


class Proxy:
    """Passes requests on to `target` (`host:port`) and answers back; a context manager.

    Attributes:
        endpoint: where clients reach it.
        requests: the names of the requests so far. Renewals of leases, which come by the clock,
            are not among them.
        answered: how many requests of each name the client has had an answer to, be it late.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.endpoint = ""
        self.requests: list[str] = []
        self.answered: Counter[str] = Counter()
        self._wanted: tuple[Fault, int] | None = None
        self._held: _Spoilt | None = None
        self._errors: list[BaseException] = []
        self._connections: set[_Connection] = set()
        self.silent = False
        self._injected = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def inject(self, fault: Fault, number: int = 1) -> None:
        """Spoil the request that is the `number`-th from now on; 1: the next.

        A watch is not held, having no try that ends: then it is the request after it.
        """
        self._injected.clear()
        self._wanted = (fault, len(self.requests) + number)

    def met(self) -> bool:
        """Tell whether the request that is to be spoiled has come."""
        return self._wanted is None

    def injected(self) -> bool:
        """Tell whether the fault has happened to its end, a late delivery included."""
        return self._injected.is_set()

    def deliver(self) -> None:
        """Let etcd do the request that is held to the end; return when it has done it."""
        assert self._held is not None, "the request that is to be held back never came"
        delivery = deliver_late(self, self._held)
        asyncio.run_coroutine_threadsafe(delivery, self._loop).result(_PATIENCE)

    def silence(self) -> None:
        """Let nothing more through of what etcd says by watches, until `speak`.

        Their streams stand, and their connections answer: nobody sees a difference to an etcd in
        which nothing happens.
        """
        self.silent = True
        for connection in list(self._connections):
            connection.silence()

    def speak(self) -> None:
        """Let new watches through again; those that were silent stay so."""
        self.silent = False

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(_PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(_PATIENCE)
        assert self._errors == [], self._errors

    # ------------------------------------------------------------ in its thread

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: list[socket.socket] = []
        # Not by asyncio's own ways, which lose whom they are just accepting at the end.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            self.endpoint = "{}:{}".format(*listening.getsockname())
            self._loop.add_reader(listening, self._accept, listening)
            self._ready.set()
            await self._ended.wait()
            self._loop.remove_reader(listening)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:  # a job that was cancelled before it began closes nothing
            client.close()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):  # gone again
            client, _ = listening.accept()
            client.setblocking(False)
            self._clients.append(client)
            self.start(self._pass(client))

    def start(self, job: Coroutine[None, None, None]) -> None:
        """Let a job run until it or the proxy ends."""
        task = self._loop.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended_job)

    def _ended_job(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _pass(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_close, writer)
            try:
                upstream, to_upstream = await asyncio.open_connection(*self.target)
            except OSError:
                return  # etcd is away: so are we
            stack.push_async_callback(_close, to_upstream)
            connection = _Connection(self, writer, to_upstream)
            self._connections.add(connection)
            stack.callback(self._connections.discard, connection)
            pumps = [
                asyncio.create_task(connection.pass_up(reader)),
                asyncio.create_task(connection.pass_down(upstream)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                connection.end()
                for pump in pumps:
                    pump.cancel()
                for result in await asyncio.gather(*pumps, return_exceptions=True):
                    if isinstance(result, Exception):
                        raise result

    def count(self, name: str) -> Fault | None:
        """Count a request; return what is to happen to it, None: nothing."""
        self.requests.append(name)
        if self._wanted is None:
            return None
        fault, number = self._wanted
        if len(self.requests) < number or (name == "Watch" and fault in _HOLDS):
            return None
        self._wanted = None
        return fault

    def hold(self, spoilt: _Spoilt) -> None:
        """Keep a request until `deliver()`."""
        self._held = spoilt

    def done(self) -> None:
        self._injected.set()


class _Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    def encode(self) -> bytes:
        head = len(self.payload).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream.to_bytes(4, "big") + self.payload


class _Spoilt:
    """The request that is spoiled, and what was held back of it or of its answer.

    It is whole with its first DATA frame: ours are all shorter than a frame, which has 16 KiB.
    """

    def __init__(self, fault: Fault, name: str) -> None:
        self.fault = fault
        self.name = name
        self.held: list[_Frame] = []
        self.whole = False
        self.given_up = asyncio.Event()


class _Cut(Exception):
    """The connection is to end here."""


class _Connection:
    """One client's connection, and the one to etcd behind it."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._names: dict[int, str] = {}  # by stream, until the answer comes
        self._spoilt: dict[int, _Spoilt] = {}
        self._watches: set[int] = set()
        self._silent: set[int] = set()

    def silence(self) -> None:
        self._silent |= self._watches

    def end(self) -> None:
        """With the connection the client gives up what it has asked on it, and hears no answer."""
        for spoilt in self._spoilt.values():
            spoilt.given_up.set()
            if spoilt.fault not in _HOLDS:  # its own end has come before: that is fault enough
                self._proxy.done()

    async def pass_up(self, reader: asyncio.StreamReader) -> None:
        """Pass on what the client says, until the connection ends."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, _Cut):
            self._server.write(await reader.readexactly(len(_PREFACE)))
            while True:
                frame = await _read(reader)
                if frame.kind == _HEADERS:
                    self._open(frame)
                spoilt = self._spoilt.get(frame.stream)
                if spoilt is None or self._passes(frame, spoilt):
                    self._server.write(frame.encode())
                    await self._server.drain()
                if spoilt and spoilt.fault is Fault.CUT_AFTER and spoilt.whole:
                    del self._spoilt[frame.stream]
                    self._cut()

    def _open(self, frame: _Frame) -> None:
        found = re.search(rb"/etcdserverpb\.\w+/(\w+)", frame.payload)
        assert found, f"no path in {frame.payload!r}"
        name = self._names[frame.stream] = found[1].decode()
        if name == "Watch":
            self._watches.add(frame.stream)
            if self._proxy.silent:
                self._silent.add(frame.stream)
        fault = None if name == "LeaseKeepAlive" else self._proxy.count(name)
        if fault is None:
            return
        if fault is Fault.CUT_BEFORE:
            self._cut()
        self._spoilt[frame.stream] = _Spoilt(fault, name)

    def _passes(self, frame: _Frame, spoilt: _Spoilt) -> bool:
        held = spoilt.fault in _HOLDS
        if frame.kind == _RST_STREAM:
            if spoilt.whole:
                spoilt.given_up.set()
                return False  # etcd is to do it all the same
            del self._spoilt[frame.stream]  # taken back before it was said: then the next one
            self._proxy.inject(spoilt.fault)
            return not held
        if held and frame.kind in (_HEADERS, _DATA):
            spoilt.held.append(frame)
        if frame.kind == _DATA and not spoilt.whole:
            spoilt.whole = True
            self._complete(frame.stream, spoilt)
        return not held

    def _complete(self, stream: int, spoilt: _Spoilt) -> None:
        if spoilt.fault is Fault.HOLD_TO_THE_END:
            self._proxy.hold(spoilt)
        elif spoilt.fault is Fault.HOLD:
            self._proxy.start(deliver_late(self._proxy, spoilt))
        elif spoilt.fault is Fault.DELAY_ANSWER:
            self._proxy.start(self._answer_late(stream, spoilt))

    def _cut(self) -> None:
        self._proxy.done()
        raise _Cut

    async def pass_down(self, reader: asyncio.StreamReader) -> None:
        """Pass back what etcd says, until the connection ends."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, _Cut):
            while True:
                frame = await _read(reader)
                if frame.kind == _DATA and frame.stream in self._silent:
                    continue
                spoilt = self._spoilt.get(frame.stream)
                if spoilt and spoilt.fault is Fault.DELAY_ANSWER:
                    spoilt.held.append(frame)
                    continue
                if spoilt and spoilt.fault is Fault.LOSE_ANSWER and frame.kind == _HEADERS:
                    del self._spoilt[frame.stream]
                    self._cut()
                self._answer(frame)
                await self._client.drain()

    def _answer(self, frame: _Frame) -> None:
        self._client.write(frame.encode())
        if frame.kind == _DATA and (name := self._names.pop(frame.stream, "")):
            self._proxy.answered[name] += 1

    async def _answer_late(self, stream: int, spoilt: _Spoilt) -> None:
        """Pass an answer back when the client does not wait for it any more."""
        limit = _WATCH_DELAY if spoilt.name == "Watch" else None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(spoilt.given_up.wait(), limit)
        while not spoilt.held:  # the answer may take longer than the try
            await asyncio.sleep(0.01)
        del self._spoilt[stream]
        for frame in spoilt.held:
            self._answer(frame)
        self._proxy.done()


async def deliver_late(proxy: Proxy, spoilt: _Spoilt) -> None:
    """Let etcd do a request that was held back, once the client has given it up."""
    await spoilt.given_up.wait()
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # etcd is away: it is lost
        while not await _does(proxy.target, spoilt.held):
            pass  # the try's own limit, which travels with it, has passed on the way
    proxy.done()


async def _does(target: tuple[str, int], frames: list[_Frame]) -> bool:
    """Send a request on a connection of its own; tell whether etcd answers by a message.

    An error comes without one.
    """
    reader, writer = await asyncio.open_connection(*target)
    try:
        hello = _Frame(_SETTINGS, 0, 0, b"")
        writer.write(_PREFACE + b"".join(frame.encode() for frame in (hello, *frames)))
        while True:
            frame = await _read(reader)
            if frame.stream == frames[0].stream:
                if frame.kind == _DATA:
                    return True
                if frame.kind == _RST_STREAM or frame.flags & _END_STREAM:
                    return False
    finally:
        await _close(writer)


async def _read(reader: asyncio.StreamReader) -> _Frame:
    """Read a frame; of settings one that says that no table of headers is kept."""
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    if head[3] == _SETTINGS and not head[4] & _ACK:
        payload += _NO_TABLE  # the last one of a kind counts
    return _Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
