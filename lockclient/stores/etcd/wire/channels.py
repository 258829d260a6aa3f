"""gRPC channels to the members of a cluster, for threads: deadlines, TLS, tokens.

Each member has channels of its own, because gRPC's balancing keeps sending to a frozen member;
`failover` chooses the member and the deadline of each try.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import fork_safety
from lockclient.stores.etcd.wire.connection import Connection
from lockclient.stores.etcd.wire.failover import (
    FIRST_TRY_S,
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
from lockclient.stores.request_types import Delivery


class _Connection(Connection):
    """A channel to one member, made at first need. No caller waits for another caller here."""

    def __init__(self, connect: Callable[..., grpc.Channel]) -> None:
        self._connect = connect
        self.stubs: dict[str, Any] = {}
        """A channel and, by the paths of their methods, the functions that call over it. A new
        channel has a new dict, so that no two channels are mixed."""

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
        # Calls of other threads that are under way keep the old channel, which ends with the last.
        if self.made_at < since:
            self.stubs = {}

    def discard(self) -> None:
        """Connect again with the next call, and never close the old channel.

        If the system refused a channel its thread, the channel counts it as running, and closing
        waits for it for ever.
        """
        _discarded.append(self.stubs)
        self.stubs = {}

    def close(self) -> None:
        stubs, self.stubs = self.stubs, {}
        channel = stubs.pop(_CHANNEL, None)
        if channel is not None:
            channel.close()


_CHANNEL = ""
_discarded: list[dict[str, Any]] = []  # a garbage-collected channel would be closed


class Borrowed(Connection):
    """The channel and the token of an `etcd3` client of the program, which closes it itself.

    Args:
        client: of the package `etcd3` (python-etcd3 or python3-etcd3).
    """

    def __init__(self, client: Any) -> None:
        self.stubs: dict[str, Any] = {}  # always empty: see `stub`
        self._client = client
        self._pid = os.getpid()

    def stub(self, method: Method) -> Any:
        """Return the function that makes a call; a client with several endpoints changes it."""
        if os.getpid() != self._pid:  # a call over the parent's channel may hang
            raise StoreError(
                "The etcd3 client was handed over before this process was forked: make a new one "
                "and call ClusterMutex.setup(client=…) again here."
            )
        return make_call(self._client.channel, method)

    def metadata(self) -> Metadata:
        """Return the client's metadata; it may have renewed its token."""
        return list(self._client.metadata or ())

    def renew(self, since: float) -> None:
        """Do nothing: the client's owner renews and closes its channel."""

    def discard(self) -> None:
        """See `renew`."""

    def close(self) -> None:
        """See `renew`."""


def endpoint_of(client: Any) -> str:
    """Return the address to which a client is connected, for messages.

    Raises:
        ValueError: `client` is no `etcd3` client.
    """
    in_use = getattr(client, "endpoint_in_use", None)
    endpoint = getattr(in_use, "netloc", None) or getattr(client, "_url", None)
    if not isinstance(endpoint, str) or not hasattr(client, "channel"):
        raise ValueError(f"client must be an etcd3 client, not {client!r}.")
    return endpoint


class Channels:
    """The connections to all members of one cluster; any thread may call.

    Args:
        location: their endpoints.
        borrowed: the connection of an `etcd3` client, to be used instead.
    """

    def __init__(self, location: EtcdLocation, borrowed: Borrowed | None = None) -> None:
        self.failover = Failover(location, renewable=borrowed is None)
        self.location = location
        self.borrowed = borrowed
        self._plain = location.user is None and borrowed is None
        self.unary = self._connections(borrowed)
        # Connections of their own: at the interpreter's end these are closed before the others.
        self.streams = self._connections(borrowed)

    def _connections(self, borrowed: Borrowed | None) -> dict[str, _Connection | Borrowed]:
        connect_to = partial(partial, open_channel, grpc, self.location)
        return {
            member.endpoint: borrowed or _Connection(connect_to(member.endpoint))
            for member in self.failover.members
        }

    # ------------------------------------------------------------ unary calls

    def call(
        self,
        method: Method,
        request: Message,
        deadline: Deadline,
        delivery: Delivery | None = None,
    ) -> Any:
        """Return the answer; note in `delivery` whether the request may still arrive.

        Raises:
            WireError: a member refuses the request.
            StoreUnavailable: no member answered by the deadline.
        """
        tries = Tries(self.failover, deadline, delivery)
        connections = self.streams if method.streams else self.unary
        while True:
            member, timeout = tries.next()
            connection = connections[member.endpoint]
            fork_safety.enter()
            try:
                metadata = None if self._plain else self._metadata(member, timeout)
                tries.metadata = metadata
                stub = connection.stubs.get(method.path) or connection.stub(method)
                if method.streams:
                    # One request, one answer; then etcd ends the stream.
                    answer = next(stub(iter((request,)), timeout=timeout, metadata=metadata))
                else:
                    answer = stub(request, timeout, metadata)
            except Exception as error:  # noqa: BLE001 - `failed` raises those that end the request
                if isinstance(error, grpc.RpcError):
                    connection.note(error)
                pause = tries.failed(error)
                if method.streams and not isinstance(error, grpc.RpcError):
                    connection.discard()
                if tries.renew:
                    connection.renew(tries.began_at)
            else:
                connection.failing_since = None
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
            member.token = None  # an idle token expires, so each stream gets a new one
            metadata += self._metadata(member, FIRST_TRY_S) or []
        try:
            return self.streams[member.endpoint].stub(method)(requests, metadata=metadata)
        except RuntimeError:
            self.streams[member.endpoint].discard()
            raise

    def reconnect_stream(self, member: Endpoint) -> None:
        """Close the connection for streams to a member; the next stream makes a new one."""
        fork_safety.enter()
        try:
            self.streams[member.endpoint].close()
        finally:
            fork_safety.leave()

    def _metadata(self, member: Endpoint, timeout: float) -> Metadata | None:
        if self._plain:
            return None
        if self.borrowed is not None and self.location.user is None:
            return self.borrowed.metadata()
        if member.token is None:
            connection = self.unary[member.endpoint]
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
        for connection in self.unary.values():
            connection.close()

    def close_streams(self) -> None:
        """Close the channels of streams.

        Called at the interpreter's end while gRPC's threads still run: a channel with a stream that
        is garbage-collected later waits for ever for one of them to end the stream.
        """
        for connection in self.streams.values():
            connection.close()
