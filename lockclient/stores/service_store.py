"""The protocol of a store for the table, the services and the command, beyond a mutex's.

A reader of changes needs to know neither whether the store has a watch or polls, nor whether it is
one cluster or several servers that vote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lockclient.model.clocks import Deadline
from lockclient.model.ticket import Ticket
from lockclient.stores.mutex_store import AsyncMutexStore, Subscription

if TYPE_CHECKING:
    from lockclient.stores.findings import Clock, Finding

Kind = Literal["locks", "queue", "removed", "unlockers", "withdrawn", "code"]
NAMES_TO_SORT = 1000
"""Names that `ServiceStore.names` sorts, in a store whose keys have another order."""


class Change(NamedTuple):  # a million of them are made when so many keys are read
    """One value that was written, or deleted (`value` None).

    `name` is that of the lock, the unlocker or the code; `part` is the subkey of a lock, or the
    uuid of a ticket, a removal or a tombstone (`withdrawn`), else empty. `created` is the revision
    of the key's creation. Requests compare `version`, or the revision if it is 0.
    """

    kind: Kind
    name: str
    part: str
    value: bytes | None
    revision: int
    created: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that belong together, complete up to `revision`.

    `gap`: load again; with `missed` changes are lost (compacted, or the store was restored), with
    `refused`, a reason, the store does not let this user follow. `started`: following begins, or
    continues after a break. `term`, if known, grows with each leader of the store. Everything
    written before the monotonic moment `known_at`, if known, is in this batch or in earlier ones.
    """

    changes: tuple[Change, ...]
    revision: int
    gap: bool = False
    refused: str = ""
    started: bool = False
    term: int = 0
    known_at: float = -inf
    missed: bool = False


@dataclass(frozen=True, slots=True)
class WaitQueue:
    """The number of a lock's waiters, and the `first` of them, in order.

    Without `ordered` there are too many to find the first: these are some, and pages say so.
    """

    waiting: int
    first: tuple[Ticket, ...] = ()
    ordered: bool = True


class Tickets(NamedTuple):
    """Tickets of any locks, and how many were read to find them."""

    found: Sequence[Ticket] = ()
    looked_at: int = 0


MAX_DOCUMENT_BYTES = 256 << 10
"""A longer document is not read. etcd takes 1.5 MiB at once."""
MAX_DOCUMENTS = 1000
"""Names that `document_names` returns at most: other clients may write any number."""


class Document(NamedTuple):
    """A value that unlockers share, in UTF-8, as it was read.

    An absent one, never written or deleted, is empty; `value` is None if it is longer than
    `MAX_DOCUMENT_BYTES`. `write_document` compares `version`, which is no revision.
    """

    value: bytes | None
    version: int


class ServiceStore(AsyncMutexStore, Protocol):
    """The store of the table, the services and the command."""

    # Not an attribute, which pyright lets no property be.
    @property
    def poll(self) -> float:
        """Seconds between two polls of `follow`; 0: changes come as they happen."""

    @poll.setter
    def poll(self, seconds: float) -> None: ...

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        """Read all of these kinds at one revision, in pages; each batch has that revision.

        The values of `queue`, `withdrawn` and `code` are left out (empty).
        """

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        """Call `notify` for each change from `revision` on, in order, missing none.

        It begins again each time that it breaks (`Batch.started`). While `notify` runs, the store
        neither calls it again nor stores further batches.
        """

    def connected(self) -> bool:
        """Return whether the store answers the running watch."""

    def watch_restarts(self) -> int:
        """Return how often the running watch broke; it continues where it stopped."""

    def clock_offsets(self, timeout: float) -> list[float]:
        """Return by how many seconds each member's clock is ahead of ours, of those that answer."""

    def reopen_watch(self) -> None:
        """Reopen the running watch's stream, on another member if there is one.

        For a stream that may have fallen silent; the watch misses no change.
        """

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        """Write an unlocker's announcement, which lasts `ttl` seconds.

        Return its revision, at which `follow` will notify of it; 0: a store that is out of space
        only extended the announcement before.
        """

    def newest_announcement(self, deadline: Deadline) -> int:
        """Return the revision of the newest announcement of all unlockers; 0: no announcement."""

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """Delete an unlocker's announcement, as it ends."""

    def read_document(self, name: str, deadline: Deadline) -> Document:
        """Return a document that unlockers share; `name` consists of `A-Za-z0-9._/-`."""

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        """Replace the document that was `seen`, or delete it (an empty value).

        Return the document with its new version. None: another one may be there, so read it
        again. After a lost answer this one may be there, too, or arrive later.
        """

    def document_names(self, deadline: Deadline) -> list[str]:
        """Return the names of all documents; a server of Valkey's may still have a deleted one.

        Delete that again: its deletion has not reached each server.
        """

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """Delete the record, tombstone or code that was read, unless it was written again since."""

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        """Return the backtrace that a `Removal.code` names; None if it does not exist."""

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        """Return the number of a lock's waiters, and the first of them."""

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        """Return `limit` tickets of any locks, with texts as short as in a table's rows.

        All tickets of these actors are among them, unless all tickets are too large to be read.
        """

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        """Return the first names, by the alphabet, of held locks that begin with `prefix`.

        A store whose keys have another order reads `NAMES_TO_SORT` names, or `limit` if that is
        more, and returns the first of these.
        """

    def votes(self) -> Mapping[str, str]:
        """Return by server why it has no vote now (empty: it has one), by the last poll.

        Of a store whose servers do not vote: an empty mapping, as from `thin_locks`.
        """

    def thin_locks(self) -> Mapping[str, int]:
        """Return the held locks that some of `votes` lack, and how many servers have each."""

    def warnings_for_display(self) -> Sequence[str]:
        """Return sentences by the last poll: servers without a vote, locks that too few have."""

    def examine(self) -> Iterator[Finding | Clock]:
        """Yield the findings of `doctor`, basic ones first, and servers' clocks; write nothing.

        Raises:
            StoreUnavailable, StoreError: the store does not answer, or refuses this user.
        """

    def endpoints(self) -> tuple[str, ...]:
        """Return the store's addresses, for messages."""

    def close(self) -> None:
        """End all watches, threads and connections, within a second; waiters get `StoreClosed`.

        Clean-ups get half of that second; a lock that was not withdrawn by then stays until its
        auto-unlock, and the log says so.
        """
