"""The store as commands use it: opened, asked whether it answers, read into a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from lockclient.default_store import open_store
from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock, by_lock
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.columns import Listed
from lockclient.overview.contents import NewestRemovals
from lockclient.overview.table import Table
from lockclient.overview.verdict import standing
from lockclient.settings import Settings
from lockclient.stores.service_protocol import ServiceStore

ANSWER_TIMEOUT_S = 5.0
"""For the store to answer what a person waits for."""
READ_ALL_TIMEOUT_S = 60.0
"""For reading everything: a million keys take their time."""
MAX_REMOVALS = 1_000_000
"""Removal records that are read; unlockers keep far fewer."""
MAX_NAMES = 200
"""How many names a shell is given; who has more types on."""
_MAX_SUGGESTIONS = 3


@contextmanager
def opened_store(settings: Settings) -> Iterator[ServiceStore]:
    """Open a store, and close it in the end."""
    store = open_store(settings)
    try:
        yield store
    finally:
        store.close()


def check_reachable(store: ServiceStore) -> None:
    """See quickly whether the store answers this user, before much is asked of it.

    Raises:
        StoreUnavailable, StoreError: it does not.
    """
    store.names("", 1, Deadline.after(ANSWER_TIMEOUT_S))


def suggestion_for(store: ServiceStore, name: str) -> str:
    """Say which locks that are held have a name like this one; empty if there is none.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    deadline = Deadline.after(ANSWER_TIMEOUT_S)
    found = store.names(name, _MAX_SUGGESTIONS, deadline)
    if not found:
        found = get_close_matches(name, store.names("", MAX_NAMES, deadline), _MAX_SUGGESTIONS)
    meant = " or ".join(map(repr, found))
    return f" Did you mean {meant}?" if meant else ""


def read_table(store: ServiceStore) -> Table:
    """Return the table of all locks, read once.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    check_reachable(store)
    table = Table(store)
    table.read(Deadline.after(READ_ALL_TIMEOUT_S))
    return table


def read_removals(store: ServiceStore) -> tuple[list[Removal], int]:
    """Return all removal records, the newest first, and the revision that they were read at.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    check_reachable(store)
    records, revision = NewestRemovals(MAX_REMOVALS, by_time=not store.can.watch), 0
    for batch in store.load(("removed",), Deadline.after(READ_ALL_TIMEOUT_S)):
        revision = batch.revision
        for change in batch.changes:
            if change.kind == "removed" and change.value is not None:
                records.add(change)
    return [removal for _, removal in reversed(records.oldest_first())], revision


@contextmanager
def followed_table(store: ServiceStore) -> Iterator[Table]:
    """Yield the table of all locks, read and followed.

    A watch takes a moment to begin: until then nobody should be told that etcd is unreachable.
    """
    table = Table(store)
    try:
        table.start()
        table.wait_ready()
        deadline = Deadline.after(ANSWER_TIMEOUT_S)
        while not table.connected() and not deadline.expired():
            time.sleep(0.01)
        yield table
    finally:
        table.stop()


def listed_locks(
    table: Table,
    wall: float,
    heads: Mapping[str, Ticket] | None = None,
    deadlocks: Iterable[Deadlock] = (),
) -> list[Listed]:
    """Return the locks of a table as listed at a wall-clock time; the rest is of `WaitQueues`."""
    waiters = table.waiters()
    nobody = 0 if table.can.queue else None
    firsts, circles = heads or {}, by_lock(deadlocks)
    listed = []
    for name, row in table.rows().items():
        circle = circles[name].seen_from(name) if name in circles else ()
        stands = standing(row.holder, wall, deadlock=bool(circle))
        lock = Listed(row.holder, stands, waiters.get(name, nobody), firsts.get(name), circle)
        listed.append(lock)
    return listed
