"""A follower of a store, and the changes that it was notified of."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar, get_args

from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition
from lockclient.stores.outcomes import Done, Outcome, ReadResult, Taken
from lockclient.stores.request_types import Read, Remove, Take, Unlock
from lockclient.stores.service_store import Batch, Change, Kind, ServiceStore
from tests.contract.asking import holder

KINDS: tuple[Kind, ...] = get_args(Kind)
T = TypeVar("T")
KEYS_ONLY = ("queue", "withdrawn", "code")


def soon() -> Deadline:
    """A deadline that is enough for a slow machine."""
    return Deadline.after(30)


def take(store: ServiceStore, name: str, **facts: Any) -> Holder:
    mine = holder(name, **facts)
    return replace(mine, fencing_token=told(Taken, store.ask(Take(mine), soon())).token)


def unlock(store: ServiceStore, mine: Holder) -> None:
    assert isinstance(store.ask(Unlock(mine.name, mine.uuid or ""), soon()), Done)


def remove(store: ServiceStore, mine: Holder, why: str = "silent", at: float = 0.0) -> Removal:
    removal = Removal(mine, at or time.time(), "unlocker-1", AUTO_UNLOCK, why)
    assert isinstance(store.ask(Remove(removal, None), soon()), Done)
    return removal


def loaded(store: ServiceStore, *kinds: Kind) -> list[Change]:
    """Return all that stands there of these kinds, or of all."""
    batches = store.load(kinds or KINDS, soon())
    return [change for batch in batches for change in batch.changes]


def standing(changes: list[Change]) -> dict[tuple[Kind, str, str], bytes | None]:
    """Return what stands in a store after these changes."""
    there: dict[tuple[Kind, str, str], bytes | None] = {}
    for change in changes:
        there[change[:3]] = b"" if change.kind in KEYS_ONLY else change.value
        if change.value is None:
            del there[change[:3]]
    return there


def told(kind: type[T], outcome: Outcome) -> T:
    """Return an outcome, having seen that it is of this kind."""
    assert isinstance(outcome, kind)
    return outcome


def read(store: ServiceStore, name: str, uuid: str | None = None) -> ReadResult:
    return told(ReadResult, store.ask(Read(name, uuid), soon()))


class Follower:
    """The content of a store when this began, and each batch since."""

    def __init__(self, store: ServiceStore) -> None:
        loading = list(store.load(KINDS, soon()))
        self.revision = loading[-1].revision
        self.found = [change for batch in loading for change in batch.changes]
        self.batches: list[Batch] = []
        self.subscription = store.follow(self.revision + 1, self.batches.append)

    def news(self) -> list[Change]:
        """All changes so far, in order."""
        return [change for batch in list(self.batches) for change in batch.changes]

    def standing(self) -> dict[tuple[Kind, str, str], bytes | None]:
        """The content of the store by all batches."""
        return standing([*self.found, *self.news()])

    def holds(self, name: str) -> bool:
        """Tell whether this lock is there."""
        return ("locks", name, "uuid") in self.standing()


class Watcher:
    """A running table, and all that it has told."""

    def __init__(self, store: ServiceStore, removals: int = 100) -> None:
        self.changes: list[Transition] = []
        self.removals: list[tuple[Removal, bool]] = []
        self.removals_before: dict[str | None, int] = {}
        """By the uuid of a holder that is gone: how many removals were told before it went."""
        self.table = Table(
            store, removals=removals, on_change=self._changed, on_removal=self._removed
        )
        assert not self.table.ready()
        self.table.start()
        assert self.table.wait_ready(60)

    def _changed(self, transitions: list[Transition]) -> None:
        self.changes += transitions
        for transition in transitions:
            if transition.after is None and transition.before is not None:
                self.removals_before[transition.before.holder.uuid] = len(self.removals)

    def _removed(self, removals: list[Removal], found: bool) -> None:
        self.removals += [(removal, found) for removal in removals]

    def uuid(self, name: str) -> str | None:
        row = self.table.row(name)
        return row.holder.uuid if row is not None and row.held else None
