"""Events that instruments get, each a frozen dataclass; later releases may add more.

Each acquisition has one `Acquired` or `GaveUp`; after `Acquired` one `Released` or `Lost`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockclient.errors import LockLost


@dataclass(frozen=True)
class Event:
    """Something happened at Unix time `at`, to the acquisition `uuid` of the lock `lock`."""

    at: float
    lock: str
    uuid: str


@dataclass(frozen=True)
class Acquired(Event):
    """The lock is held, `waited_s` seconds after the call of `acquire`.

    `fencing_token` is 0 in a store that has none.
    """

    waited_s: float
    fencing_token: int


@dataclass(frozen=True)
class GaveUp(Event):
    """The lock was not acquired, `waited_s` seconds after the call of `acquire`.

    `error` is the store's, None for a timeout. `cancelled`: interrupted or cancelled.
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

    `answered` is False while the store has not confirmed it: the background repeats the release.
    """

    held_s: float
    answered: bool


@dataclass(frozen=True)
class Requested(Event):
    """A request to the store has ended, after `took_s` seconds, all tries together.

    `request` is its kind, like `take`, `push`, `unlock`; `outcome` the store's answer, like
    `taken`, `refused`, `done`, or `unreachable` for no answer, `error` for another exception.
    """

    request: str
    outcome: str
    took_s: float
    error: Exception | None
