"""Who waits for whom in a circle, so that nobody of them ever goes on.

A holder and a ticket each say by `actor` of which thread or task of which process they are. One
that holds x and waits for y, while another holds y and waits for x, is such a circle. It *may be* a
deadlock: a wait that has a limit ends by itself, and what one thread took may be let go by another.

An actor that waits for its own lock is no circle here. A thread of a pool takes a lock in one job
and waits for it in the next, while another thread releases it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket

MAX_TOLD = 5
"""Waits of a circle that are told: it has two, nearly always."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Waits that form a circle: each is for a lock whose holder is the actor of the next one."""

    waits: tuple[Ticket, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The locks, in the order of the waits."""
        return tuple(ticket.name for ticket in self.waits)

    def seen_from(self, name: str) -> tuple[str, ...]:
        """Return the locks in the order of the waits from that of this name on, five at most."""
        place = self.names.index(name)
        return (*self.names[place:], *self.names[:place])[:MAX_TOLD]

    @property
    def text(self) -> str:
        """Say in a sentence who has what and waits for what."""
        told = [
            f"{_process(wait)} has {has.name!r} and waits for {wait.name!r}"
            for has, wait in zip((self.waits[-1], *self.waits), self.waits, strict=False)
        ][:MAX_TOLD]
        more = len(self.waits) - len(told)
        rest = f"; and {more} more in this circle" if more else ""
        return f"This may be a deadlock: {'; '.join(told)}{rest}."


def _process(wait: Ticket) -> str:
    return f"{wait.hostname or 'an unknown host'}, pid {wait.pid or 'unknown'},"


def waits_of(tickets: Iterable[Ticket]) -> dict[str, Ticket]:
    """Return what each actor waits for: one lock at a time, so of several tickets the oldest."""
    waits: dict[str, Ticket] = {}
    for ticket in tickets:
        actor = ticket.actor
        if actor and (actor not in waits or ticket.revision < waits[actor].revision):
            waits[actor] = ticket
    return waits


def deadlocks(holders: Mapping[str, Holder], tickets: Iterable[Ticket]) -> list[Deadlock]:
    """Return all circles among these waits, each one once, by the names of their locks.

    Each actor has at most one way to go, so every circle is found by going: no other graph is
    needed. Who stands in line ahead adds nothing: it waits for the same holder.
    """
    waits = waits_of(tickets)
    found: list[Deadlock] = []
    walked: dict[str, int] = {}  # actor: the number of the walk that came by
    for number, start in enumerate(waits):
        way, actor = [], start
        while actor in waits and actor not in walked:
            walked[actor] = number
            way.append(actor)
            holder = holders.get(waits[actor].name)
            actor = (holder.actor if holder is not None else None) or ""
        if walked.get(actor) == number and actor in way:  # came back to itself, in this walk
            circle = [waits[waiter] for waiter in way[way.index(actor) :]]
            if len(circle) == 1:
                continue
            first = min(range(len(circle)), key=lambda place: circle[place].name)
            found.append(Deadlock((*circle[first:], *circle[:first])))
    return sorted(found, key=lambda deadlock: deadlock.names)


def by_lock(found: Iterable[Deadlock]) -> dict[str, Deadlock]:
    """Return the deadlock that each of these locks is in; it is in one."""
    return {name: deadlock for deadlock in found for name in deadlock.names}
