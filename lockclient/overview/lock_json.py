"""A lock and a removal as JSON: what the API and `--json` have of them, in lists and alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockclient.model.fields import COUNT, KNOWN, TEXT, Fact
from lockclient.model.holder import FACTS, STATES, Holder
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_view import undecided

_NOW: Final = (
    Fact("state", TEXT, KNOWN, "", f"One of {', '.join(STATES)}.", optional=False),
    Fact(
        *("undecided", TEXT, KNOWN, ""),
        "Why it is unknown when it may be removed, so that only people remove it; null: it "
        "is known.",
    ),
)

_WAITERS: Final = Fact(
    *("waiters", COUNT, KNOWN, ""),
    "How many wait for it; null: the store has no queue, so that nobody knows.",
)

_TOLD: Final = tuple(fact for fact in FACTS if fact.told)

_LISTED: Final = tuple(fact for fact in _TOLD if fact.listed)

LOCK_FACTS: Final = (*_LISTED[:2], *_NOW, *_LISTED[2:], _WAITERS)
"""What programs are told of a lock in a list: which one it is, how it is, all else."""

REMOVED_FACTS: Final = (*_LISTED, *REMOVAL_FACTS)
"""And of a removal in one."""

UNLISTED: Final = tuple(fact for fact in _TOLD if not fact.listed)
"""And of a lock or a removal that is asked for by itself, besides."""


def lock_facts(holder: Holder, state: str, waiters: int | None) -> dict[str, Any]:
    """Return a lock for JSON as a list has it; `waiters` None: nobody knows who waits."""
    now = {"state": state, "undecided": undecided(holder) or None, "waiters": waiters}
    return _selected(LOCK_FACTS, holder.facts() | now)


def whole_lock(holder: Holder, state: str, line: Sequence[Ticket] | None) -> dict[str, Any]:
    """Return a lock for JSON with all that is known of it, its line included, if it has one."""
    waiters = None if line is None else len(line)
    listed, rest = lock_facts(holder, state, waiters), _selected(UNLISTED, holder.facts())
    return listed | rest | {"queue": [ticket.facts() for ticket in line or ()]}


def removal_facts(removal: Removal) -> dict[str, Any]:
    """Return a removal for JSON as a list has it."""
    return _selected(REMOVED_FACTS, removal.facts())


def _selected(wanted: Sequence[Fact], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {fact.name: facts[fact.name] for fact in wanted}
