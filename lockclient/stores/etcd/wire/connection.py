"""A connection to one member: replaced when it fails, so that it finds new files and addresses."""

from __future__ import annotations

from typing import Any

import grpc

from lockclient.model.clocks import monotonic
from lockclient.stores.etcd.errors import answered
from lockclient.stores.etcd.wire.rpc_methods import Method

RENEW_AFTER_S = 2.0
"""Seconds for which a connection must have failed before it is replaced."""


class Connection:
    """A connection to one member for one use, which is replaced when it fails for too long.

    A gRPC channel reads certificate files when it is made, and keeps connecting to the addresses
    that the member's name had before: only a new channel finds renewed files and a new address.
    Threads may call at once: a note that another thread overwrites makes a channel one call later
    or earlier.
    """

    made_at = 0.0
    failing_since: float | None = None
    """Since when connections were refused or broken without an answer in between."""

    def stub(self, method: Method) -> Any:
        """Return the function that makes a call."""
        raise NotImplementedError

    def renew(self, since: float) -> None:
        """Connect again with the next call, unless that was done since this time."""
        raise NotImplementedError

    def note(self, error: grpc.RpcError) -> None:
        """Note that a call ended with this error. (After an answer set `failing_since` to None.)

        A call without an answer in time changes nothing: a slow member gets no new connections.
        """
        if answered(error):
            self.failing_since = None
        elif error.code() is grpc.StatusCode.UNAVAILABLE:
            now = monotonic()
            if self.failing_since is None:
                self.failing_since = now
            if now - max(self.failing_since, self.made_at) > RENEW_AFTER_S:
                self.renew(now)
