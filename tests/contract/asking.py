"""Holders, tickets and records for the contract, and asking a store for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from lockclient.record import Holder, Removal, Ticket
from lockclient.store import Outcome, Queued, Read, Request, Seen, Take, Taken, TakeOrQueue
from lockclient.timing import Stamps

Ask = Callable[[Request], Outcome]
NAME = "the/lock"
_numbers = count(1)


def holder(name: str = NAME, **facts: object) -> Holder:
    """A holder that was never there before."""
    fresh = Holder(name, f"uuid-{next(_numbers)}", hostname="host", pid=7, locked_at=100.0)
    return replace(fresh.stamped(Stamps(100.0, 200.0, 300.0)), **facts)  # type: ignore[arg-type]


def ticket(of: Holder) -> Ticket:
    """The ticket of a holder-to-be."""
    return Ticket(of.name, of.uuid or "", of.hostname, of.pid, since=90.0)


def removal(of: Holder) -> Removal:
    """The record of a holder's removal."""
    return Removal(of, 400.0, "unlocker-1", "auto-unlock", "No sign of life.")


def take(ask: Ask, of: Holder) -> Taken:
    taken = ask(Take(of))
    assert isinstance(taken, Taken)
    return taken


def queue(ask: Ask, of: Holder) -> Queued:
    queued = ask(TakeOrQueue(of, ticket(of)))
    assert isinstance(queued, Queued)
    return queued


def seen(ask: Ask, name: str = NAME, uuid: str | None = None) -> Seen:
    found = ask(Read(name, uuid, waiters=True))
    assert isinstance(found, Seen)
    return found
