"""Index entries of keys that were written by hand: an unlocker walks each server's keyspace."""

from __future__ import annotations

import math
import time
from typing import Final

from lockclient.model.clocks import monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Connection
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

_INTERVAL_S: Final = 3600.0
_PAUSE_S: Final = 0.01
"""Seconds between two pages: a million keys take half a minute."""


class IndexWalk:
    """Walks the servers' keyspaces once an hour.

    Args:
        servers: the servers.
        pool: a thread of it walks.
    """

    def __init__(self, servers: Broadcast, pool: WorkerPool) -> None:
        self._servers = servers
        self._due = -math.inf
        self._is_refusal_logged = False
        self._pool = pool

    def run_if_due(self) -> None:
        if monotonic() >= self._due:
            self._due = monotonic() + _INTERVAL_S
            self._pool.submit(self._walk)

    def _walk(self) -> None:
        for endpoint, found in self._servers.open_all():
            try:
                if isinstance(found, Connection):
                    self._walk_server(found)
            except errors.FAILED as error:
                if not self._is_refusal_logged:
                    self._is_refusal_logged = True
                    reason = errors.classify(error).reason
                    log.warning("%s: keys written by hand are not listed: %s", endpoint, reason)

    def _walk_server(self, connection: Connection) -> None:
        keys = self._servers.keys
        for page in connection.scan(("SCAN",), "MATCH", f"{keys.all}*"):
            if self._servers.closed:
                return
            for index in (keys.lock_index, keys.unlocker_index, keys.record_index):
                found = [name for name in map(decoded, page) if name.startswith(f"{index}/")]
                if found:
                    entries = (name.removeprefix(f"{index}/") for name in found)
                    connection.command("SADD", index, *entries)
            time.sleep(_PAUSE_S)
