"""The protocol of a store for the table, the services and the command, beyond a mutex's.

In neutral terms: a reader of changes knows no difference between a watch and polls, nor between one
cluster and several servers that vote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from lockclient.model.clocks import Deadline
from lockclient.model.ticket import Ticket
from lockclient.stores.protocol import AsyncMutexStore, Subscription

if TYPE_CHECKING:
    from lockclient.stores.diagnosis_protocol import Clock, Finding

Kind = Literal["locks", "queue", "removed", "unlockers", "withdrawn", "code"]
NAMES_TO_SORT = 1000
"""Names among which `ServiceStore.names` finds the first ones, where the keys' order is another."""


class Change(NamedTuple):  # a million of them are made when so many keys are read
    """One value that was written, or deleted (`value` None).

    `name` is that of the lock, the unlocker or the code; `part` is the subkey of a lock, or the
    uuid of a ticket, a removal or a tombstone (`withdrawn`), else empty. `created` is the revision
    of the key's creation. `version` is what the store's requests compare, if not the revision.
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

    `gap`: load again; with `missed` changes are lost (compacted, or the store was restored),
    `refused` is why the store does not let this user follow, if so. `started`: following begins, or
    goes on after it broke. `term` grows with each leader of the store, where it is known and up to
    date. Everything written before the monotonic moment `known_at` is in this batch or in earlier
    ones, where that is known.
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


MAX_NOTE_BYTES = 256 << 10
"""A longer note counts as empty. etcd takes 1.5 MiB at once."""


class Note(NamedTuple):
    """The one value on which all unlockers agree, as it was read; empty: there is none.

    `version` is what `write_note` compares; it is no revision.
    """

    value: bytes
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
        """Read all of these kinds at one revision, in pages; each batch carries that revision.

        The values of `queue`, `withdrawn` and `code` are left out (empty).
        """

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        """Call `notify` for each change from `revision` on, in order, missing none.

        It begins anew each time that it breaks, and says so: `Batch.started`. While `notify` runs,
        the store notifies of nothing more, and keeps nothing more of it.
        """

    def connected(self) -> bool:
        """Tell whether the store is reachable, as far as the running watch knows."""

    def watch_restarts(self) -> int:
        """Return how often the running watch broke; it goes on where it stopped."""

    def clock_offsets(self, timeout: float) -> list[float]:
        """Ask each member for its wall clock: seconds that it is ahead of ours, where it told."""

    def reopen_watch(self) -> None:
        """Open the running watch's stream anew, on another member if there is one.

        For a stream that may have fallen silent. It goes on where it stopped, missing nothing.
        """

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        """Write or renew an unlocker's announcement, which lasts `ttl` seconds.

        Return the revision at which it was written, which `follow` will tell; 0: it was only
        renewed, by a store that is out of space.
        """

    def newest_announcement(self, deadline: Deadline) -> int:
        """Return the revision of the newest announcement of all unlockers; 0: there is none."""

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """Delete an unlocker's announcement, as it ends."""

    def read_note(self, deadline: Deadline) -> Note:
        """Return the note of all unlockers; a later reader may only add to it."""

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        """Replace the note that was `seen`; False: another one may stand there, so read it again.

        After a lost answer this one may stand there, too, or come to.
        """

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """Delete the record, tombstone or code that was read, unless it was written again since."""

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        """Return the backtrace that a `Removal.code` names; None if it is gone."""

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        """Return the number of a lock's waiters, and the first of them."""

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        """Return `limit` tickets of any locks, their texts cut as in a table's rows.

        And all those of these actors, as far as their size lets them be read.
        """

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        """Return the first names, by the alphabet, of held locks that begin with `prefix`.

        A store that reads names in another order reads `NAMES_TO_SORT` of them, or `limit` if that
        is more, and returns the first of these.
        """

    def votes(self) -> Mapping[str, str]:
        """Return for each server with a vote on each lock why it has none now; empty: it has.

        By the last poll, as `thin_locks`. A store that speaks with one voice has none of either.
        """

    def thin_locks(self) -> Mapping[str, int]:
        """Return, for each held lock that not all of `votes` have, how many have it."""

    def warnings_for_display(self) -> Sequence[str]:
        """Return sentences for people about all locks, by the last poll.

        Of servers that vote: which has no vote now, and which locks too few have.
        """

    def examine(self) -> Iterator[Finding | Clock]:
        """Yield what `doctor` finds, the basic things first, and clocks of servers; write nothing.

        Raises:
            StoreUnavailable, StoreError: the store does not answer, or not to this user.
        """

    def endpoints(self) -> tuple[str, ...]:
        """Return the store's addresses, for messages."""

    def close(self) -> None:
        """End all watches, threads and connections, within a second; waiters get `StoreClosed`.

        Clean-ups get half of that second; a lock that was not withdrawn by then stays until its
        auto-unlock, and the log says so.
        """
