"""Connections to the members of a cluster: failover, deadlines, TLS, tokens.

Each member has channels of its own, because gRPC's own balancing keeps sending to a frozen
member. A try has a deadline much shorter than the caller's; a member that failed is left alone
for a moment and the next one is asked. Every request may be sent twice (see `transactions`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.etcd import messages_pb2 as wire
from lockclient.etcd.faults import Fault, diagnose, reason, refused, unavailable
from lockclient.settings import Settings
from lockclient.timing import Deadline

log = logging.getLogger(__name__)

FIRST_TRY = 1.0
"""Seconds that the first try may take; each later round of tries may take twice as long."""
LONGEST_TRY = 8.0
COOL_DOWN = 1.0
"""Seconds that a member that failed is asked last."""

_OPTIONS = [
    # Without a pool of its own, a "new" channel inherits a connection that is known to be dead.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A half-open connection is noticed after 10 + 5 s; more frequent pings get a GOAWAY.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
]


_Metadata = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Method:
    """A gRPC method of etcd, the type of its answer, and whether it is a stream both ways."""

    path: str
    answer: type[Message]
    streams: bool = False


TXN = Method("/etcdserverpb.KV/Txn", wire.TxnAnswer)
RANGE = Method("/etcdserverpb.KV/Range", wire.RangeAnswer)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantAnswer)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeAnswer)
KEEP_ALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveAnswer, True)
WATCH = Method("/etcdserverpb.Watch/Watch", wire.WatchAnswer, True)
_AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", wire.AuthenticateAnswer)


class Refusal(Exception):
    """A member answered with something that trying again won't change."""

    def __init__(self, fault: Fault, error: grpc.RpcError, endpoint: str) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.error = error
        self.endpoint = endpoint


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
            make = self._channel.stream_stream if method.streams else self._channel.unary_unary
            call = self._calls[method.path] = make(
                method.path,
                request_serializer=_serialize,
                response_deserializer=method.answer.FromString,
            )
            return call

    def close(self) -> None:
        with self._lock:
            self._calls.clear()
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Member:
    """One member: the connections to it, its token, and when it last failed.

    The main thread has a connection of its own. Signal handlers run there, and when one raises
    (Ctrl-C) in the middle of a call, a lock of gRPC's stays taken for good (its conditions are
    Python's: grpc/grpc#19973 was one such case): every other thread on that channel would hang for
    ever, whatever its deadline, the watch and all clean-up included. This way it is no other's.
    """

    def __init__(self, endpoint: str, connect: Callable[[str], grpc.Channel]) -> None:
        self.endpoint = endpoint
        self.cooling_until = 0.0
        self.token: str | None = None
        self._connect = partial(connect, endpoint)
        self._main = _Connection(self._connect)
        self._others = _Connection(self._connect)

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
    """All members of one cluster; safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._members = [_Member(each, self._connect) for each in settings.endpoints]
        self._good = 0
        self._plain = settings.user is None
        self._down_since: float | None = None
        self._closed = False

    def _connect(self, endpoint: str) -> grpc.Channel:
        settings = self._settings
        if not settings.secure:
            return grpc.insecure_channel(endpoint, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_content(settings.cacert),
            private_key=_content(settings.key),
            certificate_chain=_content(settings.cert),
        )
        return grpc.secure_channel(endpoint, credentials, options=_OPTIONS)

    # ------------------------------------------------------------ unary calls

    def call(self, method: Method, request: Message, deadline: Deadline) -> tuple[Any, bool]:
        """Return the answer, and whether an earlier sending may have happened as well.

        Raises:
            Refusal: a member answered with an error that is an answer.
            StoreUnavailable: nobody answered by the deadline.
        """
        resent = False
        last = "the time was up before it could be asked"
        tries = 0
        while True:
            member = self._next_member()
            longest = min(LONGEST_TRY, FIRST_TRY * 2 ** (tries // len(self._members)))
            timeout = min(longest, deadline.remaining())
            if self._closed:
                last, timeout = "the store is closed", 0
            if timeout <= 0:
                raise unavailable(self._settings.endpoints, last, unknown=resent) from None
            try:
                if self._plain and not method.streams:  # most calls: nothing stands in between
                    answer = member.stub(method)(request, timeout)
                else:
                    answer = self._try(member, method, request, timeout)
            except grpc.RpcError as error:
                fault = diagnose(error)
                if fault not in (Fault.NOT_SENT, Fault.UNKNOWN):
                    raise Refusal(fault, error, member.endpoint) from None
                resent = resent or fault is Fault.UNKNOWN
                last = reason(error)
            except BaseException:
                member.interrupted()
                raise
            else:
                self._report(None)
                return answer, resent
            self._failed(member)
            tries += 1
            if tries % len(self._members) == 0:  # all failed: a pause, never a busy loop
                self._report(last)
                time.sleep(min(0.05 * 2 ** min(tries, 4), deadline.remaining()))

    def _try(self, member: _Member, method: Method, request: Message, timeout: float) -> Any:
        if self._plain:
            return _once(member.stub(method), method, request, timeout, None)
        try:
            metadata = self._metadata(member, timeout)
            return _once(member.stub(method), method, request, timeout, metadata)
        except grpc.RpcError as error:
            if diagnose(error) is not Fault.NEW_TOKEN:
                raise
        member.token = None
        metadata = self._metadata(member, timeout)
        return _once(member.stub(method), method, request, timeout, metadata)

    def _next_member(self) -> _Member:
        """Return the member that last answered, or else the one whose failure is longest ago."""
        member = self._members[self._good]
        if len(self._members) == 1 or member.cooling_until <= time.monotonic():
            return member
        coolest = min(self._members, key=lambda each: each.cooling_until)
        self._good = self._members.index(coolest)
        return coolest

    def _report(self, trouble: str | None) -> None:
        """Log the begin and the end of an outage, once each."""
        if trouble is None and self._down_since is not None:
            log.warning("etcd answers again after %.1f s.", time.monotonic() - self._down_since)
            self._down_since = None
        elif trouble is not None and self._down_since is None:
            endpoints = ", ".join(self._settings.endpoints)
            log.warning("etcd at %s does not answer (%s); trying on.", endpoints, trouble)
            self._down_since = time.monotonic()

    def _failed(self, member: _Member) -> None:
        member.cooling_until = time.monotonic() + COOL_DOWN

    # ------------------------------------------------------------ streams

    def open_stream(self, method: Method, requests: Iterator[Message], first: bool) -> Any:
        """Open a stream on a member that may work: an iterator of answers with `cancel()`.

        With `first` False the last stream failed, and another member is asked.
        """
        member = self._next_member()
        if not first:
            self._failed(member)
            member = self._next_member()
        # hasleader: a member cut off from its leader ends the stream instead of staying silent.
        metadata = [("hasleader", "true")]
        if self._settings.user is not None:
            member.token = None  # a token that is idle expires: a new one for each stream
            metadata += self._metadata(member, FIRST_TRY) or []
        return member.stub(method)(requests, metadata=metadata)

    # ------------------------------------------------------------ tokens

    def _metadata(self, member: _Member, timeout: float) -> _Metadata | None:
        if member.token is None:
            request = wire.Authenticate(
                name=self._settings.user or "", password=self._settings.password or ""
            )
            try:
                answer = member.stub(_AUTHENTICATE)(request, timeout=timeout)
            except grpc.RpcError as error:
                if "authentication is not enabled" not in (error.details() or ""):
                    raise
                return None
            member.token = answer.token
        return [("token", member.token or "")]

    def close(self) -> None:
        """Close all channels; calls under way, and those to come, end with `StoreUnavailable`."""
        self._closed = True
        for member in self._members:
            member.close()


def refuse(refusal: Refusal) -> Exception:
    """Return our exception for a refusal."""
    return refused(refusal.error, refusal.endpoint)


def _once(
    stub: Any, method: Method, request: Message, timeout: float, metadata: _Metadata | None
) -> Any:
    if not method.streams:
        return stub(request, timeout=timeout, metadata=metadata)
    # A stream that is asked one thing gives one answer; its end follows by itself.
    return next(stub(iter((request,)), timeout=timeout, metadata=metadata))


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
