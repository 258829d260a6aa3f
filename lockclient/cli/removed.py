"""`clustermutex removed`: which locks were taken from their holders, by whom and why."""

from __future__ import annotations

import time

import click

from lockclient.cli.common import (
    counted,
    json_option,
    opened,
    picture_of,
    print_json,
    store_options,
)
from lockclient.cli.tables import Column, on_terminal, print_table
from lockclient.settings import Settings
from lockclient.shown import compact, has_words, removal_facts, searchable_removal, utc

COLUMNS = (
    Column("REMOVED", short=False),
    Column("NAME", least=16),
    Column("HOLDER"),
    Column("HOW", short=False),
    Column("BY"),
    Column("WHY"),
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
def removed(settings: Settings, text: tuple[str, ...], number: int, as_json: bool) -> None:
    """List what was auto-unlocked and force-unlocked in seven days.

    TEXT is searched for in name, host, reason, and in who removed it, how and why; of several,
    each must be found.

    \b
    With --json:
        removed      a list, the newest first: what a lock of `ls` has, `state`
                     and `waiters` aside, and removed_at (Unix seconds),
                     removed_by, how (auto-unlock or force-unlock), why
        total        how many were found, --number or not
        revision     of etcd, at which this was read
        server_time  now, in Unix seconds
    """
    with opened(settings) as store:
        # All of them: a search among the newest hundred only would hide what is asked for.
        table = picture_of(store, removals=1_000_000)
    found = [each for each in table.removals() if has_words(text, searchable_removal(each))]
    shown, now = found[:number], time.time()
    if as_json:
        print_json(
            {
                "removed": [removal_facts(each) for each in shown],
                "total": len(found),
                "revision": table.revision,
                "server_time": now,
            }
        )
        return

    def when(stamp: float | None) -> str:
        if stamp is None:
            return "?"
        return f"{compact(now - stamp)} ago" if on_terminal() else utc(stamp)

    rows = [
        [
            when(each.removed_at),
            each.holder.name,
            f"{each.holder.hostname or '?'}:{each.holder.pid or '?'}",
            each.how,
            each.removed_by,
            each.why,
        ]
        for each in shown
    ]
    more = f" {len(found) - len(shown)} older ones: --number." if len(found) > len(shown) else ""
    print_table(COLUMNS, rows, f"{counted(len(shown), 'removal')} in the last seven days.{more}")
