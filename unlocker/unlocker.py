"""The service: a table of all locks, and every second a look for what is due."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

from lockclient.errors import ClusterMutexError, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.overview.columns import too_few
from lockclient.overview.freshness import Freshness, latest
from lockclient.overview.rows import Row, Transition
from lockclient.overview.table import Table
from lockclient.service.options import said
from lockclient.service.supervision import LIMIT
from lockclient.stores.service_protocol import Kind, ServiceStore
from lockclient.text.confusables import named
from lockclient.text.durations import duration
from lockclient.text.escaping import plain
from unlocker import record_cleanup
from unlocker.deadlines import Deadlines, Item
from unlocker.metrics.collector import FREE, HOWS, LISTED, UNLOCKED, Metrics, MetricsSnapshot
from unlocker.metrics.counting_store import CountingStore
from unlocker.metrics.recent_removals import Removed
from unlocker.notifications.notifier import Notifier, UnlockerState
from unlocker.notifications.pending import AUTO_UNLOCKED, FORCE_UNLOCKED, PAST_ALERT, Notification
from unlocker.policy import ClockCheck
from unlocker.rate_limit import WINDOW, RateLimit
from unlocker.record_cleanup import KEEP_REMOVALS, Retention
from unlocker.remover import Remover
from unlocker.scheduler import Jobs
from unlocker.unclaimed import ASK, Unclaimed

log = logging.getLogger(__name__)

SWEEP, HEARTBEAT, RESYNC = 1.0, 3.0, 1200.0
"""Seconds between two runs of each task."""

_CLOCK = 10.0
"""Seconds between two clock checks while no lock waits for one."""

_TTL = 10.0
"""Seconds that a sign of life lasts at least: two may be missed, also by who looks."""
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
_UNPROVEN = 30.0
"""Seconds without a proof that the picture is new after which it can't be relied on."""
MAX_REMOVALS = 50
"""Locks that may be removed in a minute if nobody says otherwise."""


class Unlocker:
    """One unlocker; any number of them may run on one store.

    Args:
        store: closed by `stop()`.
        max_removals: see `brake`; None: no limit.
        keep_removals: see `retention`; None: no limit.
        version: shown in the metrics and the sign of life.
        notifier: tells people; nobody is told without one.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        max_removals: int | None = MAX_REMOVALS,
        keep_removals: int | None = KEEP_REMOVALS,
        version: str = "",
        notifier: Notifier | None = None,
    ) -> None:
        # The last part, because two containers on one host's network may both be its pid 1.
        self.identity = f"unlocker@{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(2)}"
        self.metrics = Metrics(version)
        uncounted = store
        self._store = store = cast("ServiceStore", CountingStore(store, self.metrics))
        self._where = ", ".join(store.endpoints())
        self._ending = threading.Event()
        self._watchlist = Deadlines()
        self._brake = RateLimit(max_removals)
        self._table = Table(
            store, removals=LISTED, on_change=self._on_change, on_removal=self._on_removal
        )
        self._freshness = Freshness(self._table, store.renew_watch, latest(store))
        self._unclaimed = Unclaimed(self._table, uncounted, self.metrics.labels[FREE])
        self._remover = Remover(
            store, self._watchlist, self._brake, self.identity, self.metrics, self._ending
        )
        self._retention = Retention(uncounted, self._table, keep_removals, self._ending)
        self._jobs = Jobs()
        # Where it is looked for what happens, nobody sees a sign of life sooner than with the next
        # look, and each costs something. What is due is seen late there, so no time is lost then.
        self._heartbeat = max(HEARTBEAT, store.poll)
        self._ttl = max(_TTL, 3 * store.poll)
        self._pause = SWEEP / 4 if store.poll else SWEEP
        self._notifier = notifier or Notifier()
        self._announcement = {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "version": version,
            "started_at": round(time.time(), 3),
            "ttl": self._ttl,
        }
        self._check: ClockCheck | None = None
        self._was_up = False
        self._noticed = 0
        self._away = False
        self._full = False
        self._refused: set[str] = set()
        self._swept_at = monotonic()
        self.metrics.show(self.picture)
        self.metrics.registry.register(Removed(self._table.removals, self.metrics.labels[UNLOCKED]))
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
        # Of use to alerts alone; and names that nobody resolves may hold it up for minutes.
        self._jobs.every(SWEEP, self._check_clock, "clock check", vital=False)
        self._jobs.every(self._heartbeat, self._show_life, "sign of life")
        self._jobs.every(self._pause, self._sweep, "look for locks that are due")
        self._jobs.every(RESYNC, self._table.resync, "order to read everything", at_once=False)
        self._jobs.every(
            record_cleanup.EVERY, self._retention.run, "look for records that are over"
        )
        self._jobs.every(ASK, self._ask_heads, "question after heads of lines", vital=False)
        self._jobs.start()
        self._notifier.start(self.identity, self._look)

    def stop(self) -> None:
        """End what runs, withdraw the sign of life if the store answers, close the store."""
        self._ending.set()
        self._jobs.stop()
        self._notifier.stop()  # before the sign of life goes: until then others leave it to us
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
            why = self._table.trouble or too_few(self._store.votes())
            return f"The locks could not be read yet. {why or f'Does {self._where} answer?'}"
        if self._table.trouble:
            return f"No lock is alerted on or removed for now. {self._table.trouble}"
        if not self._reached():
            why = too_few(self._store.votes()) or (
                f"The store at {self._where} does not answer, or asks us to slow down."
            )
            return f"{why} No lock is alerted on or removed until it answers in time."
        if self._freshness.stale():
            ago = monotonic() - self._freshness.verified_at()
            if self._store.poll:
                return (
                    f"The last look that the store at {self._where} has answered is {ago:.0f} s "
                    "old: no lock is alerted on or removed until it answers the next one."
                )
            return (
                f"The watch is late or silent: for {duration(ago)} it has not shown what the store "
                f"at {self._where} has confirmed. No lock is alerted on or removed until it does."
            )
        ago = monotonic() - self._freshness.verified_at()
        if ago > _UNPROVEN + 2 * self._store.poll and not self._full:
            return (
                f"For {duration(ago)} nothing has shown that the watch brings what is written, "
                "because the store takes no sign of life of ours: see the log."
            )
        late = monotonic() - self._swept_at
        if late > _LATE:
            return (
                f"The last look for locks that are due was {duration(late)} ago; it should be 1 s."
            )
        return self._jobs.trouble(_LATE)

    def sick(self) -> str | None:
        """Say in a sentence what of this unlocker has ended or hangs, so that only a new start
        helps; None if all goes on. A store that is away is no such thing."""
        if why := self._table.down():
            return why
        if self._freshness.failed():
            ago = monotonic() - self._freshness.verified_at()
            return (
                f"For {duration(ago)} the watch has shown none of the signs of life that the store "
                f"at {self._where} has confirmed, by a new stream and after reading everything "
                "either."
            )
        return self._jobs.trouble(LIMIT)

    def look_after(self) -> str | None:
        """Do what there is to do about a watch that is late; return as `sick`."""
        self._freshness.escalate()
        return self.sick()

    def picture(self) -> MetricsSnapshot:
        """Return what the metrics show now."""
        locks, failing = self._watchlist.counts(), self._remover.failing()
        past_alert = self._watchlist.past_alert(LISTED, failing)
        return MetricsSnapshot(
            locks=locks,
            kept=self._watchlist.kept(time.time()),
            lines=self._table.waiters().values(),
            unlockers=len(self._table.unlockers()),
            past_alert=past_alert.listed,
            unlisted=past_alert.unlisted,
            failing=failing,
            store_up=self._reached(),
            out_of_space=self._full,
            votes=self._store.votes(),
            proven_at=time.time() - (monotonic() - self._freshness.verified_at()),
            loads=self._table.loads,
            restored=self._table.restored(),
            watch_restarts=self._store.watch_restarts(),
            check=self._check,
            braking=self._brake.state(sum(locks.values())),
        )

    def _reached(self) -> bool:
        return self._table.connected() and not self._away

    def _up(self) -> bool:
        return self._reached() and not self._freshness.stale()

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
                    revision = self._table.revision
                    progress = self._watchlist.advance(monotonic())
                    try:
                        for item in progress.alerts:
                            self._alert(item)
                        self._noticed = revision
                    finally:  # what is due is handed out once
                        self._remover.run(progress.due)
            else:
                self._unclaimed.forget()
        self._swept_at = monotonic()

    def _ask_heads(self) -> None:
        if self._up():
            with suppress(ClusterMutexError):  # it is asked again, and its own tasks log why
                self._unclaimed.ask()

    def _show_life(self) -> None:
        # With the time, so that `clustermutex doctor` can tell how this host's clock goes.
        # Not by what the table shows now: a sweep that hangs, or is left out, notices nothing.
        told = self._notifier.told(self._noticed)
        value = json.dumps({**self._announcement, "now": round(time.time(), 3), **told})
        with self._task("heartbeat"):
            revision = self._store.announce(
                self.identity, value, self._ttl, Deadline.after(_PATIENCE)
            )
            if revision:  # written and confirmed: so the watch is to bring it
                self._freshness.expect(revision, monotonic())

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
                "then it is not believed, and alerts on locks that were there at the start come "
                "later.",
                abs(check.offset),
                "behind" if check.offset > 0 else "ahead of",
                extra={"event": "clock-wrong"},
            )

    @contextmanager
    def _task(self, task: str) -> Iterator[None]:
        """Note how a task went, and go on."""
        away = full = False
        try:
            yield
        except StoreUnavailable:
            # The store itself logs the begin and the end of that, once each. One that answers for
            # others is not away: what it gave no answer to may have been too much for it.
            away = task == "heartbeat" or not self._answers()
        except ClusterMutexError as error:
            full = isinstance(error, StoreFull)
            if task not in self._refused:
                log.warning(
                    "The store refuses the %s, trying on: %s",
                    task,
                    error,
                    extra={"event": "store-refuses"},
                )
            self._refused.add(task)
        else:
            self._refused.discard(task)
            self.metrics.succeeded(task)
        if away or task == "heartbeat":  # a sweep that went well may have asked nothing
            self._away = away
        if task == "heartbeat" and not away:  # the one task that always writes
            self._full = full

    def _answers(self) -> bool:
        """Ask the store for next to nothing, through its leader; tell whether it answers."""
        try:
            self._store.newest_announcement(Deadline.after(_PATIENCE))
        except ClusterMutexError:
            return False
        return True

    # ------------------------------------------------------------ telling and counting

    def _alert(self, item: Item) -> None:
        self.metrics.alerts.inc()
        holder = item.row.holder
        log.warning(
            "Lock %s is past its alert, held by %s.",
            named(holder.name),
            _line(holder.describe()),
            extra=said(PAST_ALERT, holder),
        )

        def stands() -> bool:
            row = self._table.row(holder.name)
            now = row and (row.holder.uuid, row.holder.stamp_revisions)
            return now == (holder.uuid, holder.stamp_revisions)

        line = f"Lock {named(holder.name)} is past its alert, held by {_line(holder.describe())}."
        self._tell(PAST_ALERT, line, stands)

    def _tell(self, kind: str, line: str, stands: Callable[[], bool] = lambda: True) -> None:
        self._notifier.tell(Notification(kind, line, monotonic(), self._table.revision, stands))

    def _look(self) -> UnlockerState:
        held = sum(self._watchlist.counts().values())
        return UnlockerState(
            self.unready(),
            self._brake.state(held).engaged,
            self._table.revision,
            self._table.unlockers(),
        )

    def _on_removal(self, removals: list[Removal], found: bool) -> None:
        """Count what anyone removed since the start; called in the table's thread."""
        if found:  # by the removers' clocks: there is no other way to tell when they were
            since = time.time() - WINDOW
            removals = [each for each in removals if (each.removed_at or 0) > since]
        else:
            for each in removals:
                self.metrics.removals.labels(each.how if each.how in HOWS else "other").inc()
                how, who = _line(each.describe()), _line(each.holder.describe())
                line = f"Lock {named(each.holder.name)} is gone by {how}. It was held by {who}."
                self._tell(FORCE_UNLOCKED if each.how == FORCE_UNLOCK else AUTO_UNLOCKED, line)
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
                log.warning(
                    "Lock %s is broken and never removed: %s.",
                    named(holder.name),
                    faults,
                    extra=said("broken", holder),
                )
            return
        if why := holder.undecided():
            if before is None or not before.holder.undecided():
                log.warning(
                    "Lock %s stays when its time is over: %s.",
                    named(holder.name),
                    _line(why),
                    extra=said("undecided", holder),
                )
            return  # another hand's stamps tell nothing of the host's clock
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
    """Return a text from outside fit for a log: one line, steering nothing, not endless."""
    return plain(text[:500])
