"""Events that instruments get, each a frozen dataclass; later releases may add more."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.errors import LockLost


@dataclass(frozen=True)
class Event:
    """Something happened to one acquisition, which is known by its `uuid`.

    Each acquisition has one `Acquired` or `GaveUp`; after `Acquired` one `Released` or `Lost`.

    Attributes:
        at: Unix seconds.
        lock: the lock's name.
    """

    at: float
    lock: str
    uuid: str


@dataclass(frozen=True)
class Acquired(Event):
    """The lock is held.

    Attributes:
        waited_s: seconds since `acquire` was called.
        fencing_token: 0 in a store that has none.
    """

    waited_s: float
    fencing_token: int


@dataclass(frozen=True)
class GaveUp(Event):
    """The lock was not acquired.

    Attributes:
        waited_s: seconds since `acquire` was called.
        error: what the store said; None: the time was up, or it was interrupted or cancelled.
        cancelled: whether it was interrupted or cancelled.
    """

    waited_s: float
    error: Exception | None
    cancelled: bool


@dataclass(frozen=True)
class Lost(Event):
    """The lock was removed from its holder, or its time ran out, after `held_s` seconds."""

    held_s: float
    error: LockLost


@dataclass(frozen=True)
class Released(Event):
    """The lock was released, after `held_s` seconds.

    `answered` is False where the store has not answered, so that it is released in the background.
    """

    held_s: float
    answered: bool


@dataclass(frozen=True)
class Requested(Event):
    """A request to the store has ended, after `took_s` seconds, all tries together.

    Attributes:
        request: its kind, like `take`, `push`, `unlock`.
        outcome: the store's answer, like `taken`, `refused`, `done`; `unreachable` for no answer,
            `error` for another exception.
        error: that exception.
    """

    request: str
    outcome: str
    took_s: float
    error: Exception | None
