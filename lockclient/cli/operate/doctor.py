"""`clustermutex doctor`: checks everything that locks need, and advises."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import click

from lockclient.cli.operate import doctor_checks
from lockclient.cli.options import Duration, json_option, store_options
from lockclient.cli.output import print_json, wrapped
from lockclient.cli.store_access import (
    ANSWER_TIMEOUT_S,
    READ_ALL_TIMEOUT_S,
    check_reachable,
    opened_store,
)
from lockclient.errors import ClusterMutexError
from lockclient.model.announcement import announced_at
from lockclient.model.clocks import monotonic
from lockclient.overview.listed_locks import lister
from lockclient.overview.live_table import Table
from lockclient.overview.queue_reader import WaitQueues
from lockclient.stores.findings import (
    ERROR,
    FINE,
    LEVELS,
    WARNING,
    Clock,
    Finding,
)
from lockclient.stores.registry import entry_of
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.text.escaping import plain

STATUS = {FINE: 0, WARNING: 1, ERROR: 2}
"""The exit status by the worst level, as monitoring plugins have it."""
CLOCK_TIMEOUT_S = 2.0
"""Seconds for the servers to return their time."""
MIN_LISTENING_S = 1.0
"""Seconds to watch for heartbeats, even when all unlockers have sent one."""
_COLOURS = {FINE: "green", WARNING: "yellow", ERROR: "red"}
_INDENT = 19
"""Columns before the text of a finding."""


@click.command()
@click.option(
    "--listen",
    type=Duration(0, 3600),
    default="4s",
    show_default=True,
    help="How long to listen at most, until each unlocker has sent its heartbeat (every 3 "
    "s): that and the pushes meanwhile show what their clocks say.",
)
@json_option
@store_options
@click.pass_context
def doctor(ctx: click.Context, settings: Settings, listen: float, as_json: bool) -> None:
    """Check everything that locks need, one line each, with what to do.

    \b
    member           can each be reached, and what does it complain of
    version          of etcd; a warning for 3.5.0 to 3.5.2, which can lose data, and
                     for members that differ; a note for untested ones
    space            is it filling up
    latency          of 50 transactions that change nothing: p50 and p99
    rights, auth     what this user may do, and whether etcd asks for one
    pages            does etcd answer web pages, so that any of them can forge locks
    unlocker         is one running
    clock            of the store, unlockers and holders against this machine's
    locks            in a deadlock, past their alert or auto-unlock, held too
                     long, broken, never expiring

    Of a bucket, in place of what is etcd's: the rights one by one, rules that delete or keep
    objects, whether the bucket has more than is read, and the latency of 50 reads. Of Valkey and
    Redis:

    \b
    server           has each a vote, why not, and does it keep what it answers
    votes            do enough of them vote, and may one more fail

    Nothing is written. Exit status, as monitoring plugins have it: 0 all is well, 1 a warning,
    2 an error; also 2 when the store can't be reached.

    \b
    With --json:
        status       the worst level: ok, warning or error
        findings     a list: check, level, text, advice ("": nothing to do)
    """
    found: list[Finding] = []
    with opened_store(settings) as store:
        for finding in findings(store, settings, listen):
            found.append(finding)
            if not as_json:
                _print(finding)
    worst = max((finding.level for finding in found), key=LEVELS.index)
    if as_json:
        listed = [
            {name: getattr(finding, name) for name in ("check", "level", "text", "advice")}
            for finding in found
        ]
        print_json({"status": worst, "findings": listed})
    else:
        counts = Counter(finding.level for finding in found)
        sums = ", ".join(f"{level}: {counts[level]}" for level in reversed(LEVELS))
        click.secho(sums, bold=True)
    ctx.exit(STATUS[worst])


def _print(finding: Finding) -> None:
    level = click.style(finding.level.ljust(7), _COLOURS[finding.level], bold=True)
    text = plain(finding.text) + (f" → {finding.advice}" if finding.advice else "")
    click.echo(f"{level}  {finding.check:<8}  {wrapped(text, _INDENT)}")


def findings(store: ServiceStore, settings: Settings, listen: float) -> Iterator[Finding]:
    """Yield the findings, those of the basic checks first."""
    kind = entry_of(settings.location).name
    servers: list[Clock] = []
    try:
        for found in store.examine():
            if isinstance(found, Clock):
                servers.append(found)
            else:
                yield found
        check_reachable(store)
    except ClusterMutexError as error:
        yield Finding(kind, ERROR, str(error), "The other checks need it and were left out.")
        return
    table = Table(store)
    table.start()
    try:
        if not table.wait_ready(READ_ALL_TIMEOUT_S):
            yield Finding(kind, ERROR, "The locks could not be read.", table.trouble)
            return
        yield doctor_checks.unlockers(table.unlockers(), needed=not store.can.expires)
        yield from doctor_checks.recipients(table.unlockers())
        yield from doctor_checks.clocks_of_unlockers(table.unlockers())
        if not servers:  # the offsets are of whole seconds
            offsets = store.clock_offsets(CLOCK_TIMEOUT_S)
            servers = [Clock(store.can.display_name, ahead - 0.5, ahead + 0.5) for ahead in offsets]
        yield from doctor_checks.clocks(
            [*servers, *_clocks_of_new_writes(table, listen, store.poll)]
        )
        yield from _knots(table, store)
        now = time.time()
        listed = map(lister(table, now, {}, ()), table.rows().values())
        yield from doctor_checks.locks(list(listed), now)
        yield from doctor_checks.thin_locks(store.thin_locks(), len(store.votes()))
    finally:
        table.stop()


def _knots(table: Table, store: ServiceStore) -> Iterator[Finding]:
    lines = WaitQueues(table, store)
    try:
        lines.poll(ANSWER_TIMEOUT_S)
    except ClusterMutexError as error:
        again = f"Run this again when {store.can.display_name} answers steadily."
        yield Finding("locks", ERROR, f"Who waits for what can't be read. {error}", again)
    yield from doctor_checks.deadlocked(lines.deadlocks(), lines.unread)


def _clocks_of_new_writes(table: Table, longest: float, delay: float) -> list[Clock]:
    """Watch until each unlocker has sent a heartbeat; return the clocks of unlockers and holders.

    Args:
        longest: seconds to watch at most.
        delay: seconds after which a polled store shows a write, at most.
    """
    began = monotonic()
    first = {name: announced_at(value) for name, value in table.unlockers().items()}
    heard: dict[str, Clock] = {}
    while (passed := monotonic() - began) < longest:
        if passed > MIN_LISTENING_S and heard.keys() >= table.unlockers().keys():
            break
        for name, value in table.unlockers().items():
            now = announced_at(value)
            if name not in heard and now is not None and now != first.get(name):
                ahead = now - time.time()
                heard[name] = Clock(f"unlocker {plain(name)}", ahead, ahead + delay)
        time.sleep(0.02)
    wall, now = time.time(), monotonic()
    rows = [doctor_checks.of_holder(row, wall, now, delay) for row in table.rows().values()]
    return [*heard.values(), *(clock for clock in rows if clock is not None)]
