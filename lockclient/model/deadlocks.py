"""Deadlocks: actors that hold locks and wait for each other's in a circle.

It *may be* one: a wait may have a limit, and another thread may release what one has taken. An
actor that waits for its own lock is no circle: a pool's thread may take a lock in one job and wait
in the next for another thread's release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket

MAX_SHOWN = 5
"""Waits of a circle that people see: it has two, nearly always."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Waits that form a circle: each is for a lock whose holder is the actor of the next one."""

    waits: tuple[Ticket, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(ticket.name for ticket in self.waits)

    def seen_from(self, name: str) -> tuple[str, ...]:
        """Return the locks in the order of the waits from that of this name on, five at most."""
        place = self.names.index(name)
        return (*self.names[place:], *self.names[:place])[:MAX_SHOWN]

    @property
    def text(self) -> str:
        shown = [
            f"{_process(wait)} has {has.name!r} and waits for {wait.name!r}"
            for has, wait in zip((self.waits[-1], *self.waits), self.waits, strict=False)
        ][:MAX_SHOWN]
        more = len(self.waits) - len(shown)
        rest = f"; and {more} more in this circle" if more else ""
        return f"This may be a deadlock: {'; '.join(shown)}{rest}."


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
    """Return each circle once. An actor waits for one lock, so following the waits finds all."""
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
    return {name: deadlock for deadlock in found for name in deadlock.names}
