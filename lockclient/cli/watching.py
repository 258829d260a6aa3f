"""`clustermutex watch`: what happens to the locks, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from typing import Any

import click

from lockclient.cli.common import (
    answering,
    followed,
    json_option,
    opened,
    print_json,
    store_options,
)
from lockclient.cli.tables import COLOURS
from lockclient.record import (
    ALERT,
    AUTO_UNLOCK,
    BROKEN,
    FORCE_UNLOCK,
    OK,
    OVERDUE,
    Holder,
    Removal,
)
from lockclient.settings import Settings
from lockclient.shown import duration, has_words, lock_facts, plain, removal_facts, searchable
from lockclient.store import ServiceStore
from lockclient.table import Table, Transition

_LOOK = 0.5
"""Seconds between two looks at what happens without being written: stamps pass, etcd goes away."""
_COLOURS = {
    "taken": "cyan",
    "alert": COLOURS[ALERT],
    "overdue": COLOURS[OVERDUE],
    "broken": COLOURS[BROKEN],
    "recovered": COLOURS[OK],
    AUTO_UNLOCK: "red",
    FORCE_UNLOCK: "red",
    "away": "red",
    "back": "green",
}
_WIDTH = max(map(len, _COLOURS))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to the lock of `holder`, or without one to the connection.

    `text` says more for people, `facts` for programs.
    """

    kind: str
    holder: Holder | None
    text: str
    facts: dict[str, Any]


@click.command()
@click.argument("text", nargs=-1)
@click.option(
    "--initial", is_flag=True, help="Begin with an event `held` for each lock that is held already."
)
@json_option
@store_options
def watch(settings: Settings, text: tuple[str, ...], initial: bool, as_json: bool) -> None:
    """Print a line for each thing that happens to a lock, until Ctrl-C.

    Only for locks in whose name, host or reason each TEXT is found.

    \b
    The events:
        held         with --initial: it was held when this began
        taken        somebody got the lock
        released     its holder gave it back
        alert        it went past its alert: no sign of life for too long
        overdue      it went past its auto-unlock and is still there
        recovered    its holder gave a sign of life again
        broken       its data became unsound, so that nobody can judge it
        auto-unlock  an unlocker took it from its holder
        force-unlock a person did
        away, back   etcd could not be followed, and could again: what
                     happened in between is told then, as far as it still
                     shows

    With --json each is an object in one line: time (Unix seconds, of seeing it), event, and what
    a lock of `ls` has; of auto-unlock and force-unlock also what `removed` has. away has
    `trouble`, a sentence.
    """
    with opened(settings) as store, suppress(KeyboardInterrupt):
        answering(store)
        for event in events(store, initial=initial):
            if event.holder is None or has_words(text, searchable(event.holder)):
                _print(event, as_json=as_json)


def _print(event: Event, *, as_json: bool) -> None:
    wall = time.time()
    if as_json:
        print_json({"time": wall, "event": event.kind, **event.facts}, line=True)
        return
    at = datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    kind = click.style(event.kind.ljust(_WIDTH), _COLOURS.get(event.kind))
    name = "" if event.holder is None else f"  {plain(event.holder.name)}"
    click.echo(f"{at}  {kind}{name}  {plain(event.text)}")


# ---------------------------------------------------------------- from the table to events

_News = list[Transition] | list[Removal]


def events(store: ServiceStore, *, initial: bool) -> Iterator[Event]:
    """Yield what happens, as long as it is asked for."""
    inbox: SimpleQueue[_News] = SimpleQueue()

    def on_removal(removals: list[Removal], found: bool) -> None:
        if not found:  # what was removed before this began is no news
            inbox.put(removals)

    table = Table(store, on_change=inbox.put, on_removal=on_removal)
    watcher = _Watcher(table, initial=initial)
    try:
        followed(table)
        while True:
            yield from _next(inbox, watcher)
            yield from watcher.look(time.time())
    finally:
        table.stop()


def _next(inbox: SimpleQueue[_News], watcher: _Watcher) -> Iterator[Event]:
    """Yield what the table has told meanwhile, having waited for it for a moment."""
    with suppress(Empty):
        news = inbox.get(timeout=_LOOK)
        while True:
            yield from watcher.read(news)
            news = inbox.get_nowait()


class _Watcher:
    """What is known of each lock, to tell what is new."""

    def __init__(self, table: Table, *, initial: bool) -> None:
        self._table = table
        self._initial = initial
        self._begun = False
        self._states: dict[str, str] = {}
        self._removed: set[tuple[str, str | None]] = set()
        self._away = False

    def read(self, news: _News) -> Iterator[Event]:
        for each in news:
            if isinstance(each, Removal):
                # It is told before the lock's going, which then is no release.
                self._removed.add((each.holder.name, each.holder.uuid))
                yield self._removal(each)
            else:
                yield from self._change(each)

    def _change(self, transition: Transition) -> Iterator[Event]:
        name, before, after = transition.name, transition.before, transition.after
        if before is not None and (after is None or after.holder.uuid != before.holder.uuid):
            yield from self._went(before.holder)
        if after is None:
            self._states.pop(name, None)
            return
        holder = after.holder
        if not (transition.live or self._begun):  # of the reading at the beginning
            self._states[name] = state = holder.state(time.time())
            if self._initial:
                yield self._event("held", holder, f"by {holder.describe()}, {state}")
            return
        if before is None or before.holder.uuid != holder.uuid:
            self._states[name] = OK
            waiters = self._table.waiters().get(name, 0)
            waiting = f"; {waiters} wait" if waiters else ""
            yield self._event("taken", holder, f"by {holder.describe()}{waiting}")
        yield from self._judge(holder, time.time())

    def _went(self, holder: Holder) -> Iterator[Event]:
        key = (holder.name, holder.uuid)
        if key in self._removed:
            self._removed.discard(key)
        else:
            taken = holder.locked_at
            after = "" if taken is None else f" after {duration(time.time() - taken)}"
            yield self._event("released", holder, f"by {holder.describe()}{after}")

    def look(self, wall: float) -> Iterator[Event]:
        """Yield what happened without being written."""
        self._begun = True
        away = not self._table.connected()
        if away != self._away:
            self._away = away
            trouble = self._table.trouble or "etcd does not answer."
            text = trouble if away else "etcd is followed again."
            yield Event("away" if away else "back", None, text, {"trouble": text} if away else {})
        if not away:  # pushes may be on their way: what was known is old news
            for row in self._table.rows().values():
                if row.holder.name in self._states:
                    yield from self._judge(row.holder, wall)

    def _judge(self, holder: Holder, wall: float) -> Iterator[Event]:
        before, state = self._states.get(holder.name, OK), holder.state(wall)
        if state == before:
            return
        self._states[holder.name] = state
        kind = "recovered" if state == OK else state
        texts: dict[str, str] = {
            "recovered": "its holder gave a sign of life",
            BROKEN: "; ".join(holder.faults()),
            ALERT: f"no sign of life from {holder.describe()}",
            OVERDUE: f"past its auto-unlock, held by {holder.describe()}",
        }
        yield self._event(kind, holder, texts[kind])

    def _event(self, kind: str, holder: Holder, text: str) -> Event:
        state = holder.state(time.time())
        waiters = self._table.waiters().get(holder.name, 0)
        return Event(kind, holder, text, lock_facts(holder, state, waiters))

    def _removal(self, removal: Removal) -> Event:
        by = f"by {removal.removed_by or 'unknown'}: {removal.why}"
        text = f"{by}; it was held by {removal.holder.describe()}"
        how = removal.how if removal.how in _COLOURS else FORCE_UNLOCK
        return Event(how, removal.holder, text, removal_facts(removal))
