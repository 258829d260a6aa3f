"""The requests of an acquisition to a store, and the delivery of its takes.

Every request can be sent twice: the answer to the second attempt shows what the first one did, or
(`Withdraw`) a second execution changes nothing.
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

    Each request of the acquisition has the same `Delivery`. The store sets `in_flight` before each
    try of a take; only the caller that receives the answer clears it. So a caller may stop waiting
    at any moment. Any other request is harmless when it arrives late: it compares a uuid or ticket
    that does not exist any more.

    Attributes:
        in_flight: a try has begun, and its caller has not received the outcome.
        is_unknown: a try got no answer: it may have happened, or may arrive at any time. A store
            that has disarmed it sets False.
        is_given_up: no caller waits any more: the store begins no further try.
        answered: each try of the last take was answered, even if no caller has received the answer.
            A store that does not know leaves it False.
        memory: the store's own data about the acquisition.
    """

    # Without a constructor it costs no call of a Python function.
    in_flight = False
    is_unknown = False
    is_given_up = False
    answered = False
    memory: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivered:
    """A request of an acquisition, of another process if it has no `delivery`."""

    delivery: Delivery | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Take(_Delivered):
    """Take the lock if it is free and has no waiters. Answer: `Taken` or `Refused`."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class TakeOrQueue(_Delivered):
    """Take the lock, or queue in the same step. Answer: `Taken` or `Queued`."""

    holder: Holder
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class GetPosition:
    """Look up the own ticket's place. Answer: `Position`.

    Its cost grows with the queue. With `predecessor` it is cheap: does that ticket still exist?
    `predecessor_deleted_at` is the revision that deleted it: there the predecessor got the lock,
    which makes this waiter the head, or it withdrew.
    """

    name: str
    uuid: str
    ticket_revision: int
    predecessor: str | None = None
    predecessor_deleted_at: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Take the lock as the head of the queue, for the ticket. Answer: `Taken` or `Refused`.

    It must fail unless the ticket is still that of `ticket_revision`: a waiter whose lease expired
    while it slept has lost its place (etcd-io/etcd #11456).
    """

    holder: Holder
    ticket_revision: int


@dataclass(frozen=True, slots=True)
class Reclaim(_Delivered):
    """Take the lock from `previous`, a dead holder of the same identity, if it still has it."""

    holder: Holder
    previous: Holder


@dataclass(frozen=True, slots=True)
class Push(_Delivered):
    """Push the stamps forward. Answer: `Done`, `Conflict` or `NotHolder`.

    It must change nothing if the stamps were written after `revision`, that of the holder's last
    confirmed write: then a later push arrived first, or another client wrote them.
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
    """Delete the lock and the ticket of this acquisition. Answer: always `Done`.

    With `tombstone` a take of it may arrive late (see `Delivery`), and must do nothing. `record` is
    that of the lock that it may have; None: it has a ticket at most.
    """

    name: str
    uuid: str
    tombstone: bool = False
    record: Holder | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Read:
    """Read one lock, its queue and, with `uuid`, that holder's removal. Answer: `ReadResult`.

    The removal has its whole backtrace, that of a `NotHolder` a short one.
    """

    name: str
    uuid: str | None = None
    waiters: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete another holder's lock and write a removal record. Answer: `Done` or `NotHolder`.

    No late request of that holder may take the lock again: its uuid is spent.

    `stamp_revisions` are the revisions of the stamps that the remover read, so that a heartbeat
    that comes before the removal wins; None for a force-unlock, which compares the uuid alone.
    Without `recorded` it writes neither record nor tombstone: for a person, when the store has no
    space.
    """

    removal: Removal
    stamp_revisions: tuple[int, int] | None
    recorded: bool = True


Request = (
    Take | TakeOrQueue | GetPosition | Claim | Reclaim | Push | Unlock | Withdraw | Read | Remove
)


PRIORITY: Final = (Push, Unlock, Withdraw)
"""The requests that extend or end a lock: they never queue behind takes."""


def delivery_of(request: Request) -> Delivery:
    """Return the `Delivery` for a request: its acquisition's for a take, else a new one."""
    if isinstance(request, Take | TakeOrQueue | Reclaim) and request.delivery is not None:
        return request.delivery
    return Delivery()
