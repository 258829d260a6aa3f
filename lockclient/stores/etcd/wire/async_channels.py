"""gRPC channels to the members of a cluster for one event loop: what `channels` is for threads.

They are grpc.aio's, but for three cases, in which the connections of the threads are used and their
answers handed to the loop. One is the connection of an `etcd3` client. Another is the child of a
process that had used grpc.aio before the fork: its poller did not come along, and a call in the
child hangs or ends the process by a failed check of gRPC's (measured with 1.85). The last one is a
process in which the poller's thread could not be started: gRPC never tries that again, and a
channel whose poller can't be had ends the process (SIGSEGV, 1.85).

Why not `common.async_bridge`, which would save this file? What a cycle (acquire and release) takes
by it, as a part of what it takes by grpc.aio: medians of ratios, both interleaved in one process,
on one etcd 3.5.1, on two cores that had much else to do (so the clock tells little):

    threads, rounds     8, 12         16, 12        32, 12        32, 9
    processor, alone    1.13          1.12          1.12          0.91
    processor, 500      1.08          1.02          1.19          1.25    tasks on different locks
    clock, alone        1.16          0.98          0.90          0.66
    clock, 500          0.46          0.50          0.67          1.05

No number of threads stays at 10 % more processor time in both. grpcio's own blocking call, in 4 to
32 threads for 64 tasks and without any of our code, takes 1.8 to 2.3 times the processor time of
grpc.aio's, at half its rate (etcd 3.7.3, grpcio 1.85): no bridge can do better.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.async_bridge import by_thread
from lockclient.stores.common.background import Background
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.failover import Connection, Endpoint, Tries
from lockclient.stores.etcd.wire.rpc_methods import (
    AUTHENTICATE,
    Metadata,
    Method,
    make_call,
    open_channel,
    require_threads,
)
from lockclient.stores.requests import Delivery

IN_FLIGHT = 32
"""Requests of one loop that are in flight at once: of those that keep a lock, and of all others. A
thousand tasks that ask at the same moment would all be late: each try would be given up and sent
again, for ever."""


class AioChannels:
    """All members of one cluster; what is known of them is shared with the threads.

    Args:
        channels: those of the threads, for the location and what they know.
        background: the store's threads.
        tickets: the lease of the loop's tickets.
    """

    def __init__(self, channels: Channels, background: Background, tickets: Lease) -> None:
        self.loop = asyncio.get_running_loop()
        self.tickets = tickets
        self._background = background
        self._threads = channels
        self._location = channels.location
        self._failover = channels.failover
        self._by_threads = channels.borrowed is not None or bool(_used_in - {os.getpid()})
        self._connections: dict[str, _Connection] = {}
        # A thousand tasks that begin at once want one lease and one token.
        self._granting = _Turns(1)
        self._authenticating = _Turns(1)
        self._asking = _Turns(IN_FLIGHT)
        self._keeping = _Turns(IN_FLIGHT)

    async def call(
        self,
        method: Method,
        request: Message,
        deadline: Deadline,
        delivery: Delivery | None = None,
        *,
        keeps: bool = False,
    ) -> Any:
        """See `Channels.call`; for methods that are no streams, and `keeps`: for `KEEPING`."""
        tries = Tries(self._failover, deadline, delivery)
        turns = self._keeping if keeps else self._asking
        while True:
            async with turns.turn(deadline):
                member, timeout = tries.next()
                try:
                    limit = Deadline.after(timeout)
                    tries.metadata = await self._metadata(member, limit)
                    answer = await self._send(member, method, request, limit, tries.metadata)
                except Exception as error:  # noqa: BLE001 - `failed` raises those that end the request
                    pause = tries.failed(error)
                    if tries.renew:
                        self._connection(member).renew(tries.began_at)
                else:
                    self._failover.answers += 1
                    if self._failover.down_since is not None:
                        self._failover.report(None)
                    return answer
            await asyncio.sleep(pause)

    async def lease_id(self, lease: Lease, deadline: Deadline) -> int:
        """See `Lease.get`: asked by a thread, for that is a stream's business as well."""
        if monotonic() > lease.usable_until:
            async with self._granting.turn(deadline):
                if monotonic() > lease.usable_until:
                    await by_thread(self._background.leases.submit, lambda: lease.get(deadline))
        return lease.id

    async def _send(
        self,
        member: Endpoint,
        method: Method,
        request: Message,
        limit: Deadline,
        metadata: Metadata | None = None,
    ) -> Any:
        """Return the answer to one try; keeps the connection until then."""
        connection = self._connection(member)
        stub = connection.stub(method)
        if not isinstance(connection, _Connection):
            stub = _awaitable(stub)
        try:
            answer = await stub(request, timeout=limit.remaining(), metadata=metadata)
        except grpc.RpcError as error:
            connection.note(error)
            raise
        connection.failing_since = None
        return answer

    def _connection(self, member: Endpoint) -> Connection:
        if self._by_threads:
            return self._threads.unary[member.endpoint]
        connection = self._connections.get(member.endpoint)
        if connection is None or connection.is_stale:
            if not _used_in <= {os.getpid()}:  # another loop has found it so
                self._by_threads = True
                return self._connection(member)
            require_threads()
            _used_in.add(os.getpid())
            try:
                # Raises where the channel would end the process. (Public, and not in the stubs.)
                grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]
            except RuntimeError:  # "can't start new thread"
                _used_in.add(_NO_POLLER)
                return self._connection(member)
            again = connection is not None
            channel = open_channel(grpc.aio, self._location, member.endpoint, again=again)
            # It counts who uses it, and the channel does now.
            grpc.aio.shutdown_grpc_aio()  # type: ignore[attr-defined]
            connection = self._connections[member.endpoint] = _Connection(channel)
        return connection

    async def _metadata(self, member: Endpoint, limit: Deadline) -> Metadata | None:
        if not self._location.user:
            borrowed = self._threads.borrowed
            return None if borrowed is None else borrowed.metadata()
        if member.token is None:
            async with self._authenticating.turn(limit):
                if member.token is None:
                    asked = self._failover.authentication()
                    try:
                        answer = await self._send(member, AUTHENTICATE, asked, limit)
                        member.token = answer.token
                    except grpc.RpcError as error:
                        member.no_token(error)
        return member.metadata()


class _Connection(Connection):
    """A channel to one member. Garbage-collected, it is closed with all calls under way."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.made_at = monotonic()
        self.is_stale = False
        self._channel = channel
        self._stubs: dict[str, Any] = {}

    def stub(self, method: Method) -> Any:
        stub = self._stubs.get(method.path)
        if stub is None:
            stub = self._stubs[method.path] = make_call(self._channel, method)
        return stub

    def renew(self, since: float) -> None:
        self.is_stale |= self.made_at < since


class _Turns:
    """So many at a time, in the order in which they came.

    (Not `asyncio.Semaphore`: it knows no deadline, and `asyncio.wait_for` around it may swallow a
    cancellation before Python 3.12.)
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._line: deque[asyncio.Future[bool]] = deque()

    @asynccontextmanager
    async def turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for a turn, but not longer than to the deadline: the block finds out about that."""
        mine = await self._take(deadline.remaining())
        try:
            yield
        finally:
            if mine:
                self._give()

    async def _take(self, timeout: float) -> bool:
        if self._free:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._line.append(turn)
        alarm = loop.call_later(timeout, _too_late, turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.result():
                self._give()  # it was given in the very moment of the cancellation
            turn.cancel()
            raise
        finally:
            alarm.cancel()

    def _give(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


def _too_late(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _awaitable(stub: Any) -> Callable[..., Awaitable[Any]]:
    """Return a stub of the threads' `grpc` in the shape of one of grpc.aio's."""

    async def call(request: Message, **how: Any) -> Any:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell(_: object) -> None:  # in a thread of gRPC's
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        answer = stub.future(request, **how)
        answer.add_done_callback(tell)
        try:
            await ended.wait()
        finally:
            answer.cancel()  # does nothing to one that has ended
        return answer.result()

    return call


_used_in: set[int] = set()
"""The processes, this one and those that it was forked from, that have used grpc.aio: there is one
poller for all loops, with a thread, and threads do not come along."""
_NO_POLLER = 0
"""Is in `_used_in` where that thread could not be started."""
