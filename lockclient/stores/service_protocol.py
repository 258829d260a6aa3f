"""What the table, the services and the command need of a store beyond what a mutex asks.

Neutral terms: whether they come by a watch or by looks, from one cluster or from servers that vote,
who reads them knows no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, Protocol

from lockclient.model.clocks import Deadline
from lockclient.model.ticket import Ticket
from lockclient.stores.protocol import AsyncMutexStore, Subscription

Kind = Literal["locks", "queue", "removed", "unlockers", "withdrawn", "code"]


class Change(NamedTuple):  # a million of them are made when so many keys are read
    """One value that was written (or deleted: `value` None), in neutral terms.

    `name` is the lock's name, the unlocker's id, or what names the code; `part` is the subkey of a
    lock, or the uuid of a ticket, a removal or a mark (`withdrawn`), else empty. `created` is the
    revision at which the key came to be. `version` is what requests of the store compare, where
    that is not the revision.
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
    """Changes that belong together, complete up to `revision`; `gap` means: load again.

    `missed` tells with a gap that changes are lost: they were compacted, or the store was put back.
    `refused` is why the store does not let this user follow, if so: it is told as a gap, too.
    `started` tells that what is followed begins, or goes on after it broke. `term` is what grows
    with each leader of the store's, where it is known and up to date. `known_at` is the monotonic
    moment up to which all that was written is in it or in those before it, where that is known.
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
    """Who waits for one lock: how many, and the `first` of them, the next one first.

    Without `ordered` there are too many to find out who is: these are some of them.
    """

    waiting: int
    first: tuple[Ticket, ...] = ()
    ordered: bool = True


class Tickets(NamedTuple):
    """Tickets of any locks, and at how many it was looked to find them."""

    found: Sequence[Ticket] = ()
    looked_at: int = 0


MAX_NOTE_BYTES = 256 << 10
"""Bytes of the note that are read: a longer one counts as empty. etcd takes 1.5 MiB at once."""


class Note(NamedTuple):
    """What all unlockers agree on, one value, as it was read; empty: there is none.

    `version` is what `write_note` compares, and no revision.
    """

    value: bytes
    version: int


class ServiceStore(AsyncMutexStore, Protocol):
    """What the table, the services and the command need on top."""

    # Not an attribute, which pyright lets no property be.
    @property
    def poll(self) -> float:
        """Seconds from one look of `follow` to the next; 0: it is told as it happens."""

    @poll.setter
    def poll(self, seconds: float) -> None: ...

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        """Read all of these kinds at one revision, in pages; each batch carries that revision.

        The values of `queue`, `withdrawn` and `code` are left out (empty).
        """

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        """Call `notify` for all that changes from `revision` on, in order, missing nothing.

        Which begins anew each time that it breaks, and says so: `Batch.started`. While `notify`
        has not returned nothing more is told, and nothing more of it is kept here.
        """

    def connected(self) -> bool:
        """Tell whether the store is reachable, as far as the running watch knows."""

    def watch_restarts(self) -> int:
        """Return how often the running watch broke; it goes on where it stopped."""

    def clock_offsets(self, timeout: float) -> list[float]:
        """Ask each member for its wall clock: seconds that it is ahead of ours, where it told."""

    def renew_watch(self) -> None:
        """Open the stream of the running watch anew, on another member if there is one.

        For one that may have fallen silent. It goes on where it stopped, missing nothing.
        """

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        """Write or renew an unlocker's heartbeat, gone `ttl` seconds after the last.

        Return the revision at which it was written, which `follow` will tell; 0: it was only
        renewed, by a store that is out of space.
        """

    def newest_announcement(self, deadline: Deadline) -> int:
        """Return the revision of the newest heartbeat of all unlockers; 0: there is none."""

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """Delete an unlocker's heartbeat, as it ends."""

    def read_note(self, deadline: Deadline) -> Note:
        """Return the note of all unlockers: what whoever reads later may only add to."""

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        """Write the note in place of the one that was `seen`; False: another one may stand there.

        So it is after an answer that was lost, too: then this one may stand there, or come to.
        Who reads it again knows.
        """

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """Delete the record, mark or code that was read, unless it was written again since."""

    def backtrace(self, code: str, deadline: Deadline) -> bytes | None:
        """Return the backtrace that a `Removal.code` names; None if it is gone."""

    def wait_queue(self, name: str, limit: int, deadline: Deadline) -> WaitQueue:
        """Return how many wait for a lock, and the first of them."""

    def tickets(self, limit: int, deadline: Deadline, actors: Collection[str] = ()) -> Tickets:
        """Return who waits for any lock, their texts cut as in a table's rows.

        Any `limit` of them, and besides all those of these actors, as far as their size lets look.
        """

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        """Return the first names, by the alphabet, of held locks that begin with `prefix`."""

    def votes(self) -> Mapping[str, str]:
        """Return of each server that has a vote on each lock why it has none now; empty: it has.

        By what was last seen. Of a store that speaks with one voice there are none.
        """

    def thin_locks(self) -> Mapping[str, int]:
        """Return of each held lock that not all of `votes` have how many have it.

        By the last look. Of a store that speaks with one voice there are none.
        """

    def warnings_for_display(self) -> Sequence[str]:
        """Say in sentences what people should know besides all locks, by what was last seen.

        Of servers that vote on each lock: which has no vote now, and what too few say is held.
        """

    def endpoints(self) -> tuple[str, ...]:
        """Name the store's addresses, for messages."""

    def close(self) -> None:
        """End all watches, threads and connections, within a second; who waits gets `StoreClosed`.

        What is still to be cleaned up gets half of that second; a lock that could not be taken back
        stays until its auto-unlock, and the log says so.
        """
