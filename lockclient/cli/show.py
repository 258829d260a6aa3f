"""`clustermutex show`: one lock, in all that is known about it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from lockclient.cli.common import (
    PATIENCE,
    READING,
    LockName,
    json_option,
    opened,
    print_json,
    store_options,
)
from lockclient.cli.tables import COLOURS
from lockclient.record import Holder, Removal, Ticket
from lockclient.settings import Settings
from lockclient.shown import Bar, distance, duration, lock_facts, plain, utc
from lockclient.store import Read, Seen, ServiceStore
from lockclient.timing import Deadline

_BAR = 40
"""Characters of a bar."""
_LABEL = 15


@click.command()
@click.argument("name", type=LockName())
@json_option
@store_options
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show all that is known of one lock, and the code that took it.

    That is its holder, its times as a bar (it ends at the auto-unlock, the notch is the alert),
    who waits for it, the next one first, and the backtrace of the call that took it. (Locks of
    `clustermutex run` and `lock` have none.)

    Exit status 1: nobody holds it. Its last removal is told then, if there was one.

    \b
    With --json, a lock as in `ls`, and:
        backtrace    the stack of the call that took it, a text, or null
        queue        a list of who waits, the next one first: uuid, hostname,
                     pid, thread, reason, since (Unix seconds), revision
    """
    with opened(settings) as store:
        seen = look_at(store, name)
        holder = seen.holder
        if holder is None:
            raise click.ClickException(_nobody(store, seen, name))
    now = time.time()
    if as_json:
        facts = lock_facts(holder, holder.state(now), len(seen.waiters))
        queue = [ticket.facts() for ticket in seen.waiters]
        print_json({**facts, "backtrace": holder.backtrace, "queue": queue})
        return
    for line in lines(holder, seen.waiters, now):
        click.echo(line)


def look_at(store: ServiceStore, name: str) -> Seen:
    """Return a lock as it stands in the store.

    Raises:
        StoreUnavailable, StoreError: the store does not answer this user.
    """
    seen = store.ask(Read(name, waiters=True), Deadline.after(PATIENCE))
    assert isinstance(seen, Seen)
    return seen


def _nobody(store: ServiceStore, seen: Seen, name: str) -> str:
    waiting = f" {len(seen.waiters)} wait for it, and one of them is about to get it."
    last = _last_removal(store, name)
    return (
        f"Nobody holds the lock {name!r}."
        + (waiting if seen.waiters else "")
        + (f" The last time it was taken from its holder: {last.describe()}" if last else "")
    )


def _last_removal(store: ServiceStore, name: str) -> Removal | None:
    found: tuple[int, Removal] | None = None
    for batch in store.load(("removed",), Deadline.after(READING)):
        for change in batch.changes:
            newer = found is None or change.created > found[0]
            if change.name == name and newer and change.value is not None:
                found = change.created, Removal.read(name, change.part, change.value)
    return found[1] if found else None


# ---------------------------------------------------------------- for people


def lines(holder: Holder, waiters: tuple[Ticket, ...], wall: float) -> Iterator[str]:
    """Yield the lines that show a held lock."""
    state = holder.state(wall)
    yield f"{click.style(plain(holder.name), bold=True)}  {click.style(state, COLOURS[state])}"
    for fault in holder.faults():
        yield _line("broken", fault)
    yield from _facts(holder)
    yield from _times(holder, wall)
    yield from _waiters(waiters, wall)
    yield from _backtrace(holder)


def _line(label: str, text: object) -> str:
    return f"  {click.style(label.ljust(_LABEL), dim=True)} {plain(text)}"


def _facts(holder: Holder) -> Iterator[str]:
    yield _line("holder", where(holder))
    for label, text in (
        ("reason", holder.reason),
        ("identity", holder.identity),
        ("client", holder.client),
        ("uuid", holder.uuid or "none, so that nobody holds it"),
        ("fencing token", holder.fencing_token),
    ):
        if text:
            yield _line(label, text)


def where(holder: Holder | Ticket) -> str:
    """Say where a holder or waiter runs."""
    thread = f", thread {holder.thread}" if holder.thread else ""
    return f"{holder.hostname or 'an unknown host'}, pid {holder.pid or 'unknown'}{thread}"


def _times(holder: Holder, wall: float) -> Iterator[str]:
    for label, stamp in (
        ("taken", holder.locked_at),
        ("last alive", holder.alive_at),
        ("alert", holder.alert_at),
    ):
        if stamp is not None:
            yield _line(label, f"{utc(stamp)}, {distance(stamp, wall)}")
    if holder.auto_unlock_at is not None:
        at = holder.auto_unlock_at
        yield _line("auto-unlock", f"{utc(at)}, {distance(at, wall)}")
    elif "auto_unlock_at" not in holder.problems:
        yield _line("auto-unlock", "never: only its holder or a person unlocks it")
    if (bar := Bar.of(holder)) is not None:
        yield _line("", drawn(bar, wall))


def drawn(bar: Bar, wall: float) -> str:
    """Draw a bar with characters."""
    filled, notch = round(bar.filled(wall) * _BAR), min(_BAR - 1, round(bar.notch * _BAR))
    marks = ["█"] * filled + ["░"] * (_BAR - filled)
    marks[notch] = "┃"
    return "".join(marks) + ("…" if bar.open else "┃")


def _waiters(line: tuple[Ticket, ...], wall: float) -> Iterator[str]:
    yield _line("waiters", len(line) or "none")
    for number, ticket in enumerate(line, 1):
        reason = f", for {ticket.reason!r}" if ticket.reason else ""
        since = "" if ticket.since is None else f", for {duration(wall - ticket.since)} now"
        yield _line(f"{number:>{_LABEL}}.", f"{where(ticket)}{reason}{since}")


def _backtrace(holder: Holder) -> Iterator[str]:
    if not holder.backtrace:
        yield _line("taken by", "the holder gave no backtrace")
        return
    yield _line("taken by", "this code, the innermost call last:")
    # Of another client it may be any text: it is shown as it is, and what can't be seen escaped.
    found = plain(holder.backtrace, block=True).rstrip("\n").split("\n")
    frames = [number for number, line in enumerate(found) if line.lstrip().startswith("File ")]
    for number, line in enumerate(found):
        last = bool(frames) and number >= frames[-1]
        yield "    " + (click.style(line, bold=True) if last else line)
