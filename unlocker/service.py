"""The service: a table of all locks, and every second a look for what is due."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.record import AUTO_UNLOCK, Removal
from lockclient.store import Kind, ServiceStore
from lockclient.table import Row, Table, Transition
from lockclient.timing import Deadline, Now, monotonic
from unlocker.brake import WINDOW, Brake
from unlocker.counted import CountedStore
from unlocker.jobs import Jobs
from unlocker.metrics import HOWS, LISTED, Metrics, Picture
from unlocker.policy import ClockCheck
from unlocker.removed import Removed
from unlocker.remover import Remover
from unlocker.unclaimed import Unclaimed
from unlocker.watchlist import Item, Watchlist

log = logging.getLogger(__name__)

SWEEP, HEARTBEAT, RESYNC = 1.0, 3.0, 1200.0
"""Seconds between two runs of each task."""

_CLOCK = 10.0
"""Seconds between two clock checks while no lock waits for one."""

_TTL = 10.0
"""Seconds that a sign of life lasts: two may be missed."""
_PATIENCE = 2.0
_CLOCK_PATIENCE = 1.0
"""Seconds for a member to tell the time: one that takes longer can't tell it well."""
_READ: tuple[Kind, ...] = ("unlockers", "locks", "queue")
_FIRST_LOOK = 1.0
"""Seconds to learn at the start whether we may read: the service is to begin all the same."""
_STOPPED = 3 * SWEEP
"""Seconds without a sweep after which this process, or its machine, must have been stopped."""
_LATE = 15.0
"""Seconds without a sweep after which the service is not ready: its budget, and some."""
MAX_REMOVALS = 50
"""Locks that may be removed in a minute if nobody says otherwise."""


class Unlocker:
    """One unlocker; any number of them may run on one store.

    Args:
        store: closed by `stop()`.
        grace: seconds that a lock judged by a wall clock gets beyond its `auto_unlock_at`.
        max_removals: see `brake`; None: no limit.
        version: shown in the metrics and the sign of life.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        grace: float = 10.0,
        max_removals: int | None = MAX_REMOVALS,
        version: str = "",
    ) -> None:
        # The last part, because two containers on one host's network may both be its pid 1.
        self.identity = f"unlocker@{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(2)}"
        self.metrics = Metrics(version)
        self._store = store = cast("ServiceStore", CountedStore(store, self.metrics))
        self._where = ", ".join(store.endpoints())
        self._ending = threading.Event()
        self._watchlist = Watchlist(grace)
        self._brake = Brake(max_removals)
        self._table = Table(
            store, removals=LISTED, on_change=self._on_change, on_removal=self._on_removal
        )
        self._unclaimed = Unclaimed(self._table)
        self._remover = Remover(
            store, self._watchlist, self._brake, self.identity, self.metrics, self._ending
        )
        self._jobs = Jobs()
        self._announcement = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "version": version,
            "started_at": round(time.time(), 3),
            "ttl": _TTL,
        }
        self._check: ClockCheck | None = None
        self._was_up = False
        self._away = False
        self._refused: set[str] = set()
        self._swept_at = monotonic()
        self.metrics.show(self.picture)
        self.metrics.registry.register(Removed(self._table.removals))
        self.metrics.registry.register(self._unclaimed)

    # ------------------------------------------------------------ life

    def check_rights(self) -> None:
        """See at the start whether the store lets us read: who may not is told at once.

        Raises:
            StoreError: it does not. One that does not answer is waited for later, by `start`.
        """
        with suppress(StoreUnavailable):
            for kind in _READ:
                next(self._store.load((kind,), Deadline.after(_FIRST_LOOK)), None)

    def start(self) -> None:
        """Begin, in threads of its own."""
        self._table.start()
        self._jobs.every(SWEEP, self._check_clock)
        self._jobs.every(HEARTBEAT, self._show_life)
        self._jobs.every(SWEEP, self._sweep)
        self._jobs.every(RESYNC, self._table.resync, at_once=False)
        self._jobs.start()

    def stop(self) -> None:
        """End what runs, withdraw the sign of life if the store answers, close the store."""
        self._ending.set()
        self._jobs.stop()
        try:
            self._store.withdraw_announcement(self.identity, Deadline.after(1))
        except ClusterMutexError as error:
            log.warning("The sign of life could not be withdrawn and ends by itself: %s", error)
        # The store first: a table that is reading from one that does not answer ends with it.
        self._table.stop(wait=False)
        self._store.close()
        self._table.stop()

    # ------------------------------------------------------------ what others ask

    def unready(self) -> str | None:
        """Say in a sentence why this unlocker can't do its work now; None if it can."""
        if not self._table.ready():
            why = self._table.trouble or f"Does the store at {self._where} answer?"
            return f"The locks could not be read yet. {why}"
        if self._table.trouble:
            return f"No lock is alerted on or removed for now. {self._table.trouble}"
        if not self._up():
            return (
                f"The store at {self._where} does not answer: "
                "no lock is alerted on or removed until it does, in time."
            )
        late = monotonic() - self._swept_at
        if late > _LATE:
            return f"The last look for locks that are due was {late:.0f} s ago; it should be 1 s."
        return None

    def picture(self) -> Picture:
        """Return what the metrics show now."""
        locks = self._watchlist.counts()
        return Picture(
            locks=locks,
            undecided=self._watchlist.undecided(),
            lines=self._table.waiters().values(),
            unlockers=len(self._table.unlockers()),
            past_alert=self._watchlist.past_alert(LISTED),
            store_up=self._up(),
            loads=self._table.loads,
            watch_restarts=self._store.watch_restarts(),
            check=self._check,
            braking=self._brake.state(sum(locks.values())),
        )

    def _up(self) -> bool:
        return self._table.connected() and not self._away

    # ------------------------------------------------------------ tasks

    def _sweep(self) -> None:
        with self.metrics.sweeps.time():
            was_up, self._was_up = self._was_up, self._up()
            # What is known of locks is old news while the store is away, and until the watch has
            # caught up: thousands of alerts on locks that are well would be told. So it is on
            # waking after a stop: what was pushed meanwhile is still on its way.
            if was_up and self._was_up and monotonic() - self._swept_at < _STOPPED:
                self._unclaimed.look(monotonic())
                with self._task("sweep"):
                    progress = self._watchlist.advance(monotonic())
                    for item in progress.alerts:
                        self._alert(item)
                    self._remover.run(progress.due)
            else:
                self._unclaimed.forget()
        self._swept_at = monotonic()

    def _show_life(self) -> None:
        # With the time, so that `clustermutex doctor` can tell how this host's clock goes.
        value = json.dumps({**self._announcement, "now": round(time.time(), 3)})
        with self._task("heartbeat"):
            self._store.announce(self.identity, value, _TTL, Deadline.after(_PATIENCE))

    def _check_clock(self) -> None:
        was, before = self._check, Now.read()
        fresh = was is not None and before.monotonic - was.now.monotonic < _CLOCK
        if fresh and not self._watchlist.waiting():
            return
        offsets = self._store.clock_offsets(_CLOCK_PATIENCE)
        check = ClockCheck.of(before, offsets, Now.read())
        self._watchlist.reconsider(check)
        self._check = check
        if check.offset is None:
            return
        self.metrics.succeeded("clock-check")
        if not check.trusted and (was is None or was.offset is None or was.trusted):
            log.warning(
                "This host's wall clock is %.1f s %s the store's members': set it right. Until "
                "then it is not believed, and locks that were there at the start stay longer.",
                abs(check.offset),
                "behind" if check.offset > 0 else "ahead of",
            )

    @contextmanager
    def _task(self, task: str) -> Iterator[None]:
        """Note how a task went, and go on."""
        away = False
        try:
            yield
        except StoreUnavailable:
            away = True  # the store itself logs the begin and the end of that, once each
        except ClusterMutexError as error:
            if task not in self._refused:
                log.warning("The store refuses the %s, trying on: %s", task, error)
            self._refused.add(task)
        else:
            self._refused.discard(task)
            self.metrics.succeeded(task)
        if away or task == "heartbeat":  # a sweep that went well may have asked nothing
            self._away = away

    # ------------------------------------------------------------ telling and counting

    def _alert(self, item: Item) -> None:
        self.metrics.alerts.inc()
        holder = item.row.holder
        log.warning("Lock %r is past its alert, held by %s.", holder.name, _line(holder.describe()))

    def _on_removal(self, removals: list[Removal], found: bool) -> None:
        """Count what anyone removed since the start; called in the table's thread."""
        if found:  # by the removers' clocks: there is no other way to tell when they were
            since = time.time() - WINDOW
            removals = [each for each in removals if (each.removed_at or 0) > since]
        else:
            for each in removals:
                self.metrics.removals.labels(each.how if each.how in HOWS else "other").inc()
        automatic = (each.holder for each in removals if each.how == AUTO_UNLOCK)
        self._brake.count((holder.name, holder.uuid) for holder in automatic)

    def _on_change(self, changes: list[Transition]) -> None:
        """Take in what the table brought; called in the table's thread."""
        self._watchlist.update(changes)
        self._unclaimed.update(changes)
        now = Now.read()
        for change in changes:
            before, after = change.before, change.after
            if before is not None and before.holder.uuid not in (None, after and after.holder.uuid):
                self.metrics.held.observe(_held(before, now))
            if after is not None:
                self._look_at(before, after, now, live=change.live)

    def _look_at(self, before: Row | None, after: Row, now: Now, *, live: bool) -> None:
        holder = after.holder
        if holder.broken():
            if before is None or not before.holder.broken():
                faults = _line("; ".join(holder.faults()))
                log.warning("Lock %r is broken and never removed: %s.", holder.name, faults)
            return
        pushed = before is None or before.holder.alive_at != holder.alive_at
        if live and pushed and holder.alive_at is not None and holder.hostname is not None:
            seen_at = now.wall - (now.monotonic - after.seen_at)
            self.metrics.skews.note(holder.hostname, seen_at - holder.alive_at)


def _held(row: Row, now: Now) -> float:
    """Return for how many seconds a lock was held that has just ended."""
    holder = row.holder
    known = now.monotonic - row.seen_at
    if row.found:
        known = known if holder.locked_at is None else now.wall - holder.locked_at
    elif holder.locked_at is not None and holder.alive_at is not None:
        known += holder.alive_at - holder.locked_at  # both by the holder's clock
    return max(0.0, known)


def _line(text: str) -> str:
    """Return a text from outside fit for a log: one line, no control characters, not endless."""
    return repr(text[:500])[1:-1]
