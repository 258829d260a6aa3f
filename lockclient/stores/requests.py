"""The requests of an acquisition to a store, and the delivery of its takes.

Every request can be sent twice: it compares the uuid, so the second answer tells what the first one
did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket


class Delivery:
    """The takes of one acquisition: whether one of them may still arrive in the store.

    The acquisition makes it, and each of its requests carries it. The store notes there that a try
    of a take begins, and what is unknown afterwards; only the caller that heard the answer clears
    `in_flight`. So it does not matter at which moment, or why, a caller stops waiting.

    Every other request is harmless late: it compares a uuid or a ticket that is gone by then.

    Attributes:
        in_flight: a try was begun, and its caller has not heard the outcome.
        ambiguous: a try was never answered: it may have happened, or may arrive at any time. A
            store that has disarmed it sets False.
        abandoned: no caller waits for the outcome any more: the store begins no further try.
        answered: each try of the last take was answered, though perhaps no caller has heard that. A
            store that does not know leaves it False.
        memory: what the store itself remembers of the acquisition.
    """

    # Without a constructor it costs no call of a Python function.
    in_flight = False
    ambiguous = False
    abandoned = False
    answered = False
    memory: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivered:
    """A request of an acquisition; one without `delivery` may be another process's."""

    delivery: Delivery | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Take(_Delivered):
    """Take the lock if it is free and nobody waits. Answer: `Taken` or `Refused`."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class TakeOrQueue(_Delivered):
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
class Reclaim(_Delivered):
    """Take the lock over from `previous`, the same identity's dead holder, if that has it still."""

    holder: Holder
    previous: Holder


@dataclass(frozen=True, slots=True)
class Push(_Delivered):
    """Push the stamps forward. Answer: `Done`, `Conflict` or `NotHolder`.

    It must change nothing if the stamps were written after `revision`, that of the holder's last
    confirmed write: then a later push of the holder's came first, or somebody else wrote them.
    """

    name: str
    uuid: str
    stamps: Stamps
    revision: int


@dataclass(frozen=True, slots=True)
class Unlock(_Delivered):
    """Delete the lock if it is still this holder's. Answer: `Done` or `NotHolder`."""

    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Withdraw(_Delivered):
    """Leave neither lock nor ticket of this acquisition behind. Answer: `Done`, always.

    With `tombstone` a take of it may arrive late (see `Delivery`), and must then do nothing.
    """

    name: str
    uuid: str
    tombstone: bool = False


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


KEEPING: Final = (Push, Unlock, Withdraw)
"""The kinds of requests that keep a lock or give it back: they never queue behind takes."""


def delivery_of(request: Request) -> Delivery:
    """Return where the store notes the tries of a request: a take's acquisition knows of them."""
    if isinstance(request, Take | TakeOrQueue | Reclaim) and request.delivery is not None:
        return request.delivery
    return Delivery()
