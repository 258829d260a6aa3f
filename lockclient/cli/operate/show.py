"""`clustermutex show`: all facts about one lock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from lockclient.cli.operate.terminal_tables import COLOURS
from lockclient.cli.options import LockName, json_option, store_options, with_facts
from lockclient.cli.output import print_json, wrapped
from lockclient.cli.store_access import (
    ANSWER_TIMEOUT_S,
    READ_ALL_TIMEOUT_S,
    opened_store,
    suggestion_for,
)
from lockclient.model.clocks import Deadline
from lockclient.model.deadlocks import Deadlock, deadlocks, waits_of
from lockclient.model.fields import NEVER
from lockclient.model.holder import FACTS, OK, OVERDUE, Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_json import UNLISTED, whole_lock
from lockclient.overview.lock_presentation import (
    NOTCH,
    Bar,
    fact_rows,
    fact_text,
    removed_from,
    until_unlock,
)
from lockclient.overview.lock_status import status_of
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.request_types import Read
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.text.durations import duration
from lockclient.text.escaping import plain, shown_name
from lockclient.text.timestamps import distance, utc

_MAX_TICKETS = 100_000
"""Waiters in all queues that are searched for a deadlock."""
_BAR_WIDTH = 40
"""Characters of a bar."""
_LABEL_WIDTH = max(len(fact.title) for fact in FACTS)


@click.command()
@click.argument("name", type=LockName())
@json_option
@store_options
@with_facts(more=UNLISTED)
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show all that is known of one lock, and the code that took it.

    That is its holder, its silence as a bar (it ends at the auto-unlock, the notch is the alert),
    who waits for it, the next one first, and the backtrace of the call that took it. (Locks of
    `clustermutex run` and `lock` have none.)

    Exit status 1: nobody holds it. Its waiters are shown then, and its last removal, if there
    was one.

    \b
    With --json, a lock as in `ls`, and:
    {more}
        queue      a list of waiters, the next one first: uuid, hostname, pid,
                   thread, reason, since (Unix seconds), revision, actor,
                   frame (the line of code that waits)
        remarks    of a store of several servers: on how few of them it is written,
                   if not on all; else empty
    """
    with opened_store(settings) as store:
        seen = read_lock(store, name)
        deadlock = deadlock_of(store, seen)
        now, holder = time.time(), seen.holder
        waiters = seen.waiters if store.can.queue else None
        is_overdue = holder is not None and holder.state(now) == OVERDUE
        earliest = removed_from(holder, _announcements(store)) if holder and is_overdue else None
        if holder is None:
            if not as_json and seen.waiters:
                click.echo("\n".join(_waiters(seen.waiters, now)))
            raise click.ClickException(_not_held_text(store, seen, name))
    if as_json:
        circle = deadlock.seen_from(name) if deadlock else ()
        status = status_of(holder, now, deadlock=deadlock is not None)
        remarks = [seen.warning] if seen.warning else []
        print_json(whole_lock(holder, status, waiters, circle) | {"remarks": remarks})
        return
    for line in lock_lines(holder, waiters, now, deadlock, earliest):
        click.echo(line)
    if seen.warning:
        click.echo(_sentence("votes", seen.warning))


def read_lock(store: ServiceStore, name: str) -> ReadResult:
    """Read a lock with its waiters from the store.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    seen = store.ask(Read(name, waiters=True), Deadline.after(ANSWER_TIMEOUT_S))
    assert isinstance(seen, ReadResult)
    return seen


def deadlock_of(store: ServiceStore, seen: ReadResult) -> Deadlock | None:
    """Return the deadlock that a lock seems to be in, or None.

    Follows each holder to the lock for which it waits. A deadlock costs a read for each of its
    locks; a lock without waiters costs none.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    holder = seen.holder
    if holder is None or not holder.actor or not seen.waiters:
        return None
    tickets = store.tickets(_MAX_TICKETS, Deadline.after(ANSWER_TIMEOUT_S)).found
    waits = waits_of(tickets)
    held, name = {holder.name: holder}, holder.name
    while (ticket := waits.get(holder.actor or "")) is not None and ticket.name not in held:
        holder = read_lock(store, ticket.name).holder
        if holder is None:
            return None
        held[holder.name] = holder
    return next((found for found in deadlocks(held, tickets) if name in found.names), None)


def _not_held_text(store: ServiceStore, seen: ReadResult, name: str) -> str:
    waiting = f" {len(seen.waiters)} wait for it; the first is about to get it."
    last = _last_removal(store, name)
    removed = f" The last time it was taken from its holder: {last.describe()}" if last else ""
    more = f"{waiting if seen.waiters else ''}{removed}" or suggestion_for(store, name)
    few = f" {plain(seen.warning)}" if seen.warning else ""
    return f"Nobody holds the lock {name!r}.{few}{more}"


def _announcements(store: ServiceStore) -> list[str]:
    batches = store.load(("unlockers",), Deadline.after(ANSWER_TIMEOUT_S))
    values = [change.value or b"" for batch in batches for change in batch.changes]
    return [value.decode(errors="replace") for value in values]


def _last_removal(store: ServiceStore, name: str) -> Removal | None:
    found: tuple[int, Removal] | None = None
    for batch in store.load(("removed",), Deadline.after(READ_ALL_TIMEOUT_S)):
        for change in batch.changes:
            newer = found is None or change.created > found[0]
            if change.name == name and newer and change.value is not None:
                found = change.created, Removal.read(name, change.part, change.value)
    return found[1] if found else None


# ---------------------------------------------------------------- for people


def lock_lines(
    holder: Holder,
    waiters: tuple[Ticket, ...] | None,
    wall: float,
    deadlock: Deadlock | None = None,
    earliest: float | None = None,
) -> Iterator[str]:
    """Yield the lines about a held lock.

    Args:
        earliest: of an overdue lock, `lock_presentation.removed_from`.
        waiters: None: the store has no queue.
    """
    status = status_of(holder, wall, deadlock=deadlock is not None)
    words = dict.fromkeys((status.verdict, *status.words))
    verdicts = ", ".join(
        click.style(word, COLOURS[word]) for word in words if word != OK or len(words) == 1
    )
    yield f"{click.style(shown_name(holder.name), bold=True)}  {verdicts}"
    for fault in holder.faults():
        yield _line("broken", fault)
    if why := holder.undecided():
        why = f"{why}. People are alerted, but nothing removes it by itself."
        yield _sentence("undecided", why)
    if earliest is not None:
        when = f"{utc(earliest)}, {distance(earliest, wall)}"
        yield _sentence("removal", f"by an unlocker, at the earliest {when}")
    if deadlock is not None:
        yield _sentence("deadlock", deadlock.text)
    yield from _facts(holder, wall)
    if waiters is not None:
        yield from _waiters(waiters, wall)
    yield from _backtrace(holder)


def _line(label: str, text: object) -> str:
    return _labelled(label, plain(text))


def _sentence(label: str, text: str) -> str:
    return _labelled(label, wrapped(plain(text), _LABEL_WIDTH + 3))


def _labelled(label: str, shown: str) -> str:
    return f"  {click.style(label.ljust(_LABEL_WIDTH), dim=True)} {shown}"


def _process_text(waiter: Ticket) -> str:
    thread = f", thread {waiter.thread}" if waiter.thread else ""
    return f"{waiter.hostname or 'an unknown host'}, pid {waiter.pid or 'unknown'}{thread}"


def _facts(holder: Holder, wall: float) -> Iterator[str]:
    for line in fact_rows(holder):
        texts = [line.word] if line.word else []
        if line.value is not None:
            texts.append(fact_text(line.fact, line.value))
            if line.timed and not line.word:
                far = until_unlock if line.fact.absent == NEVER else distance
                texts.append(far(line.value, wall))
        yield _line(line.fact.title.lower(), ", ".join(texts))
    if (bar := Bar.of(holder)) is not None:
        yield _line("", bar_text(bar, wall))


def bar_text(bar: Bar, wall: float) -> str:
    """Return a bar drawn with characters."""
    filled, notch = round(bar.filled(wall) * _BAR_WIDTH), round(NOTCH * _BAR_WIDTH)
    marks = ["█"] * filled + ["░"] * (_BAR_WIDTH - filled)
    marks[notch] = "┃"
    return "".join(marks) + ("…" if bar.open else "┃")


def _waiters(line: tuple[Ticket, ...], wall: float) -> Iterator[str]:
    yield _line("waiters", len(line) or "none")
    for number, ticket in enumerate(line, 1):
        reason = f", for {ticket.reason!r}" if ticket.reason else ""
        since = "" if ticket.since is None else f", for {duration(wall - ticket.since)} now"
        yield _line(f"{number:>{_LABEL_WIDTH}}.", f"{_process_text(ticket)}{reason}{since}")
        if ticket.frame:
            yield _line("", f"at {ticket.frame}")


def _backtrace(holder: Holder) -> Iterator[str]:
    if not holder.backtrace:
        yield _line("taken by", "the holder gave no backtrace")
        return
    yield _line("taken by", "this code, the innermost call last:")
    # Another client may write any text: characters that can't be seen are escaped.
    found = plain(holder.backtrace, block=True).rstrip("\n").split("\n")
    frames = [number for number, line in enumerate(found) if line.lstrip().startswith("File ")]
    for number, line in enumerate(found):
        last = bool(frames) and number >= frames[-1]
        yield "    " + (click.style(line, bold=True) if last else line)
