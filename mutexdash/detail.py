"""One lock, in all that is known about it: its holder with backtrace, its line, its last removal.

The table keeps no backtraces, so the store is asked; but not for a viewer who has seen the lock
as it is: `Detail.etag` comes from the table alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.record import Holder, Removal, Ticket
from lockclient.store import Read, Seen, ServiceStore
from lockclient.table import Table
from lockclient.timing import Deadline
from mutexdash.snapshot import Moment

_PATIENCE = 2.0
"""Seconds for the store to answer: there are few threads, and viewers behind this one."""


@dataclass(frozen=True, slots=True)
class Detail:
    """What is known of the lock `name`.

    Attributes:
        holder: who has it, None if nobody; with its backtrace if `complete`.
        line: who waits for it, the next one first.
        removal: the newest removal of a holder of it that is recorded.
        etag: names what is shown; None if it was not `complete`, so that it is asked for again.
        trouble: why the store could not be asked, a sentence; empty if it was.
    """

    name: str
    holder: Holder | None
    line: Sequence[Ticket]
    removal: Removal | None
    etag: str | None
    trouble: str = ""

    @property
    def complete(self) -> bool:
        """Whether the store was asked, so that a backtrace that is not here does not exist."""
        return not self.trouble


def known(name: str, moment: Moment, table: Table) -> Detail:
    """Return what the table knows, without asking the store."""
    row = table.row(name)
    holder = row.holder if row else None
    line = table.line(name)
    removals = moment.picture.snapshot.removals
    removal = next((each for each in removals if each.holder.name == name), None)
    # All that a page of one lock shows, the rest of the world's locks aside: viewers of a quiet
    # lock cost nothing on a busy cluster.
    shown = (
        row and (holder, row.holder.state(moment.wall)),
        line,
        removal,
        len(moment.picture.snapshot.unlockers),
        moment.away_since is not None,
    )
    etag = blake2b(repr(shown).encode(errors="replace"), digest_size=12).hexdigest()
    return Detail(name, holder, line, removal, etag)


def complete(
    detail: Detail, moment: Moment, store: ServiceStore, removed: str | None = None
) -> Detail:
    """Return the detail with backtraces and what is newest, as far as the store answers.

    Args:
        removed: the uuid of a holder that was removed just now, so that the table may not know it.
    """
    if moment.away_since is not None:  # asking would only keep a thread waiting
        return _without_store(detail, "etcd is away, so its backtrace can't be read now.")
    uuid = removed or (detail.removal.holder.uuid if detail.removal else None)
    try:
        seen = store.ask(Read(detail.name, uuid, waiters=True), Deadline.after(_PATIENCE))
    except (StoreUnavailable, StoreError) as error:
        return _without_store(detail, f"etcd could not be asked for it: {error}")
    assert isinstance(seen, Seen)
    return replace(
        detail, holder=seen.holder, line=seen.waiters, removal=seen.removal or detail.removal
    )


def _without_store(detail: Detail, trouble: str) -> Detail:
    return replace(detail, etag=None, trouble=trouble)
