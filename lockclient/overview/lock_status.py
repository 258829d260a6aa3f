"""The status of a lock: its state, and whether it is in a deadlock or held too long.

A lock in a deadlock, or held for longer than `max_hold`, may be pushed all the time: its state is
`ok`, although its waiters make no progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from lockclient.model.holder import OK, STATES, Holder

DEADLOCK: Final = "deadlock"
HELD_TOO_LONG: Final = "held-too-long"
VERDICTS: Final = (*STATES, DEADLOCK, HELD_TOO_LONG)
"""What people ask for by `state:` and `--state`; `state` in JSON is one of `STATES`."""


@dataclass(frozen=True, slots=True, eq=False)  # `status_of` returns one object for equal ones
class LockStatus:
    """The verdict on a lock at one time, and all `words` by which a search finds it."""

    state: str
    deadlock: bool = False
    held_too_long: bool = False
    verdict: str = field(init=False)
    words: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        late = HELD_TOO_LONG if self.held_too_long and self.state == OK else self.state
        more = ((DEADLOCK, self.deadlock), (HELD_TOO_LONG, self.held_too_long))
        object.__setattr__(self, "verdict", DEADLOCK if self.deadlock else late)
        object.__setattr__(self, "words", (self.state, *(word for word, so in more if so)))


_shared: Final = lru_cache(maxsize=64)(LockStatus)
"""Returns the one copy of a status: there are a few for tens of thousands of locks."""


def status_of(holder: Holder, wall: float, *, deadlock: bool = False) -> LockStatus:
    too_long_at = holder.too_long_at
    too_long = too_long_at is not None and wall > too_long_at
    return _shared(holder.state(wall), deadlock, too_long)
