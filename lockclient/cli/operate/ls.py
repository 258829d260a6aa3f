"""`clustermutex ls`: all locks that are held."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple

import click

from lockclient.cli.exit_status import SIGNALLED
from lockclient.cli.operate.terminal_tables import (
    Column,
    print_table,
    rich_table,
    tab_separated,
    terminal_console,
)
from lockclient.cli.options import json_option, store_options, with_facts
from lockclient.cli.output import (
    counted,
    cut_middle,
    cut_process,
    on_terminal,
    print_error,
    print_json,
)
from lockclient.cli.store_access import (
    ANSWER_TIMEOUT_S,
    READ_ALL_TIMEOUT_S,
    check_reachable,
    opened_store,
)
from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock
from lockclient.overview import columns_and_order as columns
from lockclient.overview.columns_and_order import SORTS, first_of
from lockclient.overview.listed_locks import Listed, lister
from lockclient.overview.live_table import Table
from lockclient.overview.lock_json import LOCK_FACTS, locks_document
from lockclient.overview.lock_status import VERDICTS
from lockclient.overview.queue_reader import WaitQueues
from lockclient.overview.search import Search
from lockclient.service.service_flags import as_click_error
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.text.escaping import plain


def _cut_waiters(text: str, room: int) -> str:
    return text if len(text) <= room else text.partition(" ")[0]


_LAYOUTS: Final = {
    "state": Column("", shrinkable=False),
    "name": Column("", min_width=16, cut=cut_middle, tells_apart=True, kept=True),
    "process": Column("", min_width=17, cut=cut_process),
    "prose": Column(""),
    "age": Column("", shrinkable=False),
    "countdown": Column("", shrinkable=False),
    "deadline": Column("", shrinkable=False),
    "queue": Column("", number=True, min_width=4, cut=_cut_waiters, kept=True),
}
"""How each kind of cell (`columns.CellKind`) fits a terminal."""
COLUMNS: Final = tuple(
    replace(_LAYOUTS[column.kind.name], title=column.short, spare=column.spare)
    for column in columns.COLUMNS
)
WATCH_INTERVAL_S = 1.0
"""Seconds between two updates of a watched list."""
WAITERS_INTERVAL_S = 2.0
"""Seconds between two readings of the queues, if any has changed."""


class ListView(NamedTuple):
    """The locks that were asked for, deadlocks, and `ServiceStore.warnings_for_display`."""

    locks: list[Listed]
    deadlocks: Sequence[Deadlock]
    remarks: Sequence[str]

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield the notes below the table, each with its colour."""
        for deadlock in self.deadlocks:
            yield plain(deadlock.text), "red"
        for remark in self.remarks:
            yield plain(remark), "yellow"


View = Callable[[Table, WaitQueues, float], ListView]
"""Returns the view of a table at a wall-clock time."""


@click.command()
@click.argument("text", nargs=-1)
@click.option("--watch", is_flag=True, help="Show it again when it changes, at most once a second.")
@click.option(
    "--sort",
    type=click.Choice([*SORTS, *(f"-{key}" for key in SORTS)]),
    metavar="KEY",
    default="state",
    help=f"Sort by one of {', '.join(SORTS)}; with - in front the other way round. "
    "[default: state, the most urgent first]",
)
@click.option(
    "--state", type=click.Choice(VERDICTS), multiple=True, help="Only locks that are found so."
)
@json_option
@store_options
@with_facts(lock_facts=LOCK_FACTS)
def ls(
    settings: Settings,
    text: tuple[str, ...],
    state: tuple[str, ...],
    sort: str,
    watch: bool,
    as_json: bool,
) -> None:
    """List the locks that are held.

    TEXT is searched for in name, host, reason, owner and labels, and may be a pid or a uuid's
    beginning; of several, each must be found. host:TEXT, lock:TEXT, reason:TEXT, owner:TEXT,
    label:NAME=TEXT and state:STATE look at one thing only, and (after --) a - in front finds what
    is not so.

    On a terminal it is a table that fits it; else lines with tabs between the columns, the
    titles first. With --watch a terminal shows the table until Ctrl-C, everything else gets it
    again after a change, at most once a second, with an empty line in front.

    What can't be seen of a text is written as an escape, like \\u200b; a name that is not ASCII
    has its escaped form after it. JSON has texts as they are.

    \b
    With --json (and --watch: an object in one line after each change):
        locks        a list of locks, see below
        total        how many they are
        revision     of the store, at which this was read
        server_time  now, in Unix seconds
        unlockers    how many of them run
        connected    whether the store could be reached just now
        deadlocks    lists of names of locks whose holders wait for each other, as it seems
        remarks      sentences on a store of several servers: which has no vote,
                     and what too few of them say is held

    
    A lock has (null: unknown or none):
    {lock_facts}
    """
    search = Search.of(text)
    with as_click_error(click.UsageError):
        search.check()

    def choose(lock: Listed) -> bool:
        found_by = lock.status.words
        chosen = not state or not set(state).isdisjoint(found_by)
        return chosen and search.holds(lock.holder, lock.text, found_by)

    def view(table: Table, queues: WaitQueues, wall: float) -> ListView:
        deadlocks = queues.deadlocks()
        listed = map(lister(table, wall, queues.heads, deadlocks), table.rows().values())
        locks = [lock for lock in listed if choose(lock)]
        found = first_of(locks, sort, len(locks))
        return ListView(found, deadlocks, store.warnings_for_display())

    with opened_store(settings) as store:
        check_reachable(store)
        (_watch_list if watch else _print_list)(store, view, as_json=as_json)


def _print_list(store: ServiceStore, view: View, *, as_json: bool) -> None:
    table = Table(store)
    table.read(Deadline.after(READ_ALL_TIMEOUT_S))
    queues = WaitQueues(table, store)
    queues.poll(ANSWER_TIMEOUT_S)
    now = time.time()
    seen = view(table, queues, now)
    if as_json:
        print_json(_document(table, seen, now, connected=True))
        return
    print_table(COLUMNS, cells(seen.locks, now), summary(table, seen.locks))
    for text, colour in seen.notes():
        print_error(text, fg=colour)


def cells(locks: list[Listed], wall: float) -> list[list[object]]:
    """Return the table's rows."""
    return [
        [column.kind.text(column.value(lock), lock, wall) for column in columns.COLUMNS]
        for lock in locks
    ]


def summary(table: Table, locks: list[Listed]) -> str:
    """Return the line below the table."""
    counts = Counter(lock.status.verdict for lock in locks)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    held = len(table.rows())
    what = counted(held, "lock")
    if len(locks) < held:
        what = f"{len(locks)} of {what}" if locks else f"None of {what} match"
    elif not held:
        what = "No lock is held"
    waiting = sum(table.waiters().values())
    unlockers = len(table.unlockers())
    watched = f"{counted(unlockers, 'unlocker')} running" if unlockers else "no unlocker is running"
    # In a store without queues, waiters are unknown.
    waiters = f" {waiting} waiting;" if table.can.queue else ""
    return f"{what}{': ' if verdicts else ''}{verdicts};{waiters} {watched}."


def _document(table: Table, seen: ListView, wall: float, *, connected: bool) -> dict[str, Any]:
    return locks_document(
        seen.locks,
        total=len(seen.locks),
        revision=table.revision,
        wall=wall,
        unlockers=len(table.unlockers()),
        connected=connected,
        deadlocks=seen.deadlocks,
        remarks=seen.remarks,
    )


# ---------------------------------------------------------------- --watch


def _watch_list(store: ServiceStore, view: View, *, as_json: bool) -> None:
    """Show the list until Ctrl-C."""
    with suppress(KeyboardInterrupt), _followed_table(store) as table:
        queues, read_at = WaitQueues(table, store), -inf

        def view_at(wall: float) -> ListView:
            nonlocal read_at
            if time.monotonic() > read_at + WAITERS_INTERVAL_S:
                with suppress(StoreUnavailable, StoreError):  # shows the last reading
                    queues.poll(ANSWER_TIMEOUT_S)
                read_at = time.monotonic()
            return view(table, queues, wall)

        if on_terminal() and not as_json:
            _redraw(table, view_at)
        else:
            _print_changes(table, view_at, as_json=as_json)


@contextmanager
def _followed_table(store: ServiceStore) -> Iterator[Table]:
    """Yield the table of all locks, read and followed.

    A watch takes a moment to begin: until then the table says that the store is unreachable.
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


def _redraw(table: Table, view_at: Callable[[float], ListView]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def draw() -> Group:
        now = time.time()
        seen = view_at(now)
        locks = seen.locks
        notes = [Text(summary(table, locks) + " Ctrl-C ends this.", style="dim")]
        notes += [Text(text, style=colour) for text, colour in seen.notes()]
        if not table.connected():
            notes.append(Text(_unreachable(table), style="red"))
        first = locks[: max(1, console.height - len(notes) - 3)]
        if len(first) < len(locks):
            notes.append(Text(f"The first {len(first)} of them have room here:", style="dim"))
        return Group(*notes, Text(), rich_table(COLUMNS, cells(first, now), console.width))

    console = terminal_console()
    # Restores the terminal.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))
    with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_INTERVAL_S)
            live.update(draw(), refresh=True)


def _print_changes(table: Table, view_at: Callable[[float], ListView], *, as_json: bool) -> None:
    before: Any = None
    while True:
        now = time.time()
        seen, connected = view_at(now), table.connected()
        shown = seen, connected, len(table.unlockers())
        if shown != before:  # of what was asked for; other locks may have changed
            if as_json:
                print_json(_document(table, seen, now, connected=connected), line=True)
            else:
                if before is not None:
                    click.echo()
                click.echo(tab_separated(COLUMNS, cells(seen.locks, now)))
                for text, _ in seen.notes():
                    click.echo(text, err=True)
                if not connected:
                    click.echo(_unreachable(table), err=True)
            before = shown
        time.sleep(WATCH_INTERVAL_S)


def _unreachable(table: Table) -> str:
    return (
        plain(table.trouble)
        or f"{table.can.display_name} does not answer: what is shown here grows old."
    )
