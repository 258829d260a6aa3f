"""The requests of an acquisition to a store, and the state of one in delivery.

Every request can be sent twice: it compares the uuid, so the second answer tells what the first one
did.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Take:
    """Take the lock if it is free and nobody waits. Answer: `Taken` or `Refused`."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class TakeOrQueue:
    """Take the lock, or queue in the same step. Answer: `Taken` or `Queued`."""

    holder: Holder
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class GetPosition:
    """Look up the own ticket's place. Answer: `Position`.

    Its cost grows with the queue. With `predecessor` it asks more cheaply whether that ticket still
    exists. `predecessor_deleted_at` is the revision that deleted it: there it got the lock, which
    makes this waiter the head, or it withdrew.
    """

    name: str
    uuid: str
    ticket_revision: int
    predecessor: str | None = None
    predecessor_deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the lock as the head of the queue, for the ticket. Answer: `Taken` or `Refused`.

    It must fail unless the ticket is still the one of `ticket_revision`: a waiter whose lease ran
    out while it slept has lost its place (etcd-io/etcd #11456).
    """

    holder: Holder
    ticket_revision: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take the lock over from `previous`, the same identity's dead holder, if that has it still."""

    holder: Holder
    previous: Holder


@dataclass(frozen=True, slots=True)
class Push:
    """Push the stamps forward. Answer: `Done`, `Conflict` or `NotHolder`.

    It must change nothing if the stamps were written after `revision`, that of the holder's last
    confirmed write: then a later push of the holder's came first, or somebody else wrote them.
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

    With `tombstone` a take of it may arrive late (see `RequestState`), and must then do nothing.
    `unheard_take` is that take, if the store may have answered it and the caller did not wait.
    """

    name: str
    uuid: str
    tombstone: bool = False
    unheard_take: RequestState | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Read:
    """Read one lock, its queue and, with `uuid`, that holder's removal. Answer: `ReadResult`.

    The removal has its whole backtrace; that of a `NotHolder` has only a short one.
    """

    name: str
    uuid: str | None = None
    waiters: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete another holder's lock and leave a record. Answer: `Done` or `NotHolder`.

    No late request of that holder may take the lock again: its uuid is spent.

    `stamp_revisions` are the revisions of the stamps that the remover saw, so that an `alive()`
    that came first wins; None for a force-unlock, which goes by the uuid alone. Without `recorded`
    there is neither record nor tombstone: for a person who was told that the store has no space.
    """

    removal: Removal
    stamp_revisions: tuple[int, int] | None
    recorded: bool = True


Request = (
    Take | TakeOrQueue | GetPosition | Claim | Reclaim | Push | Unlock | Withdraw | Read | Remove
)


class RequestState:
    """A request from its first sending to its last: "may still be out there" is a fact about this.

    Whoever sends it notes here that a try begins, and what is not known of it afterwards; only who
    has heard the answer takes it off. So it does not matter at which moment, or by what, a caller
    stops waiting.

    Attributes:
        request: what is asked.
        in_flight: a try was begun, and whoever waits for it has not heard what came of it.
        ambiguous: a try was never answered: it may have happened, or may arrive ever so late.
        abandoned: nobody waits for the outcome any more, so that it need not be sent again.
        late: an earlier request of the same acquisition may still take the lock. A store that has
            disarmed it says False with the answer.
        answered: each of its tries was answered, though perhaps nobody has heard that. A store that
            does not know leaves it False.
    """

    __slots__ = ("abandoned", "ambiguous", "answered", "in_flight", "late", "request")

    def __init__(self, request: Request, *, late: bool = False) -> None:
        self.request = request
        self.late = late
        self.in_flight = False
        self.ambiguous = False
        self.abandoned = False
        self.answered = False

    def may_come_late(self) -> bool:
        """Tell whether a take or ticket of it may come to stand when nobody expects it any more.

        A late take would hold a lock that nobody knows of, a late ticket would block the line for
        as long as the process lives. All else is harmless late: it compares a uuid or a ticket
        that is gone by then.
        """
        takes = isinstance(self.request, Take | TakeOrQueue | Reclaim)
        return takes and (self.in_flight or self.ambiguous)
