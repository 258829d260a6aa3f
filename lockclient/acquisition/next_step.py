"""What an acquisition is to do next, as its state machine says it to who drives it."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.stores.protocol import WatchTarget
from lockclient.stores.requests import Request


@dataclass(frozen=True, slots=True)
class Wait:
    """Watch `target` for what happens from `revision` on; look after `LOOK_INTERVAL` in any case.

    The watch may begin later, if it says since when it listens: then the store is asked again.
    """

    target: WatchTarget
    revision: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Look again in so many seconds, or at a hint: there is no line that would wake who waits."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock is had."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The lock was not had: `holder` (a uuid) has it, or None if only a line stands before it."""

    holder: str | None


@dataclass(frozen=True, slots=True)
class UsedUp:
    """This uuid had the lock and lost it before that was known here: go on with a new one.

    A uuid is used for one acquisition, ever: else the record of its removal would tell of two.
    """


Step = Request | Wait | Pause | Acquired | Busy | UsedUp
