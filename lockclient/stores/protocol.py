"""What a mutex needs of a store: a Protocol and its words. What services need: `services`.

A mutex asks by a request, a frozen dataclass, and gets an outcome, another one. Every request can
be sent twice: it compares the uuid, so the second answer tells what the first one did. Any store
that keeps the promises written at the requests can stand behind `ClusterMutex`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline, Stamps
from lockclient.model.holder import Holder, Ticket
from lockclient.model.removal import Removal

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
class GetPosition:
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
    """Push the stamps forward. Answer: `Done`, `Conflict` or `NotHolder`.

    It must change nothing if the stamps were written after `revision`, the one of the holder's own
    last confirmed write: then it comes late, after a push that was made after it and that the
    holder counts on, or somebody else has written them.
    """

    name: str
    uuid: str
    stamps: Stamps
    revision: int


@dataclass(frozen=True, slots=True)
class Unlock:
    """Delete the lock if it is still this holder's. Answer: `Done` or `NotHolder`."""

    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Leave neither lock nor ticket of this acquisition behind. Answer: `Done`, always.

    With `tombstone` a take of it may still be out there (see `RequestState`), and must do nothing
    when it arrives, however late that is.
    """

    name: str
    uuid: str
    tombstone: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """Read one lock, its line and, with `uuid`, that holder's removal. Answer: `Seen`.

    The removal has its backtrace, wherever it stands; that of a `NotHolder` has only a short one.
    """

    name: str
    uuid: str | None = None
    waiters: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a lock that is not one's own and leave a record. Answer: `Done` or `NotHolder`.

    Nothing that still arrives of that holder may take the lock again: its uuid is used up.

    `stamp_revisions` are those at which the stamps were last written as far as the remover saw
    (`Holder.stamp_revisions`), so that an `alive()` that got in first wins; None for a
    force-unlock, which goes by the uuid alone.

    Without `recorded` the record is left out, and what keeps late requests from taking the lock
    again, too: for a person who was told that the store has no space for them.
    """

    removal: Removal
    stamp_revisions: tuple[int, int] | None
    recorded: bool = True


Request = (
    Take | TakeOrQueue | GetPosition | Claim | Reclaim | Push | Unlock | Withdraw | Read | Remove
)

# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Taken:
    """The lock is had; `token` is the fencing token.

    `earlier` tells that an earlier sending of the request did it, with the stamps of that time.
    `disarmed` tells that no other sending can do harm, however late and whoever releases the lock:
    it says so itself, or will with the push that follows an `earlier` one.
    """

    token: int
    by_earlier_send: bool = False
    late_safe: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock was not had; `holder` has it (None: nobody yet, but somebody is in line).

    `ticket` tells a claimer whether its ticket still stands. `used_up` tells that this uuid had
    the lock and lost it, or was withdrawn: it gets nothing any more.
    """

    holder: str | None
    revision: int
    ticket: bool = False
    uuid_spent: bool = False


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
class Conflict:
    """Nothing was pushed: somebody else wrote the stamps, at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class NotHolder:
    """The lock is not that holder's any more: `holder` has it now, or None.

    `removal` is the record of the removal, where there is one. `resent` tells that an earlier
    sending of the request may itself have done it.
    """

    holder: str | None
    removal: Removal | None
    resent: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What stands in the store for one lock at `revision`; `warning`: see `ServiceStore`."""

    holder: Holder | None
    waiters: tuple[Ticket, ...]
    removal: Removal | None
    revision: int
    warning: str = ""


Outcome = Taken | Refused | Queued | Position | Done | Conflict | NotHolder | ReadResult

# ---------------------------------------------------------------- what is not known of a request


class RequestState:
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

    __slots__ = ("abandoned", "ambiguous", "in_flight", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.in_flight = False
        self.ambiguous = False
        self.abandoned = False

    def may_come_late(self) -> bool:
        """Tell whether a take or ticket of it may come to stand when nobody expects it any more.

        A late take would hold a lock that nobody knows of, a late ticket would block the line for
        as long as the process lives. All else is harmless late: it compares a uuid or a ticket
        that is gone by then.
        """
        takes = isinstance(self.request, Take | TakeOrQueue | Reclaim)
        return takes and (self.in_flight or self.ambiguous)


# ---------------------------------------------------------------- watching


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """What to watch: the holder of lock `name`, or with `ticket` that waiter's ticket."""

    name: str
    ticket: str | None = None
    """As the store names it: `Queued.predecessor`."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something happened to a target at `revision`; `uuid` is its new value, None: deleted.

    `missed` tells that events may have been lost (compaction, a lost lease): look for yourself.
    `started` is no event of the target: the watch has begun, and misses nothing after `revision`.
    """

    revision: int
    uuid: str | None = None
    gap: bool = False
    started: bool = False


TICKET_TTL_S = 10
"""Seconds after the last `keep_tickets` at which tickets go."""
TICKET_RENEWAL_S = TICKET_TTL_S / 4


@dataclass(frozen=True, slots=True)
class Guard:
    """ "This key has this value": a comparison for the user's own transactions on the store."""

    key: bytes
    value: bytes


class Subscription(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End it; no call-back comes after this returns, except one already on its way."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do. Who asks for what it can't is told so, before anything is taken.

    Attributes:
        store: the store's name in sentences.
        line: waiters stand in a line, which the lock goes along. Without one they look whether it
            is free, in no order; `TakeOrQueue` and `Claim` are not asked, and a `Look` tells the
            holder alone.
        watch: a change is told when it happens. Without that `watch` tells of it when the store
            looks the next time, and of two changes perhaps the last one alone.
        fencing: tokens of one name strictly increase. Without that they are names of acquisitions.
        guard: the user's own writes to the store can be bound to the lock.
        shared_clock: each answer tells the store's own time, which is one for all its clients.
        hints: without a line, `watch` from now on tells who waits of most releases: look then.
        pace: seconds that it wants between two writes of one lock: `alive()` leaves them, as far as
            the lock's own times allow it.
        expires: a lock whose holder is silent goes by itself soon after its time: no unlocker is
            needed, and where none runs nobody is alerted and no record tells of it.
    """

    display_name: str
    queue: bool = True
    watch: bool = True
    fencing: bool = True
    guard: bool = True
    shared_clock: bool = False
    hints: bool = False
    pace: float = 0.0
    expires: bool = False

    def require(self, ability: str, why: str) -> None:
        """Raise `StoreError` if the store lacks an ability; `why` says so behind its name."""
        if not getattr(self, ability):
            raise StoreError(f"{self.display_name} {why}")


class MutexStore(Protocol):
    """What `ClusterMutex` needs."""

    can: Capabilities
    """What can be asked of it."""
    background: Any
    """The `background.Background` of this store: its threads, and what they do."""

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        """Do one request, trying again and elsewhere until the deadline.

        Raises:
            StoreUnavailable: no answer by the deadline; the request may have happened.
            StoreError: the store refuses the request for a reason that trying again won't cure.
        """

    def send(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do what `ask` does, and note in the sending what is not known of it."""

    def watch(
        self, target: WatchTarget, revision: int, notify: Callable[[WatchEvent], None]
    ) -> Subscription:
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

        To be called every `TICKET_RENEWAL_S` seconds while there are tickets.
        """


class AsyncMutexStore(MutexStore, Protocol):
    """What `AsyncClusterMutex` needs besides."""

    async def send_async(self, sending: RequestState, deadline: Deadline) -> Outcome:
        """Do what `send` does without blocking the event loop; cancelling it may leave it done."""


STORE_TIMEOUT_S = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""


ONE_ANSWER_S = 3.0
"""Seconds that there are for an answer in any case, however short a timeout is."""


class Inbox(Protocol):
    """Where a waiter's events arrive, from any thread."""

    @property
    def waiters(self) -> Hashable:
        """Who can act only together with this waiter; see `MutexStore.has_ticket_lease`."""

    def put(self, event: WatchEvent) -> None:
        """Add an event."""

    def prove(self, tell: Callable[[], object]) -> None:
        """Call `tell` as soon as the waiter can act; raise RuntimeError if it never will."""
