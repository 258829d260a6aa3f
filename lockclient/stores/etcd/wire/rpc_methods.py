"""The gRPC methods of etcd that we call, channel options and TLS credentials."""

from __future__ import annotations

import json
import os
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.stores.common.background import no_thread
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.paging import MAX_ANSWER_BYTES
from lockclient.threads.daemon_thread import is_interpreter_end
from lockclient.threads.reentrancy import briefly

OPTIONS = [
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
    # Long ranges are read in pages; a page of more bytes is asked for again with fewer keys.
    (
        "grpc.service_config",
        json.dumps(
            {
                "methodConfig": [
                    {
                        "name": [{"service": "etcdserverpb.KV", "method": "Range"}],
                        "maxResponseMessageBytes": MAX_ANSWER_BYTES,
                    }
                ]
            }
        ),
    ),
    ("grpc.enable_retries", 0),
    # A proxy for the web would see etcd's password.
    ("grpc.enable_http_proxy", 0),
]

Metadata = list[tuple[str, str]]


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
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", wire.AuthenticateAnswer)
STATUS = Method("/etcdserverpb.Maintenance/Status", wire.StatusAnswer)


def make_call(channel: Any, method: Method) -> Any:
    """Return a function that calls a method over a channel of `grpc` or `grpc.aio`."""
    make = channel.stream_stream if method.streams else channel.unary_unary
    return make(
        method.path,
        request_serializer=methodcaller("SerializeToString"),
        response_deserializer=method.answer.FromString,
    )


def require_threads() -> None:
    """Check that the system gives the threads that gRPC starts with a process's first channel.

    Without them gRPC ends the process by SIGABRT.

    Raises:
        StoreUnavailable: the system does not give them.
    """
    if _has_threads:
        return
    with briefly(_asking):  # one caller at a time starts these threads
        if not _has_threads:
            _ask_for_threads()


def _ask_for_threads() -> None:
    global _has_threads
    end, ended, started = allocate_lock(), deque[bool](), 0

    def wait() -> None:
        with end:
            ended.append(True)

    try:
        with end:
            for _ in range(min(max(os.cpu_count() or 1, 4), 16) + 8):
                start_new_thread(wait, ())
                started += 1
    except RuntimeError as error:
        if not is_interpreter_end(error):  # then only Python starts none, unlike gRPC
            raise no_thread(error) from error
    finally:
        while len(ended) < started:  # later gRPC holds the GIL while it waits for its threads
            time.sleep(0.001)
    _has_threads = True


_asking = allocate_lock()
_has_threads = False


def _reset_after_fork() -> None:
    global _asking, _has_threads
    _asking, _has_threads = allocate_lock(), False


os.register_at_fork(after_in_child=_reset_after_fork)


def open_channel(api: Any, location: EtcdLocation, endpoint: str, *, again: bool = False) -> Any:
    """Return a channel to a member, of `grpc` or `grpc.aio`; `again`: the one before failed."""
    require_threads()
    # No quick retries in each channel of a long outage. (Of two equal options the first counts.)
    options = [("grpc.initial_reconnect_backoff_ms", 1000), *OPTIONS] if again else OPTIONS
    if not location.secure:
        return api.insecure_channel(endpoint, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_content(location.cacert),
        private_key=_content(location.key),
        certificate_chain=_content(location.cert),
    )
    return api.secure_channel(endpoint, credentials, options=options)


_contents: dict[str, bytes] = {}


def _content(path: str | None) -> bytes | None:
    """Return a file's content; while the file is being replaced, its last content."""
    if path is None:
        return None
    try:
        content = _contents[path] = Path(path).read_bytes()
    except OSError:
        if path not in _contents:
            raise
        return _contents[path]
    return content
