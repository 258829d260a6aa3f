"""Details of one lock: its holder with backtrace, its waiters, its last removal.

The table keeps no backtraces, so the store is asked; but not for a viewer who has seen the lock
as it is: `Detail.shown` comes from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.announcement import clock_troubles
from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.lock_presentation import removed_from
from lockclient.overview.table import Table
from lockclient.overview.verdict import standing
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.requests import Read
from lockclient.stores.service_protocol import ServiceStore, WaitQueue
from mutexdash.data.live import DatedSnapshot

MAX_WAITERS = 100
"""Waiters that are named, the first of the line; the others are counted."""
_MAX_OTHERS = 4
"""Other locks of a deadlock of which the code is shown: it is made of two, nearly always."""
_REQUEST_TIMEOUT_S = 2.0
"""Seconds for the store to answer: there are few threads, and viewers behind this one."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of the lock `name`.

    Attributes:
        holder: who has it, None if nobody; with its backtrace if `complete`.
        line: how many wait for it; if `complete` with the first of them.
        removal: the newest removal of a holder of it that is recorded.
        shown: all that the page shows of the lock, as far as the table knows.
        trouble: why the store could not be asked, a sentence; empty if it was.
        deadlock: the circle of waits that this lock is in, as it seems.
        clocks: why no unlocker can compare clocks, if the lock's alert needs that; else empty.
        removed_from: see `lock_presentation.removed_from`.
        others: if `complete`, the holders of the other locks in that, by their names.
    """

    name: str
    holder: Holder | None
    line: WaitQueue
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
    line = table.queue_length(name)
    snapshot = dated.snapshot
    removal = next((gone for gone in snapshot.removals if gone.holder.name == name), None)
    deadlock = snapshot.waits.by_lock.get(name)
    by_clock = holder is not None and not holder.broken() and holder.expected_runtime is None
    clocks = clock_troubles(snapshot.unlockers.values()) if by_clock else ""
    # And nothing of other locks: viewers of a quiet lock cost nothing on a busy cluster.
    stands = standing(holder, dated.judged_at, deadlock=deadlock is not None) if holder else None
    earliest = removed_from(holder, snapshot.unlockers.values()) if holder else None
    shown = holder, stands, line, removal, clocks, deadlock, earliest
    line_only = WaitQueue(line.waiting)
    return Detail(
        name,
        holder,
        line_only,
        removal,
        shown,
        deadlock=deadlock,
        clocks=clocks,
        removed_from=earliest,
    )


def complete(
    detail: Detail, dated: DatedSnapshot, store: ServiceStore, removed: str | None = None
) -> Detail:
    """Return the detail with backtraces and what is newest, as far as the store answers.

    Args:
        removed: the uuid of a holder that was removed just now, so that the table may not know it.
    """
    if dated.state == "away":  # asking would only keep a thread waiting
        return _without_store(
            detail, f"{store.can.display_name} is unreachable, so its backtrace can't be read now."
        )
    uuid = removed or (detail.removal.holder.uuid if detail.removal else None)
    patience = Deadline.after(_REQUEST_TIMEOUT_S)
    try:
        seen = store.ask(Read(detail.name, uuid), patience)
        line = store.wait_queue(detail.name, MAX_WAITERS, patience)
        others = dict(_others(detail, store, patience))
    except (StoreUnavailable, StoreError) as error:
        return _without_store(
            detail, f"{store.can.display_name} could not be asked for it: {error}"
        )
    assert isinstance(seen, ReadResult)
    removal = seen.removal or detail.removal
    return replace(detail, holder=seen.holder, line=line, removal=removal, others=others)


def _others(
    detail: Detail, store: ServiceStore, patience: Deadline
) -> Iterator[tuple[str, Holder]]:
    """Yield who holds the other locks of a deadlock, with their backtraces."""
    names = detail.deadlock.names if detail.deadlock else ()
    for name in [other for other in names if other != detail.name][:_MAX_OTHERS]:
        seen = store.ask(Read(name), patience)
        assert isinstance(seen, ReadResult)
        if seen.holder is not None:
            yield name, seen.holder


def _without_store(detail: Detail, trouble: str) -> Detail:
    return replace(detail, trouble=trouble)
