"""Details of one lock: its holder with backtrace, its waiters, its last removal.

The table keeps no backtraces, so the store is asked, but not for a viewer whose ETag is current:
`Detail.shown` comes from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.announcement import clock_troubles
from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.live_table import Table
from lockclient.overview.lock_presentation import removed_from
from lockclient.overview.lock_status import status_of
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read
from lockclient.stores.service_store import ServiceStore, WaitQueue
from mutexdash.data.snapshot import DatedSnapshot

MAX_WAITERS = 100
"""Waiters that are named, the first of the queue; the others are counted."""
_MAX_OTHERS = 4
"""Other locks of a deadlock whose code is shown: nearly every deadlock has two locks."""
_REQUEST_TIMEOUT_S = 2.0
"""Seconds for the store to answer: each request keeps one of few threads."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of the lock `name`.

    Attributes:
        holder: None: it is free; with its backtrace if `complete`.
        queue: the number of waiters; if `complete` with the first of them.
        removal: the newest recorded removal of one of its holders.
        shown: all that the page shows of the lock, from the table.
        trouble: a sentence on why the store could not be asked; empty if it was.
        deadlock: the suspected deadlock that the lock is in.
        clocks: why no unlocker can compare clocks, if the lock's alert needs that; else empty.
        removed_from: see `lock_presentation.removed_from`.
        others: if `complete`, the holders of the deadlock's other locks, by lock.
    """

    name: str
    holder: Holder | None
    queue: WaitQueue
    removal: Removal | None
    shown: object
    trouble: str = ""
    deadlock: Deadlock | None = None
    others: Mapping[str, Holder] = field(default_factory=dict)
    clocks: str = ""
    removed_from: float | None = None

    @property
    def complete(self) -> bool:
        """True if the store was read, so that a missing backtrace does not exist."""
        return not self.trouble


def known(name: str, dated: DatedSnapshot, table: Table) -> Detail:
    """Return what the table knows, without asking the store."""
    row = table.row(name)
    holder = row.holder if row else None
    queue = table.queue_length(name)
    snapshot = dated.snapshot
    removal = next((gone for gone in snapshot.removals if gone.holder.name == name), None)
    deadlock = snapshot.waits.by_lock.get(name)
    by_clock = holder is not None and not holder.broken() and holder.expected_runtime is None
    clocks = clock_troubles(snapshot.unlockers.values()) if by_clock else ""
    # Nothing of other locks is in `shown`: on a busy cluster, viewers of a quiet lock get 304.
    status = status_of(holder, dated.judged_at, deadlock=deadlock is not None) if holder else None
    earliest = removed_from(holder, snapshot.unlockers.values()) if holder else None
    shown = holder, status, queue, removal, clocks, deadlock, earliest
    facts: dict[str, Any] = {"deadlock": deadlock, "clocks": clocks, "removed_from": earliest}
    return Detail(name, holder, WaitQueue(queue.waiting), removal, shown, **facts)


def complete(
    detail: Detail, dated: DatedSnapshot, store: ServiceStore, removed: str | None = None
) -> Detail:
    """Return the detail with backtraces and waiters, read from the store if it answers.

    Args:
        removed: the uuid of a holder that was just removed, which the table may not know yet.
    """
    where = store.can.display_name
    if dated.state == "unreachable":  # a request would only keep a thread waiting
        return replace(
            detail, trouble=f"{where} is unreachable, so its backtrace can't be read now."
        )
    uuid = removed or (detail.removal.holder.uuid if detail.removal else None)
    patience = Deadline.after(_REQUEST_TIMEOUT_S)
    try:
        seen = store.ask(Read(detail.name, uuid), patience)
        queue = store.wait_queue(detail.name, MAX_WAITERS, patience)
        others = dict(_others(detail, store, patience))
    except (StoreUnavailable, StoreError) as error:
        return replace(detail, trouble=f"{where} could not be asked for it: {error}")
    assert isinstance(seen, ReadResult)
    removal = seen.removal or detail.removal
    return replace(detail, holder=seen.holder, queue=queue, removal=removal, others=others)


def _others(
    detail: Detail, store: ServiceStore, patience: Deadline
) -> Iterator[tuple[str, Holder]]:
    """Yield the holders of the deadlock's other locks, with their backtraces."""
    names = detail.deadlock.names if detail.deadlock else ()
    for name in [other for other in names if other != detail.name][:_MAX_OTHERS]:
        seen = store.ask(Read(name), patience)
        assert isinstance(seen, ReadResult)
        if seen.holder is not None:
            yield name, seen.holder
