"""Holders, tickets and records for the contract suite, and requests to a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import uuid4

from lockclient.model.clocks import Runtime
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.outcomes import Outcome, Queued, ReadResult, Taken
from lockclient.stores.request_types import Read, Request, Take, TakeOrQueue

Ask = Callable[[Request], Outcome]
NAME = "the/lock"
NEVER: dict[str, Any] = {"auto_unlock_at": None, "auto_unlock_after": None}
_numbers = count(1)


def taker(name: str, runtime: Runtime, wall: float | None = None, **facts: Any) -> Holder:
    """Return what a client writes that takes this lock, now or at the wall-clock time `wall`."""
    wall = time.time() if wall is None else wall
    holder = Holder(
        *(name, str(uuid4()), "host", 7),
        locked_at=wall,
        expected_runtime=runtime.expected,
        auto_unlock_after=runtime.auto_unlock,
    )
    return replace(holder.stamped(runtime.stamps(wall)), **facts)


def holder(name: str = NAME, **facts: Any) -> Holder:
    """A holder that was never there before."""
    return taker(name, Runtime(100.0, 200.0), 100.0, uuid=f"uuid-{next(_numbers)}", **facts)


def taken(of: Holder, token: int, pushed_at: int | None = None) -> Holder:
    """A holder as it is read, which got its lock, and pushed its stamps, at these revisions."""
    at = token if pushed_at is None else pushed_at
    revisions = (at, 0 if of.auto_unlock_at is None else at)
    return replace(of, fencing_token=token, stamp_revisions=revisions)


def ticket(of: Holder) -> Ticket:
    """The ticket of a holder-to-be."""
    return Ticket(of.name, of.uuid or "", of.hostname, of.pid, since=90.0)


def removal(of: Holder) -> Removal:
    """The record of a holder's removal."""
    return Removal(of, 400.0, "unlocker-1", "auto-unlock", "No heartbeat.")


def take(ask: Ask, of: Holder) -> Taken:
    outcome = ask(Take(of))
    assert isinstance(outcome, Taken)
    return outcome


def queue(ask: Ask, of: Holder) -> Queued:
    queued = ask(TakeOrQueue(of, ticket(of)))
    assert isinstance(queued, Queued)
    return queued


def seen(ask: Ask, name: str = NAME, uuid: str | None = None) -> ReadResult:
    found = ask(Read(name, uuid, waiters=True))
    assert isinstance(found, ReadResult)
    return found
