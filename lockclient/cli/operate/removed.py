"""`clustermutex removed`: the removed locks, with remover and reason."""

from __future__ import annotations

import time

import click

from lockclient.cli.operate.terminal_tables import Column, print_table
from lockclient.cli.options import json_option, store_options, with_facts
from lockclient.cli.output import counted, cut_middle, cut_process, on_terminal, print_json
from lockclient.cli.store_access import READ_ALL_TIMEOUT_S, check_reachable, opened_store
from lockclient.model.clocks import Deadline
from lockclient.model.removal import REMOVAL_FACTS, Removal
from lockclient.model.retention import RECORD_RETENTION
from lockclient.overview.contents import NewestRemovals
from lockclient.overview.lock_json import removal_facts
from lockclient.overview.search import Search
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.text.durations import roughly
from lockclient.text.escaping import shown_name
from lockclient.text.timestamps import utc

MAX_REMOVALS = 1_000_000
"""Removal records that are read; unlockers keep far fewer."""
COLUMNS = (
    Column("REMOVED", shrinkable=False),
    Column("NAME", min_width=16, cut=cut_middle, tells_apart=True, kept=True),
    Column("HOLDER", min_width=14, cut=cut_process),
    Column("HOW", shrinkable=False),
    Column("BY"),
    Column("WHY", kept=True),
)


@click.command()
@click.argument("text", nargs=-1)
@click.option(
    "-n",
    "--number",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How many at most, the newest first.",
)
@json_option
@store_options
@with_facts(removal_facts=REMOVAL_FACTS)
def removed(settings: Settings, text: tuple[str, ...], number: int, as_json: bool) -> None:
    """List what was auto-unlocked and force-unlocked in {record_retention}.

    TEXT is searched for in name, host, reason, and in who removed it, how and why; of several,
    each must be found.

    \b
    With --json:
        removed      a list, the newest first, see below
        total        how many were found, --number or not
        revision     of the store, at which this was read
        server_time  now, in Unix seconds

    \b
    A removal has what a lock of `ls` has, state, undecided and waiters aside, and
    {removal_facts}
    """
    with opened_store(settings) as store:
        # All of them: a search among the newest hundred would miss older ones.
        known, revision = read_removals(store)
    search = Search.of(text)
    found = [removal for removal in known if search.finds_removal(removal)]
    shown, now = found[:number], time.time()
    if as_json:
        facts = [removal_facts(removal) for removal in shown]
        about = {"total": len(found), "revision": revision, "server_time": now}
        print_json({"removed": facts, **about})
        return
    rows = [_cells(removal, now) for removal in shown]
    print_table(COLUMNS, rows, _summary(len(shown), len(found), len(known)))


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


def _cells(removal: Removal, wall: float) -> list[object]:
    holder, stamp = removal.holder, removal.removed_at
    when = "?"
    if stamp is not None:
        when = f"{roughly(wall - stamp)} ago" if on_terminal() else utc(stamp)
    process = f"{holder.hostname or '?'}:{holder.pid or '?'}"
    return [when, shown_name(holder.name), process, removal.how, removal.removed_by, removal.why]


def _summary(shown: int, found: int, known: int) -> str:
    what = counted(known, "removal")
    if shown < known:
        what = f"{shown or 'None'} of {what}"
    match = " match" if known and not found else ""
    more = f" {found - shown} older ones: --number." if shown < found else ""
    return f"{what} in the last {RECORD_RETENTION}{match}.{more}"
