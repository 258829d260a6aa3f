"""Valkey store (or Redis): requests in worker threads, pub/sub hints for those who wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from lockclient.model.clocks import Deadline
from lockclient.stores.diagnosis_protocol import Finding, Voter
from lockclient.stores.protocol import Capabilities, Subscription, WatchEvent, WatchTarget
from lockclient.stores.valkey import quarantine
from lockclient.stores.valkey.diagnosis import examine
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.requests import ValkeyRequestExecutor
from lockclient.stores.valkey.service_store import ValkeyServiceStore


class ValkeyStore(ValkeyServiceStore):
    """A `ServiceStore` in servers of Valkey or Redis. Nothing is sent before it is asked.

    Args:
        location: which servers, and where in them.
    """

    can = Capabilities("Valkey", queue=False, watch=False, fencing=False, guard=False, hints=True)
    _name = "valkey"

    def __init__(self, location: ValkeyLocation) -> None:
        self.can = replace(type(self).can, expires=location.expire)
        super().__init__(location)

    @property
    def keys(self) -> KeyNames:
        """The names of the keys, as every client has them."""
        return self._servers.keys

    def _connect(self) -> None:
        super()._connect()
        self._executor = ValkeyRequestExecutor(self._rounds)

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
        """See `MutexStore.watch`: from a revision on it is looked every few seconds who has it.

        From now on, as who waits asks and looks for itself besides, there are hints and nothing
        else: that somebody has let go of it.
        """
        if not revision:
            return self._pubsub.subscribe(target.name, notify)
        return super().watch(target, revision, notify)

    def examine(self) -> Iterator[Finding]:
        return examine(self._servers)

    def vouch(self) -> None:
        """Say that nobody holds a lock of this keyspace, so that all its servers vote at once.

        For a new one, and after all who held locks have ended. Else a server that is new to the
        keyspace, or was emptied, votes when `ValkeyLocation.longest` has passed.

        Raises:
            StoreUnavailable: a server can't be told.
        """
        self.background.run_shielded(partial(quarantine.clear_quarantine, self._servers))

    def voters(self) -> Iterator[Voter]:
        return quarantine.voters(self._servers)

    def settle(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        super().settle(deadline.remaining())
        self._undo_queue.drain(deadline.remaining())
