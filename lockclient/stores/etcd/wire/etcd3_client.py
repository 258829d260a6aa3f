"""The connection of an `etcd3` client that a program has already: its channel and its token."""

from __future__ import annotations

import os
from typing import Any

from lockclient.errors import StoreError
from lockclient.stores.etcd.wire.failover import Connection
from lockclient.stores.etcd.wire.rpc_methods import Metadata, Method, make_call


class Borrowed(Connection):
    """The parts of a borrowed client that this store uses; it never closes the client.

    Args:
        client: of the package `etcd3` (python-etcd3 or python3-etcd3).
    """

    def __init__(self, client: Any) -> None:
        self.stubs: dict[str, Any] = {}  # none is kept: see `stub`
        self._client = client
        self._pid = os.getpid()

    def stub(self, method: Method) -> Any:
        """Return what makes a call; never kept, for a client with several endpoints changes it."""
        if os.getpid() != self._pid:  # not the parent's channel: that may hang
            raise StoreError(
                "The etcd3 client was handed over before this process was forked: make a new one "
                "and call ClusterMutex.setup(client=…) again here."
            )
        return make_call(self._client.channel, method)

    def metadata(self) -> Metadata:
        """Return what its requests carry now; it may have renewed its token."""
        return list(self._client.metadata or ())

    def renew(self, since: float) -> None:
        """Nothing: the connection is its owner's."""

    def discard(self) -> None:
        """Nothing: the connection is its owner's."""

    def close(self) -> None:
        """Nothing: the connection is its owner's."""


def endpoint_of(client: Any) -> str:
    """Return where a client is connected to, for messages.

    Raises:
        ValueError: it is no `etcd3` client.
    """
    in_use = getattr(client, "endpoint_in_use", None)
    endpoint = getattr(in_use, "netloc", None) or getattr(client, "_url", None)
    if not isinstance(endpoint, str) or not hasattr(client, "channel"):
        raise ValueError(f"client must be an etcd3 client, not {client!r}.")
    return endpoint
