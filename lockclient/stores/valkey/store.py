"""Valkey store (or Redis): worker threads send requests, pub/sub hints shorten waits."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.polled_store import PolledStore
from lockclient.stores.common.polling import Polling
from lockclient.stores.common.store_lifecycle import CLEAN_UP_TIMEOUT_S
from lockclient.stores.findings import Finding, Voter
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import Change, Document
from lockclient.stores.valkey import diagnosis
from lockclient.stores.valkey.announcements_and_documents import Unlockers
from lockclient.stores.valkey.keys import KeyNames
from lockclient.stores.valkey.listing import KeyListing
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.lua_scripts import DELETE, Command
from lockclient.stores.valkey.requests import do
from lockclient.stores.valkey.voting.retry_queue import RetryQueue
from lockclient.stores.valkey.voting.rounds import Plan, Rounds
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.pubsub import PubSub


class ValkeyStore(PolledStore):
    """A `ServiceStore` on servers of Valkey or Redis. It connects with the first request.

    Args:
        location: the servers, and the prefix of the keys.
    """

    can = Capabilities("Valkey", queue=False, watch=False, fencing=False, guard=False)
    location: ValkeyLocation

    def __init__(self, location: ValkeyLocation) -> None:
        if not hasattr(select, "poll"):
            raise ClusterMutexError(
                "Locks in Valkey need select.poll, which eventlet has removed from this process. "
                "Leave it as it is (eventlet.monkey_patch(thread=False, select=False)), or hold "
                "the lock by a process of its own: clustermutex run NAME -- COMMAND."
            )
        self.can = replace(type(self).can, expires=location.expire)
        super().__init__(location)

    @property
    def keys(self) -> KeyNames:
        return self._servers.keys

    def _connect(self) -> None:
        super()._connect()
        self._servers = Broadcast(self.location, lambda i: self._retry_queue.run(i))
        self._retry_queue = RetryQueue(self._servers)
        self._pubsub = PubSub(self._servers)
        self._lock_polls.listen = self._pubsub.listen
        self._rounds = Rounds(self._servers, self._retry_queue)
        self._listing = KeyListing(self._rounds)
        self._unlockers = Unlockers(self._rounds, self.background.patient)
        self._polling = Polling(self._listing, self.background.patient, self._pubsub.listen_to_all)
        self._do = partial(do, self._rounds)

    def _disconnect(self) -> None:
        super()._disconnect()
        self._pubsub.close()
        self._retry_queue.drain(CLEAN_UP_TIMEOUT_S)
        self._servers.close()
        self._retry_queue.close()

    def endpoints(self) -> tuple[str, ...]:
        return self.location.endpoints

    def settle(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        super().settle(deadline.remaining())
        self._retry_queue.drain(deadline.remaining())

    # ------------------------------------------------------------ of unlockers

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        self._unlockers.announce(unlocker, value, ttl, deadline)
        return self._polling.revision_at(monotonic())

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        self._unlockers.withdraw_announcement(unlocker, deadline)

    def read_document(self, name: str, deadline: Deadline) -> Document:
        return self._unlockers.read_document(name, deadline)

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        return self._unlockers.write_document(name, value, seen, deadline)

    def document_names(self, deadline: Deadline) -> list[str]:
        return self._unlockers.document_names(deadline)

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """See `ServiceStore.forget`: a record's uuid is spent, so no client writes it again.

        Unreachable servers delete it when they are reachable; it may be listed until then.
        """
        rounds = self._rounds
        delete = Command(DELETE, (self.keys.record(change.name, change.part),), ())
        deleted = rounds.call(Plan(delete, rounds.is_majority, lambda done, _: done), deadline)
        self._retry_queue.add(set(rounds.all) - deleted.keys(), delete)
        return True

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        held = (name for name in self._listing.held(deadline) if name.startswith(prefix))
        return sorted(held)[:limit]

    def clock_offsets(self, timeout: float) -> list[float]:  # noqa: ARG002 - polls have asked
        """See `ServiceStore.clock_offsets`: by each server's last answer."""
        return [monotonic() + ahead - time.time() for ahead in self._listing.ahead.values()]

    def votes(self) -> Mapping[str, str]:
        return self._servers.votes()

    def warnings_for_display(self) -> Sequence[str]:
        return (*self._servers.warnings(), *self._listing.warnings())

    def thin_locks(self) -> Mapping[str, int]:
        return self._listing.thin()

    # ------------------------------------------------------------ for operators

    def examine(self) -> Iterator[Finding]:
        return diagnosis.examine(self._servers)

    def vouch(self) -> None:
        """Vouch that nobody holds a lock of this keyspace, so that all its servers vote at once.

        For a new keyspace, and after all holders have ended. Else a server that is new to the
        keyspace, or was emptied, votes after `ValkeyLocation.longest`.

        Raises:
            StoreUnavailable: a server can't be reached.
        """
        self.background.run_shielded(partial(diagnosis.clear_quarantine, self._servers))

    def vouch_kept(self, *, kept: bool = True) -> None:
        """Vouch that all servers write everything to their disks before they answer, so that they
        vote at once after a restart; with `kept=False` take that back.

        For servers with `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`.
        Take it back before one of these settings changes.

        Raises:
            StoreError: a server has another configuration, as far as this user may read that.
            StoreUnavailable: a server can't be reached.
        """
        self.background.run_shielded(partial(diagnosis.note_kept, self._servers, kept=kept))

    def voters(self) -> Iterator[Voter]:
        return diagnosis.voters(self._servers)
