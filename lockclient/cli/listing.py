"""`clustermutex ls`: all locks that are held."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from lockclient.cli.common import (
    Command,
    answering,
    counted,
    followed,
    json_option,
    locks_of,
    opened,
    picture_of,
    print_json,
    store_options,
)
from lockclient.cli.tables import Column, console_of, drawn, in_lines, on_terminal, print_table
from lockclient.record import STATES
from lockclient.settings import Settings
from lockclient.shown import (
    SORTS,
    Listed,
    compact,
    distance,
    has_words,
    in_order,
    lock_facts,
    searchable,
)
from lockclient.store import ServiceStore
from lockclient.table import Table

COLUMNS = (
    Column("STATE", short=False),
    Column("NAME", least=16),
    Column("HOLDER"),
    Column("REASON"),
    Column("HELD", short=False),
    Column("ALERT", short=False),
    Column("UNLOCK", short=False),
    Column("WAIT", number=True, short=False),
)
REDRAW = 1.0
"""Seconds after which a watched list is drawn again though nothing changed: times have."""
_MOST_OFTEN = 0.1

Choose = Callable[[list[Listed]], list[Listed]]


def _options(command: Command) -> Command:
    for option in (
        click.option(
            "--state", type=click.Choice(STATES), multiple=True, help="Only locks in this state."
        ),
        click.option(
            "--sort",
            type=click.Choice([*SORTS, *(f"-{key}" for key in SORTS)]),
            metavar="KEY",
            default="state",
            show_default="state, the most urgent first",
            help=f"Sort by one of {', '.join(SORTS)}; with - in front the other way round.",
        ),
        click.option("--watch", is_flag=True, help="Show it anew whenever it changes."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("text", nargs=-1)
@_options
@json_option
@store_options
def ls(
    settings: Settings,
    text: tuple[str, ...],
    state: tuple[str, ...],
    sort: str,
    watch: bool,
    as_json: bool,
) -> None:
    """List the locks that are held.

    TEXT is searched for in name, host and reason; of several, each must be found.

    On a terminal it is a table that fits it; otherwise lines with tabs between the columns, the
    titles first. With --watch a terminal shows the table until Ctrl-C, everything else gets it
    again after each change, with an empty line in front.

    \b
    With --json (and --watch: an object in one line after each change):
        locks        a list of locks: name, uuid, state (ok, alert, overdue or
                     broken), hostname, pid, thread, reason, identity, client,
                     locked_at, alive_at, alert_at, auto_unlock_at (Unix
                     seconds; null: unknown, of the last: never),
                     fencing_token, waiters (a number)
        total        how many they are
        revision     of etcd, at which this was read
        server_time  now, in Unix seconds
        unlockers    how many of them run
        connected    whether etcd could be reached just now
    """

    def choose(locks: list[Listed]) -> list[Listed]:
        found = [
            lock
            for lock in locks
            if (not state or lock.state in state) and has_words(text, searchable(lock.holder))
        ]
        return in_order(found, sort)

    with opened(settings) as store:
        if watch:
            _keep_listing(store, choose, as_json=as_json)
            return
        table = picture_of(store)
        now = time.time()
        locks = choose(locks_of(table, now))
        if as_json:
            print_json(_document(table, locks, now, connected=True))
        else:
            print_table(COLUMNS, cells(locks, now), summary(table, locks))


def cells(locks: list[Listed], wall: float) -> list[list[object]]:
    """Return the table's rows."""
    return [
        [
            lock.state,
            lock.holder.name,
            f"{lock.holder.hostname or '?'}:{lock.holder.pid or '?'}",
            lock.holder.reason or "",
            "" if lock.holder.locked_at is None else compact(wall - lock.holder.locked_at),
            "" if lock.holder.alert_at is None else distance(lock.holder.alert_at, wall, compact),
            _auto_unlock(lock, wall),
            lock.waiters,
        ]
        for lock in locks
    ]


def _auto_unlock(lock: Listed, wall: float) -> str:
    if lock.holder.auto_unlock_at is not None:
        return distance(lock.holder.auto_unlock_at, wall, compact)
    return "?" if "auto_unlock_at" in lock.holder.problems else "never"


def summary(table: Table, locks: list[Listed]) -> str:
    """Return the line below the table."""
    counts = Counter(lock.state for lock in locks)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    held = len(table.rows())
    what = counted(held, "lock")
    if len(locks) < held:
        what = f"{len(locks) or 'None'} of {what}"
    elif not held:
        what = "No lock is held"
    waiting = sum(table.waiters().values())
    unlockers = len(table.unlockers())
    watched = f"{counted(unlockers, 'unlocker')} running" if unlockers else "no unlocker is running"
    return f"{what}{': ' if states else ''}{states}; {waiting} waiting; {watched}."


def _document(table: Table, locks: list[Listed], wall: float, *, connected: bool) -> dict[str, Any]:
    return {
        "locks": [lock_facts(*lock) for lock in locks],
        "total": len(locks),
        "revision": table.revision,
        "server_time": wall,
        "unlockers": len(table.unlockers()),
        "connected": connected,
    }


# ---------------------------------------------------------------- --watch


def _keep_listing(store: ServiceStore, choose: Choose, *, as_json: bool) -> None:
    """Show the list until Ctrl-C."""
    answering(store)  # who can't ask etcd at the start is told so, and does not wait
    table = Table(store)
    try:
        with suppress(KeyboardInterrupt):
            followed(table)
            if on_terminal() and not as_json:
                _redraw(table, choose)
            else:
                _repeat(table, choose, as_json=as_json)
    finally:
        table.stop()


def _redraw(table: Table, choose: Choose) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    def picture() -> Group:
        now = time.time()
        locks = choose(locks_of(table, now))
        told = [Text(summary(table, locks) + " Ctrl-C ends this.", style="dim")]
        if not table.connected():
            told.append(Text(_away(table), style="red"))
        shown = locks[: max(1, console.height - len(told) - 3)]
        if len(shown) < len(locks):
            told.append(Text(f"The first {len(shown)} of them have room here:", style="dim"))
        return Group(*told, Text(), drawn(COLUMNS, cells(shown, now), console.width))

    console = console_of()
    signal.signal(signal.SIGTERM, _end)  # the terminal is to be as it was
    with Live(picture(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            _wait_for_change(table, _seen(table))
            live.update(picture(), refresh=True)


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _repeat(table: Table, choose: Choose, *, as_json: bool) -> None:
    before: Any = None
    while True:
        now, seen = time.time(), _seen(table)
        locks, connected = choose(locks_of(table, now)), table.connected()
        shown = locks, connected, len(table.unlockers())
        if shown != before:  # of what was asked for; other locks may have changed
            if as_json:
                print_json(_document(table, locks, now, connected=connected), line=True)
            else:
                if before is not None:
                    click.echo()
                click.echo(in_lines(COLUMNS, cells(locks, now)))
                if not connected:
                    click.echo(_away(table), err=True)
            before = shown
        _wait_for_change(table, seen)


def _seen(table: Table) -> object:
    return table.revision, table.connected()


def _wait_for_change(table: Table, before: object) -> None:
    """Wait until what is seen is not as before, but no longer than times on it stay right."""
    until = time.monotonic() + REDRAW
    while _seen(table) == before and time.monotonic() < until:
        time.sleep(_MOST_OFTEN)


def _away(table: Table) -> str:
    return table.trouble or "etcd does not answer: what is shown here grows old."
