"""What a mutex needs of a store, and what the services need: two Protocols and their words.

A mutex asks by a request, a frozen dataclass, and gets an outcome, another one. Every request can
be sent twice: it compares the uuid, so the second answer tells what the first one did. Any store
that keeps the promises written at the requests can stand behind `ClusterMutex`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from lockclient.record import Holder, Removal, Ticket
from lockclient.timing import Deadline, Stamps

# ---------------------------------------------------------------- requests of one acquisition


@dataclass(frozen=True, slots=True)
class Take:
    """Take the lock if nobody holds it and nobody is in line. Answer: `Taken` or `Refused`."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class TakeOrQueue:
    """Take the lock, or get in line in the same step. Answer: `Taken` or `Queued`."""

    holder: Holder
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Look:
    """See where the own ticket stands. Answer: `Position`.

    A full look costs as much as the line is long. `predecessor` asks more cheaply, whether that
    ticket still stands; with `left_at` it went at that revision, so either it got the lock there,
    which makes this waiter the head, or it gave up.
    """

    name: str
    uuid: str
    ticket_revision: int
    predecessor: str | None = None
    left_at: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the lock as the head of the line, giving up the ticket. Answer: `Taken` or `Refused`.

    It must fail when the ticket is not the one of `ticket_revision` any more: a waiter whose lease
    ran out while it slept has lost its place (etcd-io/etcd #11456).
    """

    holder: Holder
    ticket_revision: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take the lock over from `previous`, the same identity's dead holder, if it still has it."""

    holder: Holder
    previous: Holder


@dataclass(frozen=True, slots=True)
class Push:
    """Push the stamps forward. Answer: `Done` or `Gone`.

    `newest` promises that no earlier push of this holder had a later `alive_at`. If there is a
    later one in the store, this push comes late, after one that was made after it, and must change
    nothing: the holder counts on the later one.
    """

    name: str
    uuid: str
    stamps: Stamps
    newest: bool = False


@dataclass(frozen=True, slots=True)
class Unlock:
    """Delete the lock if it is still this holder's. Answer: `Done` or `Gone`."""

    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Leave neither lock nor ticket of this acquisition behind. Answer: `Done`, always.

    With `mark` a take of it may still be out there (see `Sending`), and must do nothing when it
    arrives, however late that is.
    """

    name: str
    uuid: str
    mark: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Read one lock, its line and, with `uuid`, that holder's removal. Answer: `Seen`."""

    name: str
    uuid: str | None = None
    waiters: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a lock that is not one's own and leave a record. Answer: `Done` or `Gone`.

    Nothing that still arrives of that holder may take the lock again: its uuid is used up.

    `stamp_revision` is the revision at which `auto_unlock_at` was last written as far as the
    remover saw, so that an `alive()` that got in first wins; None for a force-unlock, which goes
    by the uuid alone.
    """

    removal: Removal
    stamp_revision: int | None


Request = Take | TakeOrQueue | Look | Claim | Reclaim | Push | Unlock | Withdraw | Read | Remove

# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Taken:
    """The lock is had; `token` is the fencing token.

    `earlier` tells that an earlier sending of the request did it, with the stamps of that time.
    """

    token: int
    earlier: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock was not had; `holder` has it (None: nobody yet, but somebody is in line).

    `ticket` tells a claimer whether its ticket still stands. `used_up` tells that this uuid had
    the lock and lost it, or was withdrawn: it gets nothing any more.
    """

    holder: str | None
    revision: int
    ticket: bool = False
    used_up: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """In line: `ticket_revision` is the place, `predecessor` the ticket ahead (None: the head).

    The predecessor is named as the store names its ticket, which another client may have written
    otherwise than we would. With `ambiguous` it could not be told and must be looked up.
    """

    ticket_revision: int
    predecessor: str | None
    holder: str | None
    revision: int
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Position:
    """Where a waiter stands at `revision`: `ticket` False means that it is not in line any more.

    With `ambiguous` the cheap look could not tell, and a full one is needed.
    """

    ticket: bool
    predecessor: str | None
    holder: str | None
    revision: int
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """It happened, at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The lock is not that holder's any more: `holder` has it now, or None.

    `removal` is the record of the removal, where there is one. `resent` tells that an earlier
    sending of the request may itself have done it.
    """

    holder: str | None
    removal: Removal | None
    resent: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What stands in the store for one lock at `revision`.

    `stamp_revision` is the revision at which `auto_unlock_at` was last written (0: absent).
    """

    holder: Holder | None
    stamp_revision: int
    waiters: tuple[Ticket, ...]
    removal: Removal | None
    revision: int


Outcome = Taken | Refused | Queued | Position | Done | Gone | Seen

# ---------------------------------------------------------------- what is not known of a request


class Sending:
    """A request from its first sending to its last: "may still be out there" is a fact about this.

    Whoever sends it notes here that a try begins, and what is not known of it afterwards; only who
    has heard the answer takes it off. So it does not matter at which moment, or by what, a caller
    stops waiting.

    Attributes:
        request: what is asked.
        under_way: a try was begun, and whoever waits for it has not heard what came of it.
        unknown: a try was never answered: it may have happened, or may arrive ever so late.
        given_up: nobody waits for the outcome any more, so that it need not be sent again.
    """

    __slots__ = ("given_up", "request", "under_way", "unknown")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.under_way = False
        self.unknown = False
        self.given_up = False

    def may_come_late(self) -> bool:
        """Tell whether a take or ticket of it may come to stand when nobody expects it any more.

        A late take would hold a lock that nobody knows of, a late ticket would block the line for
        as long as the process lives. All else is harmless late: it compares a uuid or a ticket
        that is gone by then.
        """
        takes = isinstance(self.request, Take | TakeOrQueue | Reclaim)
        return takes and (self.under_way or self.unknown)


# ---------------------------------------------------------------- watching


@dataclass(frozen=True, slots=True)
class Target:
    """What to watch: the holder of lock `name`, or with `ticket` that waiter's ticket."""

    name: str
    ticket: str | None = None
    """As the store names it: `Queued.predecessor`."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a target at `revision`; `uuid` is its new value, None: deleted.

    `missed` tells that events may have been lost (compaction, a lost lease): look for yourself.
    `started` is no event of the target: the watch has begun, and misses nothing after `revision`.
    """

    revision: int
    uuid: str | None = None
    missed: bool = False
    started: bool = False


TICKET_TTL = 10
"""Seconds after the last `keep_tickets` at which tickets go."""
TICKET_RENEWAL = TICKET_TTL / 4


@dataclass(frozen=True, slots=True)
class Guard:
    """ "This key has this value": a comparison for the user's own transactions on the store."""

    key: bytes
    value: bytes


class Subscription(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it; no call-back comes after this returns, except one already on its way."""


class MutexStore(Protocol):
    """What `ClusterMutex` needs."""

    background: Any
    """The `background.Background` of this store: its threads, and what they do."""

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """Do one request, trying again and elsewhere until the deadline.

        Raises:
            StoreUnavailable: no answer by the deadline; the request may have happened.
            StoreError: the store refuses the request for a reason that trying again won't cure.
        """

    def send(self, sending: Sending, deadline: Deadline) -> Outcome:
        """Do what `ask` does, and note in the sending what is not known of it."""

    def watch(self, target: Target, revision: int, notify: Callable[[Event], None]) -> Subscription:
        """Call `notify` for each change of the target from `revision` on, missing none.

        With `revision` 0 it begins now, and says by a first event (`started`) since when that is;
        older events may come, too, or instead.

        The calls come from a thread of the store and must return quickly.
        """

    def guard(self, name: str, uuid: str) -> Guard:
        """Return what holds in the store exactly as long as this holder has the lock."""

    def has_ticket_lease(self, waiters: Hashable = None) -> bool:
        """Tell whether a `TakeOrQueue` costs one request: what tickets need is there already.

        Args:
            waiters: whose tickets: an event loop's, or None for those of all threads. Each loop
                has a lease of its own, because its tasks can act only while it runs.
        """

    def keep_tickets(self, waiters: Hashable, deadline: Deadline) -> bool:
        """Keep these waiters' tickets alive; False: they are gone, queue again.

        To be called every `TICKET_RENEWAL` seconds while there are tickets.
        """


class AsyncMutexStore(MutexStore, Protocol):
    """What `AsyncClusterMutex` needs besides."""

    async def send_async(self, sending: Sending, deadline: Deadline) -> Outcome:
        """Do what `send` does without blocking the event loop; cancelling it may leave it done."""


# ---------------------------------------------------------------- what the services need

Kind = Literal["locks", "queue", "removed", "unlockers"]


class Change(NamedTuple):  # a million of them are made when so many keys are read
    """One value that was written (or deleted: `value` None), in neutral terms.

    `name` is the lock's name, or the unlocker's id; `part` is the subkey of a lock, or the uuid of
    a ticket or removal, else empty. `created` is the revision at which the key came to be.
    """

    kind: Kind
    name: str
    part: str
    value: bytes | None
    revision: int
    created: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that belong together, complete up to `revision`; `missed` means: load again.

    `refused` is why the store does not let this user follow, if so: it is told as missed, too.
    """

    changes: tuple[Change, ...]
    revision: int
    missed: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """What one member of the store's cluster says of itself; what it does not say is empty.

    Without an answer there is only `trouble`. `ahead` is how many seconds its wall clock is ahead
    of ours, give or take half a second; `size` the bytes of its data; `cluster` all members that it
    knows, as `name (URLs)`; `auth` whether it asks its clients for a user.
    """

    endpoint: str
    version: str = ""
    trouble: str = ""
    ahead: float | None = None
    leader: bool = False
    size: int = 0
    alarms: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    auth: bool | None = None


class ServiceStore(AsyncMutexStore, Protocol):
    """What the table, the services and the command need on top."""

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        """Read all of these kinds at one revision, in pages; each batch carries that revision."""

    def follow(self, revision: int, notify: Callable[[Batch], None]) -> Subscription:
        """Call `notify` for all that changes from `revision` on, in order, missing nothing."""

    def connected(self) -> bool:
        """Tell whether the store is reachable, as far as the running watch knows."""

    def watch_restarts(self) -> int:
        """Return how often the running watch broke; it goes on where it stopped."""

    def clock_offsets(self, timeout: float) -> list[float]:
        """Ask each member for its wall clock: seconds that it is ahead of ours, where it told."""

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> None:
        """Write or renew an unlocker's sign of life, gone `ttl` seconds after the last."""

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        """Delete an unlocker's sign of life, as it ends."""

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        """Return the first names, by the alphabet, of held locks that begin with `prefix`."""

    def members(self, timeout: float) -> list[Member]:
        """Ask each address for what it says of itself, for `timeout` seconds a question."""

    def rights(self, deadline: Deadline) -> Mapping[str, bool]:
        """Return which folders of the store this user may write to; empty: it can't be told."""

    def endpoints(self) -> tuple[str, ...]:
        """Name the store's addresses, for messages."""

    def close(self) -> None:
        """End all watches, threads and connections, within a second; who waits gets `StoreClosed`.

        What is still to be cleaned up gets half of that second.
        """
