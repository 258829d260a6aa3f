"""gRPC channels to the members of a cluster, for threads: deadlines, TLS, tokens.

Each member has channels of its own, because gRPC's own balancing keeps sending to a frozen
member. Who is asked when, and for how long, says `failover`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire.etcd3_client import Borrowed
from lockclient.stores.etcd.wire.failover import (
    FIRST_TRY_S,
    RENEW_AFTER_S,
    Connection,
    Endpoint,
    Failover,
    Tries,
)
from lockclient.stores.etcd.wire.rpc_methods import (
    AUTHENTICATE,
    Metadata,
    Method,
    make_call,
    open_channel,
)
from lockclient.stores.requests import Delivery


class _Connection(Connection):
    """A channel to one member, made at first need. No caller waits for another one here."""

    def __init__(self, connect: Callable[..., grpc.Channel]) -> None:
        self._connect = connect
        self.stubs: dict[str, Any] = {}
        """One channel, and what makes calls by it, by the paths of their methods, as far as there
        was need for it. A new channel has a new dict: nothing of two channels is ever mixed."""

    def stub(self, method: Method) -> Any:
        stubs = self.stubs
        channel = stubs.get(_CHANNEL)
        if channel is None:
            again = self.failing_since is not None
            # If several threads make one at once, the first one's is used.
            channel = stubs.setdefault(_CHANNEL, self._connect(again=again))
            self.made_at = monotonic()
        call = stubs[method.path] = make_call(channel, method)
        return call

    def renew(self, since: float) -> None:
        """Connect anew with the next call, unless that has been done since that moment.

        Calls of other threads that are under way keep the old one, which ends with the last.
        """
        if self.made_at < since:
            self.stubs = {}

    def discard(self) -> None:
        """Begin anew with the next call; do not close what there was: that could wait for ever.

        A channel whose own thread the system has refused counts it as running, and all of its
        streams wait for it.
        """
        _discarded.append(self.stubs)
        self.stubs = {}

    def close(self) -> None:
        stubs, self.stubs = self.stubs, {}
        channel = stubs.pop(_CHANNEL, None)
        if channel is not None:
            channel.close()


_CHANNEL = ""
_discarded: list[dict[str, Any]] = []  # kept, for a channel would be closed as it is collected


class Channels:
    """All members of one cluster; safe to share between threads.

    Args:
        location: where they are.
        borrowed: the connection of another client, to use instead of our own.
    """

    def __init__(self, location: EtcdLocation, borrowed: Borrowed | None = None) -> None:
        self.failover = Failover(location, renewable=borrowed is None)
        self.location = location
        self.borrowed = borrowed
        self._plain = location.user is None and borrowed is None
        self._unary = self._connections(borrowed)
        # Of their own: when they are closed as the interpreter ends, single requests still work.
        self._streams = self._connections(borrowed)

    def _connections(self, borrowed: Borrowed | None) -> dict[str, _Connection | Borrowed]:
        connect_to = partial(partial, open_channel, grpc, self.location)
        return {
            member.endpoint: borrowed or _Connection(connect_to(member.endpoint))
            for member in self.failover.members
        }

    def connection(self, member: Endpoint, method: Method) -> _Connection | Borrowed:
        """Return the connection for a call, which makes its channel anew if that is due."""
        connection = (self._streams if method.streams else self._unary)[member.endpoint]
        if connection.failing_since is not None and connection.is_due():
            # Several threads may get here at once: one that made a channel since then keeps it.
            connection.renew(monotonic() - RENEW_AFTER_S)
        return connection

    # ------------------------------------------------------------ unary calls

    def call(
        self,
        method: Method,
        request: Message,
        deadline: Deadline,
        delivery: Delivery | None = None,
    ) -> Any:
        """Return the answer; what is not known of the request is noted in `delivery`.

        Raises:
            WireError: a member answered with an error that is an answer.
            StoreUnavailable: nobody answered by the deadline.
        """
        tries = Tries(self.failover, deadline, delivery)
        while True:
            member, timeout = tries.next()
            fork_safety.enter()
            try:
                connection = self.connection(member, method)
                metadata = None if self._plain else self._metadata(member, timeout)
                tries.metadata = metadata
                stub = connection.stubs.get(method.path) or connection.stub(method)
                if method.streams:
                    # Asked one thing it gives one answer; its end follows by itself.
                    answer = next(stub(iter((request,)), timeout=timeout, metadata=metadata))
                else:
                    answer = stub(request, timeout, metadata)
                connection.failing_since = None
            except grpc.RpcError as error:
                connection.note(error)
                pause = tries.failed(error)
                if tries.renew:
                    self.connection(member, method).renew(tries.began_at)
            except ClusterMutexError:
                tries.refused()
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody has answered
                # gRPC's word for a channel that was closed, by `close` or its owner.
                if isinstance(error, ValueError) and (self.failover.closed or self.borrowed):
                    raise tries.closed() from None
                if method.streams:
                    self._streams[member.endpoint].discard()
                pause = tries.broken(error)
            else:
                self.failover.answers += 1
                if self.failover.down_since is not None:
                    self.failover.report(None)
                return answer
            finally:
                fork_safety.leave()
            time.sleep(pause)

    def open_stream(self, method: Method, requests: Iterator[Message], member: Endpoint) -> Any:
        """Open a stream on a member: an iterator of answers with `cancel()`."""
        # hasleader: a member cut off from its leader ends the stream instead of staying silent.
        metadata = [("hasleader", "true")]
        if not self._plain:
            member.token = None  # a token that is idle expires: a new one for each stream
            metadata += self._metadata(member, FIRST_TRY_S) or []
        try:
            return self.connection(member, method).stub(method)(requests, metadata=metadata)
        except RuntimeError:
            self._streams[member.endpoint].discard()
            raise

    def renew_stream(self, member: Endpoint) -> None:
        """Have the next stream on a member opened by a new connection, and end this one's."""
        fork_safety.enter()
        try:
            self._streams[member.endpoint].close()
        finally:
            fork_safety.leave()

    def _metadata(self, member: Endpoint, timeout: float) -> Metadata | None:
        if self._plain:
            return None
        if self.borrowed is not None and self.location.user is None:
            return self.borrowed.metadata()
        if member.token is None:
            connection = self.connection(member, AUTHENTICATE)
            stub = connection.stub(AUTHENTICATE)
            try:
                member.token = stub(self.failover.authentication(), timeout=timeout).token
                connection.failing_since = None
            except grpc.RpcError as error:
                connection.note(error)
                member.no_token(error)
        return member.metadata()

    def close(self) -> None:
        """Close all channels; calls under way, and those to come, end with `StoreClosed`."""
        self.failover.closed = True
        self.close_streams()
        for connection in self._unary.values():
            connection.close()

    def close_streams(self) -> None:
        """Close the channels of streams.

        At the interpreter's end, while gRPC's threads still run: a channel with a stream that is
        collected after that waits for ever for one of those threads to end the stream.
        """
        for connection in self._streams.values():
            connection.close()
