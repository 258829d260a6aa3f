"""Connections to the members of a cluster, for one event loop: what `channels` is for threads."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from google.protobuf.message import Message

from lockclient.errors import StoreError
from lockclient.etcd.channels import Channels
from lockclient.etcd.failover import Member, Tries
from lockclient.etcd.lease import Lease
from lockclient.etcd.methods import (
    AUTHENTICATE,
    GRANT,
    OPTIONS,
    Metadata,
    Method,
    credentials_of,
    make_call,
)
from lockclient.timing import Deadline


class AioChannels:
    """All members of one cluster, by grpc.aio; what is known of them is shared with the threads.

    Args:
        channels: those of the threads, for the settings and what they know.
    """

    def __init__(self, channels: Channels) -> None:
        if channels.borrowed is not None:
            raise StoreError(
                "AsyncClusterMutex can't use the connection of an etcd3 client: give the endpoints "
                "to ClusterMutex.setup() instead of the client."
            )
        self._settings = channels.settings
        self._failover = channels.failover
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._granting = asyncio.Lock()

    async def call(self, method: Method, request: Message, deadline: Deadline) -> tuple[Any, bool]:
        """See `Channels.call`; for methods that are no streams."""
        tries = Tries(self._failover, request, deadline)
        while True:
            member, timeout = tries.next()
            try:
                metadata = await self._metadata(member, timeout)
                stub = self._stub(member, method)
                answer = await stub(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as error:
                pause = tries.failed(error)
            else:
                tries.answered()
                return answer, tries.resent
            await asyncio.sleep(pause)

    async def lease_id(self, lease: Lease, deadline: Deadline) -> int:
        """See `Lease.get`."""
        if not lease.usable():
            async with self._granting:  # a thousand tasks that queue at once want one lease
                if not lease.usable():
                    sent_at = time.monotonic()
                    answer, _ = await self.call(GRANT, lease.grant(), deadline)
                    lease.granted(answer, sent_at)
        return lease.id

    def _stub(self, member: Member, method: Method) -> Any:
        key = member.endpoint, method.path
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = make_call(self._channel(member.endpoint), method)
        return call

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            credentials = credentials_of(self._settings)
            if credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, credentials, options=OPTIONS)
            self._channels[endpoint] = channel
        return channel

    async def _metadata(self, member: Member, timeout: float) -> Metadata | None:
        if not self._failover.authentication.name:
            return None
        if member.token is None:
            stub = self._stub(member, AUTHENTICATE)
            try:
                answer = await stub(self._failover.authentication, timeout=timeout)
                member.token = answer.token
            except grpc.RpcError as error:
                member.no_token(error)
        return member.metadata()
