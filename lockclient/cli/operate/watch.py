"""`clustermutex watch`: what happens to the locks, as it happens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from queue import Empty, Queue
from typing import Any

import click

from lockclient.cli.operate.show import process_text
from lockclient.cli.options import json_option, parse_search, store_options
from lockclient.cli.output import COLOURS, on_terminal, print_json, wrapped
from lockclient.cli.store_access import check_reachable, followed_table, opened_store
from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.deadlocks import Deadlock, by_lock
from lockclient.model.holder import ALERT, BROKEN, OK, OVERDUE, UNDECIDED, Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_json import lock_facts, removal_facts
from lockclient.overview.rows import Transition
from lockclient.overview.search import Search
from lockclient.overview.table import Table
from lockclient.overview.verdict import standing
from lockclient.overview.waiters import MOST, WaitQueues
from lockclient.settings import Settings
from lockclient.stores.service_protocol import ServiceStore
from lockclient.text.durations import duration
from lockclient.text.escaping import plain, shown_name

POLL_INTERVAL_S = 0.5
"""Seconds between two looks at what happens without being written: stamps pass, etcd goes away."""
WAITERS_TIMEOUT_S = 2.0
"""Seconds for etcd to say who waits: meanwhile nothing else is told."""
_WAITING, _LEFT = "waiting", "left"
_COLOURS = {
    "taken": "blue",
    _WAITING: "cyan",
    _LEFT: "yellow",
    "alert": COLOURS[ALERT],
    "overdue": COLOURS[OVERDUE],
    "undecided": COLOURS[UNDECIDED],
    "broken": COLOURS[BROKEN],
    "recovered": COLOURS[OK],
    AUTO_UNLOCK: "red",
    FORCE_UNLOCK: "red",
    "away": "red",
    "back": "green",
}
_KIND_WIDTH = max(map(len, _COLOURS))


@dataclass(frozen=True, slots=True)
class LogRow:
    """Something that happened to a holder or a waiter, or if `who` is None to the connection.

    `text` says more for people, `facts` for programs.
    """

    kind: str
    who: Holder | Ticket | None
    text: str
    facts: dict[str, Any]

    def matches(self, search: Search) -> bool:
        """Tell whether it is among what is searched for."""
        if isinstance(self.who, Ticket):
            return search.finds_ticket(self.who)
        if self.who is None:
            return True
        return search.finds(self.who, *standing(self.who, time.time()).words)


@click.command()
@click.argument("text", nargs=-1)
@click.option(
    "--initial",
    is_flag=True,
    help="Begin with an event for each lock that is held, and for each who waits already.",
)
@json_option
@store_options
def watch(settings: Settings, text: tuple[str, ...], initial: bool, as_json: bool) -> None:
    """Print a line for each thing that happens to a lock, until Ctrl-C.

    Only locks and waiters whose name, host or reason contains each TEXT.

    \b
    The events:
        held         with --initial: it was held when this began
        taken        somebody got the lock
        released     its holder gave it back
        alert        it went past its alert: no heartbeat for too long
        overdue      it went past its auto-unlock and is still there
        recovered    its holder gave a heartbeat again
        undecided    it is no longer known when it may be removed
        broken       its data became unsound, so that nobody can judge it
        auto-unlock  an unlocker took it from its holder
        force-unlock a person did
        waiting      somebody queues for it; reported every half second
        left         somebody left the queue without the lock: gave up, or died
        away, back   the store could not be followed, and could again: what
                     happened in between is told then, as far as it still
                     shows

    With --json each is an object in one line: time (Unix seconds, of seeing it), event, and what
    a lock of `ls` has; of auto-unlock and force-unlock also what `removed` has. waiting and left
    have `waiter`, as one in the queue of `show`, and where nobody holds the lock of this only
    `name` and `waiters`. away has `trouble`, a sentence. Of more than 2,000 waiters none are told.
    """
    search = parse_search(text)
    with opened_store(settings) as store, suppress(KeyboardInterrupt):
        check_reachable(store)
        if on_terminal() and not as_json:
            # Or nothing at all would be seen as long as all is quiet.
            click.secho("Events appear here. Ctrl-C ends this.", dim=True, err=True)
        for event in events(store, initial=initial):
            if event.matches(search):
                _print(event, as_json=as_json)


def _print(event: LogRow, *, as_json: bool) -> None:
    wall = time.time()
    if as_json:
        print_json({"time": wall, "event": event.kind, **event.facts}, line=True)
        return
    now = datetime.fromtimestamp(wall, timezone.utc)
    # Lines on a terminal are for who sits before it, and have to fit.
    whole = now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    at = now.strftime("%H:%M:%SZ") if on_terminal() else whole
    kind = click.style(event.kind.ljust(_KIND_WIDTH), _COLOURS.get(event.kind))
    name = "" if event.who is None else f"{shown_name(event.who.name)}  "
    click.echo(f"{at}  {kind}  {wrapped(name + plain(event.text), len(at) + _KIND_WIDTH + 4)}")


# ---------------------------------------------------------------- from the table to events

_News = list[Transition] | list[Removal]


def events(store: ServiceStore, *, initial: bool) -> Iterator[LogRow]:
    """Yield what happens, as long as it is asked for."""
    inbox: Queue[_News] = Queue()

    def on_removal(removals: list[Removal], found: bool) -> None:
        if not found:  # what was removed before this began is no news
            inbox.put(removals)

    with followed_table(store, on_change=inbox.put, on_removal=on_removal) as table:
        watcher, lines = _EventSource(table, initial=initial), WaitQueues(table, store)
        while True:
            yield from _from_inbox(inbox, watcher)
            yield from watcher.check()
            with suppress(StoreUnavailable, StoreError):  # that it is away is told by itself
                lines.poll(WAITERS_TIMEOUT_S)
            yield from watcher.check_waiters(lines)


def _from_inbox(inbox: Queue[_News], watcher: _EventSource) -> Iterator[LogRow]:
    """Yield what the table has told meanwhile, having waited for it for a moment."""
    with suppress(Empty):
        news = inbox.get(timeout=POLL_INTERVAL_S)
        while True:
            yield from watcher.read(news)
            news = inbox.get_nowait()


class _EventSource:
    """What is known of each lock, to tell what is new."""

    def __init__(self, table: Table, *, initial: bool) -> None:
        self._table = table
        self._initial = initial
        self._begun = False
        self._states: dict[str, str] = {}
        self._removed: set[tuple[str, str | None]] = set()
        self._unreachable = False
        self._deadlocks: dict[str, Deadlock] = {}
        self._seen_waiters = SeenWaiters(initial=initial)

    def read(self, news: _News) -> Iterator[LogRow]:
        for change in news:
            if isinstance(change, Removal):
                # It comes before the lock's going, which then is no release.
                self._removed.add((change.holder.name, change.holder.uuid))
                yield self._removal(change)
            else:
                yield from self._change(change)

    def _change(self, transition: Transition) -> Iterator[LogRow]:
        name, before, after = transition.name, transition.before, transition.after
        if before is not None and (after is None or after.holder.uuid != before.holder.uuid):
            yield from self._released(before.holder)
        if after is None:
            self._states.pop(name, None)
            return
        holder = after.holder
        if not (transition.live or self._begun):  # of the reading at the beginning
            self._states[name] = state = self._state(holder)
            if self._initial:
                yield self._event("held", holder, f"by {holder.describe()}, {state}")
            return
        if before is None or before.holder.uuid != holder.uuid:
            self._states[name] = OK
            self._seen_waiters.took(holder)
            waiters = self._table.waiters().get(name, 0)
            waiting = f"; {_waiting_text(waiters)}" if waiters else ""
            yield self._event("taken", holder, f"by {holder.describe()}{waiting}")
        yield from self._check_state(holder)

    def _released(self, holder: Holder) -> Iterator[LogRow]:
        key = (holder.name, holder.uuid)
        if key in self._removed:
            self._removed.discard(key)
        else:
            taken = holder.locked_at
            after = "" if taken is None else f" after {duration(time.time() - taken)}"
            yield self._event("released", holder, f"by {holder.describe()}{after}")

    def check(self) -> Iterator[LogRow]:
        """Yield what happened without being written."""
        self._begun = True
        unreachable = not self._table.connected()
        if unreachable != self._unreachable:
            self._unreachable = unreachable
            trouble = self._table.trouble or f"{self._table.can.display_name} does not answer."
            text = trouble if unreachable else f"{self._table.can.display_name} is followed again."
            yield LogRow(
                "away" if unreachable else "back",
                None,
                text,
                {"trouble": text} if unreachable else {},
            )
        if not unreachable:  # pushes may be on their way: what was known is old news
            for row in self._table.rows().values():
                if row.holder.name in self._states:
                    yield from self._check_state(row.holder)

    def check_waiters(self, lines: WaitQueues) -> Iterator[LogRow]:
        """Yield who waits now, and who does no more and did not get the lock."""
        self._deadlocks = by_lock(lines.deadlocks())
        for kind, ticket in self._seen_waiters.compare(lines):
            row = self._table.row(ticket.name)
            waiters = self._table.queue_length(ticket.name).waiting
            facts: dict[str, Any] = {"name": ticket.name, "waiters": waiters}
            if row is not None and row.held:
                facts = self._facts(row.holder, waiters)
            reason = f", for {ticket.reason!r}" if ticket.reason else ""
            waited = "" if ticket.since is None else f" {duration(time.time() - ticket.since)}"
            more = (
                f"; {_waiting_text(waiters)}" if kind == _WAITING else f", waited{waited} in vain"
            )
            text = f"{process_text(ticket)}{reason}{more}"
            yield LogRow(kind, ticket, text, facts | {"waiter": ticket.facts()})

    def _check_state(self, holder: Holder) -> Iterator[LogRow]:
        before, state = self._states.get(holder.name, OK), self._state(holder)
        if state == before:
            return
        self._states[holder.name] = state
        kind = "recovered" if state == OK else state
        texts: dict[str, str] = {
            "recovered": "its holder gave a heartbeat",
            BROKEN: "; ".join(holder.faults()),
            ALERT: f"no heartbeat from {holder.describe()}",
            UNDECIDED: holder.undecided(),
            OVERDUE: f"past its auto-unlock, held by {holder.describe()}",
        }
        yield self._event(kind, holder, texts[kind])

    def _state(self, holder: Holder) -> str:
        """Return a lock's state, as far as it is known: see `Table.known_until`."""
        return holder.state(self._table.judged_at(time.time()))

    def _event(self, kind: str, holder: Holder, text: str) -> LogRow:
        waiters = self._table.waiters().get(holder.name, 0) if self._table.can.queue else None
        return LogRow(kind, holder, text, self._facts(holder, waiters))

    def _facts(self, holder: Holder, waiters: int | None) -> dict[str, Any]:
        deadlock = self._deadlocks.get(holder.name)
        circle = deadlock.seen_from(holder.name) if deadlock else ()
        judged_at = self._table.judged_at(time.time())
        stands = standing(holder, judged_at, deadlock=deadlock is not None)
        return lock_facts(holder, stands, waiters, circle)

    def _removal(self, removal: Removal) -> LogRow:
        by = f"by {removal.removed_by or 'unknown'}: {removal.why}"
        text = f"{by}; it was held by {removal.holder.describe()}"
        how = removal.how if removal.how in _COLOURS else FORCE_UNLOCK
        return LogRow(how, removal.holder, text, removal_facts(removal))


def _waiting_text(waiters: int) -> str:
    return "1 waits" if waiters == 1 else f"{waiters} wait"


class SeenWaiters:
    """Who was seen to wait, to tell who came, and who went without the lock.

    `initial` tells of those that were there at the first look, too.
    """

    def __init__(self, *, initial: bool) -> None:
        self._seen: Sequence[Ticket] | None = None
        self._known: dict[tuple[str, str], Ticket] | None = {} if initial else None
        self._missing: dict[tuple[str, str], Ticket] = {}

    def took(self, holder: Holder) -> None:
        """Take note of who got a lock: its ticket went with that."""
        for tickets in (self._known or {}, self._missing):
            tickets.pop((holder.name, str(holder.uuid)), None)

    def compare(self, lines: WaitQueues) -> Iterator[tuple[str, Ticket]]:
        """Yield what is new, each with `waiting` or `left`."""
        # The tickets are read from the store, and who took a lock comes by the watch, perhaps a
        # moment later: so who is not in line any more has left it if that is so at the next look.
        missing, self._missing = self._missing, {}
        yield from ((_LEFT, ticket) for ticket in missing.values())
        if lines.tickets is self._seen:
            return
        self._seen = lines.tickets
        before, now = self._known, {(ticket.name, ticket.uuid): ticket for ticket in lines.tickets}
        whole = len(now) < MOST
        self._known = now if whole else None  # else who comes and goes is who was read or not
        if before is None or not whole:
            return
        self._missing = {key: ticket for key, ticket in before.items() if key not in now}
        yield from ((_WAITING, ticket) for key, ticket in now.items() if key not in before)
