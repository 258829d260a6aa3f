"""Events: what instruments are told, each a frozen dataclass; later releases may add more."""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.errors import ClusterMutexError, LockLost
from lockclient.model.holder import Holder


@dataclass(frozen=True)
class Event:
    """Something happened at `at`, in Unix seconds."""

    at: float


@dataclass(frozen=True)
class LockEvent(Event):
    """Something happened to one acquisition of a lock, which is known by its `uuid`.

    Each acquisition has one `Asked`, perhaps one `Waiting`, then `Acquired` or `GaveUp`; after
    `Acquired`, as soon as it is over, one `Released` or `Lost`.
    """

    lock: str
    uuid: str


@dataclass(frozen=True)
class Asked(LockEvent):
    """It was asked for the lock; `blocking` tells whether to wait for it."""

    blocking: bool


@dataclass(frozen=True)
class Waiting(LockEvent):
    """The lock was not free, so that it is waited for.

    Attributes:
        holder: who has it, as of at most ten seconds ago; None: nobody at that moment, or the store
            did not say.
        place: the waiter's place in the queue, 1 is next; None: the store keeps no queue, or did
            not say.
        waiting: how many wait, in a store with a queue.
    """

    holder: Holder | None
    place: int | None
    waiting: int


@dataclass(frozen=True)
class Acquired(LockEvent):
    """The lock is held.

    Attributes:
        waited_s: seconds since it was asked for.
        fencing_token: 0 in a store that has none.
    """

    waited_s: float
    fencing_token: int


@dataclass(frozen=True)
class GaveUp(LockEvent):
    """The lock was not had.

    Attributes:
        waited_s: seconds since it was asked for.
        error: what the store said; None: the time was up, or it was interrupted or cancelled.
        cancelled: whether it was interrupted or cancelled.
    """

    waited_s: float
    error: Exception | None
    cancelled: bool


@dataclass(frozen=True)
class Pushed(LockEvent):
    """The stamps were pushed, by `alive()` or `keepalive`."""


@dataclass(frozen=True)
class PushFailed(LockEvent):
    """The stamps could not be pushed; the lock stays held for `left_s` seconds more."""

    error: ClusterMutexError
    left_s: float


@dataclass(frozen=True)
class Lost(LockEvent):
    """The lock was removed from its holder, or its time ran out, after `held_s` seconds."""

    held_s: float
    error: LockLost


@dataclass(frozen=True)
class Released(LockEvent):
    """The lock was released, after `held_s` seconds.

    `answered` is False where the store has not answered, so that it is released in the background.
    """

    held_s: float
    answered: bool


@dataclass(frozen=True)
class Requested(Event):
    """The store was asked for a lock.

    Attributes:
        lock: its name.
        request: what was asked, like `take`, `push`, `unlock`.
        outcome: what it answered, like `taken`, `refused`, `done`; `unreachable` for no answer,
            `error` for another exception.
        took_s: seconds, all tries together.
    """

    lock: str
    request: str
    outcome: str
    took_s: float


@dataclass(frozen=True)
class StoreSlow(Requested):
    """The store took longer than a second to answer. (Comes beside `Requested`.)"""


@dataclass(frozen=True)
class StoreUnreachable(Requested):
    """The store did not answer, and `error` says what is known of it. (Beside `Requested`.)"""

    error: Exception


@dataclass(frozen=True)
class EventsDropped(Event):
    """So many events were dropped, because an instrument was too slow for them."""

    count: int
