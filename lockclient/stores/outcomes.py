"""What a store answers to a request of a mutex."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Taken:
    """The lock is had; `token` is the fencing token.

    `by_earlier_send` tells that an earlier sending of the request did it, with its stamps.
    """

    token: int
    by_earlier_send: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The lock was not had; `holder` has it (None: nobody yet, but somebody is in line).

    `ticket` tells a claimer whether its ticket still stands. `uuid_spent` tells that this uuid had
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
    otherwise than we would. With `ambiguous` it could not be told and must be looked up. `waiters`
    is the number of tickets in the queue, this one included; None: the store does not count them.
    """

    ticket_revision: int
    predecessor: str | None
    holder: str | None
    revision: int
    ambiguous: bool = False
    waiters: int | None = None


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
