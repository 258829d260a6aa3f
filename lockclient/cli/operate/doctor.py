"""`clustermutex doctor`: is all there that locks need, and what is to be done."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import cast

import click

from lockclient.cli.operate import doctor_checks
from lockclient.cli.operate.doctor_checks import Clock
from lockclient.cli.options import Duration, json_option, store_options
from lockclient.cli.output import print_json, wrapped
from lockclient.cli.store_access import (
    ANSWER_TIMEOUT_S,
    READ_ALL_TIMEOUT_S,
    check_reachable,
    listed_locks,
    opened_store,
)
from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.table import Table
from lockclient.overview.waiters import WaitQueues
from lockclient.settings import Settings
from lockclient.stores.diagnosis_protocol import (
    ERROR,
    FINE,
    LEVELS,
    WARNING,
    Examined,
    Finding,
    Member,
)
from lockclient.stores.requests import Read, Unlock
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.escaping import plain

STATUS = {FINE: 0, WARNING: 1, ERROR: 2}
"""The exit status by the worst that was found, as monitoring plugins have it."""
TRANSACTIONS = 50
_ASKING = 2.0
"""Seconds for a member to answer over HTTP."""
_MEASURING = 10.0
"""Seconds for all transactions together: so many as were done are enough."""
_AT_LEAST = 1.0
"""Seconds to listen to pushes, even when all unlockers were heard."""
_COLOURS = {FINE: "green", WARNING: "yellow", ERROR: "red"}
_NAME = "clustermutex-doctor"
_INDENT = 19
"""Columns in front of what a check found."""


@click.command()
@click.option(
    "--listen",
    type=Duration(0, 3600),
    default="4s",
    show_default=True,
    help="How long to listen at most, until each unlocker has given its sign of life (every 3 s): "
    "that and the pushes meanwhile tell what their clocks say.",
)
@json_option
@store_options
@click.pass_context
def doctor(ctx: click.Context, settings: Settings, listen: float, as_json: bool) -> None:
    """Check all that locks need, a line for each, with what to do.

    \b
    member, cluster  can etcd be reached, which members, what they complain of
    version          of etcd; a warning for 3.5.0 to 3.5.2, which can lose data
    space            is it filling up
    latency          of 50 transactions that change nothing: p50 and p99
    rights, auth     what this user may do, and whether etcd asks for one
    pages            does etcd answer web pages, so that any of them can forge locks
    history          is etcd compacted, by how far back it can show what was
    unlocker         is one running
    clock            of the store, unlockers and holders against this machine's
    locks            in a deadlock, past their alert or auto-unlock, broken,
                     never expiring

    Of a bucket, in place of what is etcd's: the rights one by one, rules that delete or keep
    objects, whether more stand there than is read, and the latency of 50 reads. Of Valkey and
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
    worst = max((each.level for each in found), key=LEVELS.index)
    if as_json:
        listed = [
            {"check": each.check, "level": each.level, "text": each.text, "advice": each.advice}
            for each in found
        ]
        print_json({"status": worst, "findings": listed})
    else:
        counts = Counter(each.level for each in found)
        said = ", ".join(f"{level}: {counts[level]}" for level in reversed(LEVELS))
        click.secho(said, bold=True)
    ctx.exit(STATUS[worst])


def _print(finding: Finding) -> None:
    level = click.style(finding.level.ljust(7), _COLOURS[finding.level], bold=True)
    text = plain(finding.text) + (f" → {finding.advice}" if finding.advice else "")
    click.echo(f"{level}  {finding.check:<8}  {wrapped(text, _INDENT)}")


def findings(store: ServiceStore, settings: Settings, listen: float) -> Iterator[Finding]:
    """Yield what each check finds, the basic ones first."""
    members: list[Member] = []
    place = settings.place
    kind = "etcd" if place is None else place.extra
    if place is None:
        members = store.members(_ASKING)
        yield from doctor_checks.members(members)
    try:
        if place is not None:
            yield from cast(Examined, store).examine()
        check_reachable(store)
    except ClusterMutexError as error:
        yield Finding(kind, ERROR, str(error), "The other checks need it and were left out.")
        return
    table = Table(store)
    table.start()
    try:
        if place is None:
            yield from _asked(store, settings, members)
        if not table.wait_ready(READ_ALL_TIMEOUT_S):
            yield Finding(kind, ERROR, "The locks could not be read.", table.trouble)
            return
        yield doctor_checks.unlockers(table.unlockers(), needed=not store.can.expires)
        own = [each for each in map(doctor_checks.of_member, members) if each is not None]
        if place is not None:  # in whole seconds, as a member does
            told = store.clock_offsets(_ASKING)
            own = [Clock(store.can.display_name, each - 0.5, each + 0.5) for each in told]
        yield from doctor_checks.clocks([*own, *_heard(table, listen, store.poll)])
        yield from _knots(table, store)
        now = time.time()
        yield from doctor_checks.locks(listed_locks(table, now), now)
    finally:
        table.stop()


def _knots(table: Table, store: ServiceStore) -> Iterator[Finding]:
    lines = WaitQueues(table, store)
    try:
        lines.look(ANSWER_TIMEOUT_S)
    except ClusterMutexError as error:
        again = f"Run this again when {store.can.display_name} answers steadily."
        yield Finding("locks", ERROR, f"Who waits for what can't be read. {error}", again)
    yield from doctor_checks.deadlocked(lines.deadlocks())


def _asked(store: ServiceStore, settings: Settings, members: list[Member]) -> Iterator[Finding]:
    try:
        rights = store.probe_permissions(Deadline.after(ANSWER_TIMEOUT_S))
        yield doctor_checks.latency(*_measured(store, writing=rights.get("locks", False)))
        auth = next((each.auth for each in members if each.auth is not None), None)
        yield from doctor_checks.rights(rights, settings.user, auth=auth)
        yield doctor_checks.history(store.history(Deadline.after(ANSWER_TIMEOUT_S)), time.time())
    except ClusterMutexError as error:
        yield Finding("latency", ERROR, str(error), "Run this again when etcd answers steadily.")


def _measured(store: ServiceStore, *, writing: bool) -> tuple[list[float], str]:
    """Return how long transactions took, and which they were.

    An unlock by nobody changes nothing, but as a transaction that could write it goes through
    consensus and to the disks, as every lock does. Who may not write can only read.
    """
    request = Unlock(_NAME, str(uuid.uuid4())) if writing else Read(_NAME)
    deadline = Deadline.after(_MEASURING)
    seconds: list[float] = []
    store.ask(request, deadline)  # the first one connects
    while len(seconds) < TRANSACTIONS and (len(seconds) < 2 or not deadline.expired()):
        began = time.perf_counter()
        store.ask(request, Deadline.after(ANSWER_TIMEOUT_S))
        seconds.append(time.perf_counter() - began)
    return seconds, "unlocks of nothing" if writing else "reads, for want of rights to write"


def _heard(table: Table, longest: float, late: float) -> list[Clock]:
    """Listen until all unlockers were heard, and return the clocks of unlockers and holders.

    Where it is looked what was written, that is seen as much as `late` seconds afterwards.
    """
    began = monotonic()
    first = {
        name: doctor_checks.announced(value).get("now") for name, value in table.unlockers().items()
    }
    heard: dict[str, Clock] = {}
    while (passed := monotonic() - began) < longest:
        if passed > _AT_LEAST and heard.keys() >= table.unlockers().keys():
            break
        for name, value in table.unlockers().items():
            now = doctor_checks.announced(value).get("now")
            if name not in heard and doctor_checks.is_time(now) and now != first.get(name):
                ahead = now - time.time()
                heard[name] = Clock(f"unlocker {plain(name)}", ahead, ahead + late)
        time.sleep(0.02)
    wall, now = time.time(), monotonic()
    rows = [doctor_checks.of_holder(row, wall, now, late) for row in table.rows().values()]
    return [*heard.values(), *(each for each in rows if each is not None)]
