"""Outcomes: a store's answers to the requests of a mutex."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Taken:
    """The lock was taken; `token` is the fencing token.

    `by_earlier_send`: an earlier sending of the request took it, with that sending's stamps.
    """

    token: int
    by_earlier_send: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock was not taken; `holder` has it (None: it is free, but has waiters).

    `ticket`: a claimer's ticket still exists. `uuid_spent`: this uuid had the lock and lost it, or
    was withdrawn; it never gets the lock again.
    """

    holder: str | None
    revision: int
    ticket: bool = False
    uuid_spent: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """Queued at `ticket_revision`, behind the ticket `predecessor` (None: this is the head).

    The predecessor is the store's name of a ticket, which another client may have encoded in
    another form. `is_unsure`: a `GetPosition` is needed. `waiters` is the number of tickets in the
    queue, this one included; None: the store does not count them.
    """

    ticket_revision: int
    predecessor: str | None
    holder: str | None
    revision: int
    is_unsure: bool = False
    waiters: int | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """A waiter's place at `revision`; `ticket` False: it does not wait any more.

    `is_unsure`: the cheap request did not suffice, and a full one is needed.
    """

    ticket: bool
    predecessor: str | None
    holder: str | None
    revision: int
    is_unsure: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """It happened, at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The stamps were not pushed: another client wrote them, at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class NotHolder:
    """The lock is no longer that holder's: `holder` has it now (None: it is free).

    `removal` is the removal record, if there is one. `resent`: an earlier sending of the request
    may itself have done it.
    """

    holder: str | None
    removal: Removal | None
    resent: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One lock in the store at `revision`; `warning`: see `ServiceStore.warnings_for_display`."""

    holder: Holder | None
    waiters: tuple[Ticket, ...]
    removal: Removal | None
    revision: int
    warning: str = ""


Outcome = Taken | Refused | Queued | Position | Done | Conflict | NotHolder | ReadResult
