"""gRPC channels to the members of a cluster, for one event loop.

They are channels of grpc.aio. In three cases the threads' connections are used instead:

- an `etcd3` client lends its connection;
- an ancestor of this process used grpc.aio before a fork: the poller's thread is missing in the
  child, where a call hangs or ends the process (grpcio 1.85);
- the system gave no thread for the poller: gRPC never asks again, and a channel without a poller
  ends the process by SIGSEGV (1.85).

`common.async_bridge` would replace this file, at up to 1.25 times the processor time. grpcio's
blocking call, in 4 to 32 threads for 64 tasks and without our code, takes 1.8 to 2.3 times the
processor time of grpc.aio's at half its rate (etcd 3.7.3, grpcio 1.85).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.async_bridge import by_thread
from lockclient.stores.common.background import Background
from lockclient.stores.etcd.lease import Lease
from lockclient.stores.etcd.wire.channels import Channels
from lockclient.stores.etcd.wire.connection import Connection
from lockclient.stores.etcd.wire.failover import Endpoint, Tries
from lockclient.stores.etcd.wire.rpc_methods import (
    AUTHENTICATE,
    Metadata,
    Method,
    make_call,
    open_channel,
    require_threads,
)
from lockclient.stores.request_types import Delivery

IN_FLIGHT = 32
"""Requests of one loop that are in flight at once, of those that extend or end a lock and of all
others. With a thousand at once each try would time out and be sent again, for ever."""


class AioChannels:
    """The channels of one event loop to all members of one cluster.

    Args:
        channels: the threads' channels, whose `failover` is shared.
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
        # One lease and one token serve a thousand tasks that begin at once.
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
        is_priority: bool = False,
    ) -> Any:
        """See `Channels.call`, for unary methods. `is_priority`: of a request in `PRIORITY`."""
        tries = Tries(self._failover, deadline, delivery)
        turns = self._keeping if is_priority else self._asking
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
        """See `Lease.get`; a thread asks, because a lease may need a stream."""
        if number := lease.usable():
            return number
        async with self._granting.turn(deadline):
            get = partial(lease.get, deadline)
            return lease.usable() or await by_thread(self._background.leases.submit, get)

    async def _send(
        self,
        member: Endpoint,
        method: Method,
        request: Message,
        limit: Deadline,
        metadata: Metadata | None = None,
    ) -> Any:
        """Return the answer to one try; refer to the connection until then."""
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
            if not _used_in <= {os.getpid()}:  # see the module: another process, or no poller
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
            # gRPC counts the poller's users; from now on the channel is one.
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
    """A fair semaphore whose waiters have deadlines.

    (`asyncio.Semaphore` has no deadline, and `asyncio.wait_for` around it may swallow a
    cancellation before Python 3.12.)
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiters: deque[asyncio.Future[bool]] = deque()

    @asynccontextmanager
    async def turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for a turn, or until the deadline: then the block runs without one, and is late."""
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
        self._waiters.append(turn)
        timer = loop.call_later(timeout, _time_out, turn)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.result():
                self._give()  # the turn came just before the cancellation
            turn.cancel()
            raise
        finally:
            timer.cancel()

    def _give(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1


def _time_out(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


def _awaitable(stub: Any) -> Callable[..., Awaitable[Any]]:
    """Return a coroutine function that calls a stub of the threads' `grpc`."""

    async def call(request: Message, **how: Any) -> Any:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def set_ended(_: object) -> None:  # called by a thread of gRPC
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        answer = stub.future(request, **how)
        answer.add_done_callback(set_ended)
        try:
            await ended.wait()
        finally:
            answer.cancel()  # no effect after its end
        return answer.result()

    return call


_used_in: set[int] = set()
"""The pids of this process and its ancestors that have used grpc.aio: a process has one poller, a
thread, which a fork's child does not have."""
_NO_POLLER = 0
"""In `_used_in` after the system gave no thread for the poller."""
