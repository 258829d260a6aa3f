"""Connections to the members of a cluster, for threads: deadlines, TLS, tokens.

Each member has channels of its own, because gRPC's own balancing keeps sending to a frozen
member. Who is asked when, and for how long, says `failover`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.etcd import forking
from lockclient.etcd.borrowed import Borrowed
from lockclient.etcd.failover import FIRST_TRY, Failover, Member, Tries
from lockclient.etcd.methods import (
    AUTHENTICATE,
    OPTIONS,
    Metadata,
    Method,
    credentials_of,
    make_call,
)
from lockclient.settings import Settings
from lockclient.timing import Deadline


class _Connection:
    """A channel to one member, made at first need."""

    def __init__(self, connect: Callable[[], grpc.Channel]) -> None:
        self._connect = connect
        self._channel: grpc.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._lock = threading.Lock()

    def stub(self, method: Method) -> Any:
        return self._calls.get(method.path) or self._make(method)

    def _make(self, method: Method) -> Any:
        with self._lock:
            if self._channel is None:
                self._channel = self._connect()
            call = self._calls[method.path] = make_call(self._channel, method)
            return call

    def close(self) -> None:
        with self._lock:
            self._calls.clear()
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Connections:
    """The connections to one member.

    The main thread has one of its own. Signal handlers run there, and when one raises (Ctrl-C) in
    the middle of a call, a lock of gRPC's stays taken for good (its conditions are Python's:
    grpc/grpc#19973 was one such case): every other thread on that channel would hang for ever,
    whatever its deadline, the watch and all clean-up included. This way it is no other's.
    """

    def __init__(self, connect: Callable[[], grpc.Channel]) -> None:
        self._connect = connect
        self._main = _Connection(connect)
        self._others = _Connection(connect)

    def stub(self, method: Method) -> Any:
        """Return what makes a call, on the connection of the calling thread."""
        mine = self._main if _in_main_thread() else self._others
        return mine.stub(method)

    def interrupted(self) -> None:
        """Throw the main thread's connection away: who knows what the interrupt left of it."""
        if _in_main_thread():
            broken, self._main = self._main, _Connection(self._connect)
            broken.close()

    def close(self) -> None:
        """End all calls."""
        self._main.close()
        self._others.close()


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


class Channels:
    """All members of one cluster; safe to share between threads.

    Args:
        settings: where they are.
        borrowed: the connection of another client, to use instead of our own.
    """

    def __init__(self, settings: Settings, borrowed: Borrowed | None = None) -> None:
        self.failover = Failover(settings)
        self.settings = settings
        self.borrowed = borrowed
        self._plain = settings.user is None and borrowed is None
        self._connections = {
            each.endpoint: borrowed or _Connections(partial(self._connect, each.endpoint))
            for each in self.failover.members
        }
        self._streaming = self.failover.members[0]

    def _connect(self, endpoint: str) -> grpc.Channel:
        credentials = credentials_of(self.settings)
        if credentials is None:
            return grpc.insecure_channel(endpoint, options=OPTIONS)
        return grpc.secure_channel(endpoint, credentials, options=OPTIONS)

    def stub(self, member: Member, method: Method) -> Any:
        """Return what makes a call to a member, on the connection of the calling thread."""
        return self._connections[member.endpoint].stub(method)

    # ------------------------------------------------------------ unary calls

    def call(self, method: Method, request: Message, deadline: Deadline) -> tuple[Any, bool]:
        """Return the answer, and whether an earlier sending may have happened as well.

        Raises:
            Refusal: a member answered with an error that is an answer.
            StoreUnavailable: nobody answered by the deadline.
        """
        tries = Tries(self.failover, request, deadline)
        while True:
            member, timeout = tries.next()
            forking.enter()
            try:
                stub = self.stub(member, method)
                if method.streams:
                    # Asked one thing it gives one answer; its end follows by itself.
                    metadata = self._metadata(member, timeout)
                    answer = next(stub(iter((request,)), timeout=timeout, metadata=metadata))
                elif self._plain:  # most calls: nothing stands in between
                    answer = stub(request, timeout)
                else:
                    metadata = self._metadata(member, timeout)
                    answer = stub(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as error:
                pause = tries.failed(error)
            except ValueError:  # gRPC's word for a channel that was closed, by `close` or its owner
                raise tries.closed() from None
            except BaseException:
                self._connections[member.endpoint].interrupted()
                raise
            else:
                tries.answered()
                return answer, tries.resent
            finally:
                forking.leave()
            time.sleep(pause)

    def open_stream(self, method: Method, requests: Iterator[Message], first: bool) -> Any:
        """Open a stream on a member that may work: an iterator of answers with `cancel()`.

        With `first` False the last stream failed, and another member is asked.
        """
        if not first:
            self.failover.failed(self._streaming)
        member = self._streaming = self.failover.next()
        # hasleader: a member cut off from its leader ends the stream instead of staying silent.
        metadata = [("hasleader", "true")]
        if not self._plain:
            member.token = None  # a token that is idle expires: a new one for each stream
            metadata += self._metadata(member, FIRST_TRY) or []
        return self.stub(member, method)(requests, metadata=metadata)

    def _metadata(self, member: Member, timeout: float) -> Metadata | None:
        if self._plain:
            return None
        if self.borrowed is not None and self.settings.user is None:
            return self.borrowed.metadata()
        if member.token is None:
            stub = self.stub(member, AUTHENTICATE)
            try:
                member.token = stub(self.failover.authentication, timeout=timeout).token
            except grpc.RpcError as error:
                member.no_token(error)
        return member.metadata()

    def close(self) -> None:
        """Close all channels; calls under way, and those to come, end with `StoreError`."""
        self.failover.closed = True
        for each in self._connections.values():
            each.close()
