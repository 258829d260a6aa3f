"""A lock and a removal as JSON: what the API and `--json` have of them, in lists and alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from lockclient.model.deadlocks import Deadlock
from lockclient.model.fields import COUNT, FLAG, KNOWN, NAMES, TEXT, Fact
from lockclient.model.holder import FACTS, STATES, Holder
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.listed_locks import Listed
from lockclient.overview.lock_status import LockStatus

_STATUS: Final = (
    Fact("state", TEXT, KNOWN, "", f"One of {', '.join(STATES)}.", optional=False),
    Fact(
        "undecided", TEXT, KNOWN, "",
        "Why it is unknown when it may be removed, so that only people remove it; null: it "
        "is known.",
    ),
    Fact(
        "waiters", COUNT, KNOWN, "",
        "How many wait for it; null: unknown, because the store has no queue.",
    ),
    Fact(
        "deadlock", NAMES, KNOWN, "",
        "The locks of a suspected deadlock that it is part of, itself first, five at most; "
        "empty: it is in none.", optional=False,
    ),
    Fact(
        "held_too_long", FLAG, KNOWN, "",
        "Whether it is held for longer than `max_hold`.", optional=False,
    ),
)  # fmt: skip

_PUBLIC: Final = tuple(fact for fact in FACTS if fact.in_json)
_LISTED: Final = tuple(fact for fact in _PUBLIC if fact.listed)
LOCK_FACTS: Final = (*_LISTED[:2], *_STATUS, *_LISTED[2:])
"""Of a lock in a list: name and uuid, status, the rest.

The status stands before the times, so that the values that most locks share compress well.
"""
REMOVED_FACTS: Final = (*_LISTED, *REMOVAL_FACTS)
"""Of a removal in a list."""
UNLISTED: Final = tuple(fact for fact in _PUBLIC if not fact.listed)
"""Besides, of one lock or removal that is asked for."""


def lock_facts(
    holder: Holder, status: LockStatus, waiters: int | None, deadlock: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a lock for JSON as a list has it; `deadlock` is `Deadlock.seen_from`."""
    now = {
        "state": status.state,
        "undecided": holder.undecided() or None,
        "waiters": waiters,
        "deadlock": [*deadlock],
        "held_too_long": status.held_too_long,
    }
    return _selected(LOCK_FACTS, holder.facts() | now)


def locks_document(
    locks: Iterable[Listed],
    *,
    total: int,
    revision: int,
    wall: float,
    unlockers: int,
    connected: bool,
    deadlocks: Iterable[Deadlock],
    remarks: Iterable[str],
) -> dict[str, Any]:
    """Return a list of locks for JSON; `total` is their number on all pages of it."""
    return {
        "locks": [
            lock_facts(lock.holder, lock.status, lock.waiters, lock.deadlock) for lock in locks
        ],
        "total": total,
        "revision": revision,
        "server_time": wall,
        "unlockers": unlockers,
        "connected": connected,
        "deadlocks": [deadlock.names for deadlock in deadlocks],
        "remarks": [*remarks],
    }


def whole_lock(
    holder: Holder,
    status: LockStatus,
    queue: Sequence[Ticket] | None,
    deadlock: Sequence[str] = (),
) -> dict[str, Any]:
    waiters = None if queue is None else len(queue)
    listed = lock_facts(holder, status, waiters, deadlock)
    rest = _selected(UNLISTED, holder.facts())
    return listed | rest | {"queue": [ticket.facts() for ticket in queue or ()]}


def removal_facts(removal: Removal) -> dict[str, Any]:
    return _selected(REMOVED_FACTS, removal.facts())


def _selected(wanted: Sequence[Fact], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {fact.name: facts[fact.name] for fact in wanted}
