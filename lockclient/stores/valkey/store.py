"""Valkey store (or Redis): requests in worker threads, pub/sub hints for those who wait."""

from __future__ import annotations

import secrets
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.lifecycle import CLEAN_UP_TIMEOUT_S
from lockclient.stores.common.polled_store import PolledStore
from lockclient.stores.common.polling import Polling
from lockclient.stores.diagnosis_protocol import Finding, Voter
from lockclient.stores.protocol import Capabilities
from lockclient.stores.service_protocol import MAX_NOTE_BYTES, Change, Note
from lockclient.stores.valkey import diagnosis, lua_scripts
from lockclient.stores.valkey.index_walk import IndexWalk
from lockclient.stores.valkey.keys import KeyNames, milliseconds, number_of
from lockclient.stores.valkey.listing import KeyListing
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.requests import ValkeyRequestExecutor
from lockclient.stores.valkey.voting.rounds import ROUND_PAUSES_S, Rounds
from lockclient.stores.valkey.voting.undo_queue import UndoQueue
from lockclient.stores.valkey.wire.broadcast import Broadcast
from lockclient.stores.valkey.wire.connection import Command
from lockclient.stores.valkey.wire.pubsub import PubSub
from lockclient.threads.backoff import Backoff


class ValkeyStore(PolledStore):
    """A `ServiceStore` in servers of Valkey or Redis. Nothing is sent before it is asked.

    Args:
        location: which servers, and where in them.
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
        """The names of the keys, as every client has them."""
        return self._servers.keys

    def _connect(self) -> None:
        super()._connect()
        self._servers = Broadcast(self.location, lambda i: self._undo_queue.run(i))
        self._undo_queue = UndoQueue(self._servers)
        self._pubsub = PubSub(self._servers)
        self._lock_polls.listen = self._pubsub.listen
        self._rounds = Rounds(self._servers, self._undo_queue)
        self._listing = KeyListing(self._rounds)
        self._index_walk = IndexWalk(self._servers, self.background.patient)
        self._polling = Polling(self._listing, self.background.patient, self._pubsub.listen_to_all)
        self._announcement_number = self._note_number = 0
        self._note_lock, self._nonce = threading.Lock(), secrets.token_hex(8)
        self._executor = ValkeyRequestExecutor(self._rounds)

    def _disconnect(self) -> None:
        super()._disconnect()
        self._pubsub.close()
        self._undo_queue.drain(CLEAN_UP_TIMEOUT_S)
        self._servers.close()
        self._undo_queue.close()

    def endpoints(self) -> tuple[str, ...]:
        return self.location.endpoints

    # ------------------------------------------------------------ MutexStore

    def settle(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        super().settle(deadline.remaining())
        self._undo_queue.drain(deadline.remaining())

    # ------------------------------------------------------------ announcements

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        """See `ServiceStore.announce`: when a majority has it; in each server it expires by itself.

        Of two that differ the one with the higher number is the later one, by this machine's clock,
        or one more than before: nobody compares those of two unlockers.
        """
        self._announcement_number = max(self._announcement_number + 1, time.time_ns() // 10**6)
        keys = self._rounds.keys
        command = Command(
            lua_scripts.SAY,
            (keys.server, keys.announcement(unlocker)),
            (str(self._announcement_number), value, milliseconds(ttl)),
        )
        self._do_by_majority(command, deadline)
        self._index_walk.run_if_due()
        return self._polling.revision_at(monotonic())

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        key = self._rounds.keys.announcement(unlocker)
        self._do_by_majority(Command(lua_scripts.FORGET, (key,), ()), deadline)

    # ------------------------------------------------------------ the note

    def read_note(self, deadline: Deadline) -> Note:
        """See `ServiceStore.read_note`, and `lua_scripts.PROMISE`."""
        keys, quorum = self._rounds.keys, self._rounds.quorum
        pauses = Backoff(*ROUND_PAUSES_S)
        while True:
            number = self._next_note_number()
            args = (str(number), self._nonce, str(MAX_NOTE_BYTES))
            command = Command(lua_scripts.PROMISE, (keys.server, keys.note), args)
            enough = quorum.decides("promised")
            answers = self._rounds.until_enough(command, deadline, enough)
            if quorum.agrees(answers, "promised"):
                replies = (reply for reply in answers.values() if reply.kind == "promised")
                _, value = max((number_of(reply.rest[0], 16), reply.rest[1]) for reply in replies)
                return Note(value if len(value) <= MAX_NOTE_BYTES else b"", number)
            promised = (reply.rest[0] for reply in answers.values() if reply.kind != "promised")
            others = [number_of(other, 16) for other in promised]
            with self._note_lock:  # and never lower: another thread has had a number meanwhile
                self._note_number = max(self._note_number, *others)
            time.sleep(pauses.next())

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        keys, quorum = self._rounds.keys, self._rounds.quorum
        args = (str(seen.version), self._nonce, value.decode())
        command = Command(lua_scripts.WRITE_PROMISED, (keys.server, keys.note), args)
        enough = quorum.decides("written")
        answers = self._rounds.until_enough(command, deadline, enough)
        return quorum.agrees(answers, "written")

    def _next_note_number(self) -> int:
        """Return a number that no other read of ours has: `_nonce` tells it from others'."""
        with self._note_lock:
            self._note_number = max(self._note_number + 1, time.time_ns() // 10**6)
            return self._note_number

    # ------------------------------------------------------------ what is over

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """See `ServiceStore.forget`: a record's uuid is used up, so that nobody writes it again.

        Servers that are away are told as they come back; until then it may be seen again.
        """
        key = self._rounds.keys.record(change.name, change.part)
        command = Command(lua_scripts.FORGET, (key,), ())
        done = self._do_by_majority(command, deadline)
        self._rounds.undo_queue.add(set(self._rounds.all) - done, command)
        return True

    def _do_by_majority(self, command: Command, deadline: Deadline) -> set[int]:
        """Have this done by a majority; return who did it."""
        return {*self._rounds.until_enough(command, deadline, self._rounds.is_majority)}

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        held = (name for name in self._listing.held(deadline) if name.startswith(prefix))
        return sorted(held)[:limit]

    def clock_offsets(self, timeout: float) -> list[float]:  # noqa: ARG002 - looks have asked
        """See `ServiceStore.clock_offsets`: by each server's last answer."""
        return [monotonic() + ahead - time.time() for ahead in self._listing.ahead.values()]

    def votes(self) -> Mapping[str, str]:
        return self._rounds.servers.votes()

    def warnings_for_display(self) -> Sequence[str]:
        return (*self._rounds.servers.warnings(), *self._listing.warnings())

    def thin_locks(self) -> Mapping[str, int]:
        return self._listing.thin()

    # ------------------------------------------------------------ for people who look after it

    def examine(self) -> Iterator[Finding]:
        return diagnosis.examine(self._servers)

    def vouch(self) -> None:
        """Say that nobody holds a lock of this keyspace, so that all its servers vote at once.

        For a new one, and after all who held locks have ended. Else a server that is new to the
        keyspace, or was emptied, votes when `ValkeyLocation.longest` has passed.

        Raises:
            StoreUnavailable: a server can't be told.
        """
        self.background.run_shielded(partial(diagnosis.clear_quarantine, self._servers))

    def vouch_kept(self, *, kept: bool = True) -> None:
        """Say that all servers write everything down before they answer: a restart costs no wait.

        For servers with `appendonly yes`, `appendfsync always` and `no-appendfsync-on-rewrite no`.
        With `kept=False` the word is taken back, which a change of these asks for.

        Raises:
            StoreError: this user may read the configuration, and it is another one; none is told.
            StoreUnavailable: a server can't be told.
        """
        self.background.run_shielded(partial(diagnosis.note_kept, self._servers, kept=kept))

    def voters(self) -> Iterator[Voter]:
        return diagnosis.voters(self._servers)
