"""The unlocker service: follows all locks, alerts on silent ones and removes overdue ones."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from typing import cast

from prometheus_client.core import GaugeMetricFamily, Metric

from lockclient.errors import ClusterMutexError, StoreUnavailable
from lockclient.model.announcement import CLOCKS_DIFFER, CLOCKS_UNKNOWN
from lockclient.model.auto_unlock import ClockCheck
from lockclient.model.clocks import Deadline, Now, monotonic
from lockclient.model.removal import Removal
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Transition
from lockclient.overview.silent_watch import Freshness
from lockclient.service.metrics import gauge_by_label
from lockclient.stores.service_store import Kind, ServiceStore
from unlocker import record_cleanup
from unlocker.deadlines import Deadlines
from unlocker.health import REQUEST_TIMEOUT_S, Health
from unlocker.metrics import gauges
from unlocker.metrics.counters import Metrics
from unlocker.metrics.counting_store import CountingStore
from unlocker.metrics.recent_removals import RecentRemovals
from unlocker.metrics.series import MAX_LISTED, series
from unlocker.notifications.conditions import (
    CLOCK,
    RATE_LIMIT,
    RATE_LIMIT_TEXT,
    UNCLAIMED,
    unclaimed_text,
)
from unlocker.notifications.notifier import CLEAN_UP_INTERVAL_S, Notifier
from unlocker.observer import Observer
from unlocker.periodic_tasks import Jobs
from unlocker.rate_limit import RateLimit
from unlocker.record_cleanup import MAX_RECORDS, RecordCleanup
from unlocker.remover import Remover
from unlocker.unclaimed import UnclaimedLocks

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 3.0
RESYNC_INTERVAL_S = 1200.0
"""Seconds between two runs of each task."""
MAX_REMOVALS = 50
"""Default of `--max-removals`."""

_CLOCK_CHECK_INTERVAL_S = 10.0
"""Seconds between two clock checks while no lock waits for one."""
_CLOCK_TIMEOUT_S = 2.0
"""Seconds for a member to return its time: a slower answer is too inaccurate."""
_UNCOMPARED_S = 15.0
"""Seconds without a member's time, while the store answers, before that is reported."""
_FOUR_KEYS = "Locks with four plain keys are alerted on later, and not auto-unlocked."
_MAX_SILENCE_S = 10.0
"""Seconds without an announcement of any unlocker on the watch: see `Table`."""
_MIN_TTL_S = 10.0
"""Least lifetime of an announcement, in seconds: two heartbeats may be missed."""
_RIGHTS_TIMEOUT_S = 1.0
"""Seconds for the check of our rights at the start; after that the service starts anyway."""
_MAX_REMOVALS = 1000
"""Newest removals that the table keeps; at the start, the rate limit counts the recent ones."""
_READ: tuple[Kind, ...] = ("unlockers", "locks", "queue")
_MAX_SWEEP_GAP_S = 3 * SWEEP_INTERVAL_S
"""Seconds without a sweep after which this process or its machine counts as having been stopped."""


class Unlocker:
    """One unlocker; any number of them may run on one store.

    Args:
        store: closed by `stop()`.
        max_removals: see `rate_limit`; None: no limit.
        keep_removals: see `record_cleanup`; None: no limit.
        version: shown in the metrics and the announcement.
        notifier: notifies people; None: nobody is notified.
        notifications_off: some of the configured recipients can't be used.
    """

    def __init__(
        self,
        store: ServiceStore,
        *,
        max_removals: int | None = MAX_REMOVALS,
        keep_removals: int | None = MAX_RECORDS,
        version: str = "",
        notifier: Notifier | None = None,
        notifications_off: bool = False,
    ) -> None:
        # The random part: two containers with one hostname may both have pid 1.
        self.identity = f"unlocker@{socket.gethostname()}:{os.getpid()}-{secrets.token_hex(2)}"
        self.metrics = metrics = Metrics(version)
        uncounted = store
        self._store = store = cast("ServiceStore", CountingStore(store, metrics))
        self._ending = threading.Event()
        self._deadlines = Deadlines()
        self._rate_limit = RateLimit(max_removals)
        self._notifier = notifier or Notifier()
        self._notifications_off = notifications_off
        self._recent_removals = RecentRemovals()
        self._table = table = Table(
            store,
            removals=_MAX_REMOVALS,
            max_silence=_MAX_SILENCE_S if store.can.watch else inf,
            on_change=self._on_change,
            on_removal=self._on_removal,
        )
        self._observer = Observer(table, self._rate_limit, metrics)
        self._freshness = Freshness(table, store)
        self._unclaimed = UnclaimedLocks(table)
        self._remover = Remover(
            store, self._deadlines, self._rate_limit, self.identity, metrics, self._ending
        )
        self._cleanup = RecordCleanup(uncounted, table, keep_removals, self._ending)
        self._jobs = Jobs()
        self._health = Health(store, table, self._freshness, self._jobs, metrics)
        self.is_live, self.is_ready = self._health.is_live, self._health.is_ready
        # In a polled store no heartbeat is seen before the next poll, and each one costs a
        # write. Due locks are found later there, so sweeps are more frequent.
        self._heartbeat_interval = max(HEARTBEAT_INTERVAL_S, store.poll)
        self._sweep_interval = SWEEP_INTERVAL_S / 4 if store.poll else SWEEP_INTERVAL_S
        self._ttl = max(_MIN_TTL_S, 3 * store.poll)
        self._announcement = _announcement(version, self._ttl)
        self._clock_check: ClockCheck | None = None
        self._compared_at = monotonic()
        self._clock_trouble = ""  # as it is announced
        self.clock_warning = ""
        """Why this host's wall clock can't be trusted, as a sentence; empty if it can."""
        self._was_current = False
        self._swept_from = monotonic()  # begin of the last sweep, also of a skipped one
        self._polled_at = -inf
        metrics.add(self._gauges)

    def check_rights(self) -> None:
        """Check at the start whether the store lets us read.

        Raises:
            StoreError: it does not. A store that does not answer is no error: `start` waits for it.
        """
        with suppress(StoreUnavailable):
            for kind in _READ:
                next(self._store.load((kind,), Deadline.after(_RIGHTS_TIMEOUT_S)), None)

    def start(self) -> None:
        """Start the threads."""
        self._table.start()
        self._notifier.start(
            self.identity,
            self._store,
            self._table,
            self._deadlines,
            trouble=self.is_ready,
            own=self._own_conditions,
            heartbeat_at=lambda: self._health.announced_at,
            count=lambda result, number: self.metrics.notifications.labels(result).inc(number),
        )
        every = self._jobs.every
        # Not vital: only alerts need it, and a slow name server can delay it for minutes.
        every(SWEEP_INTERVAL_S, self._check_clock, "clock check", vital=False)
        every(self._heartbeat_interval, self._send_heartbeat, "heartbeat")
        every(self._sweep_interval, self._sweep, "look for locks that are due")
        every(RESYNC_INTERVAL_S, self._table.resync, "order to read everything", at_once=False)
        every(record_cleanup.STEP_INTERVAL_S, self._cleanup.run, "look for records that are over")
        every(
            CLEAN_UP_INTERVAL_S,
            self._notifier.clean_up,
            "look for documents that are over",
            vital=False,
            at_once=False,
        )
        self._jobs.start()

    def stop(self) -> None:
        """Stop the threads, withdraw the announcement if the store answers, close the store."""
        self._ending.set()
        self._jobs.stop()
        self._notifier.stop()  # while our announcement still makes us the sender
        try:
            self._store.withdraw_announcement(self.identity, Deadline.after(1))
        except ClusterMutexError as error:
            log.warning("The announcement could not be withdrawn and expires by itself: %s", error)
        # Closing the store ends a read of the table that has no answer yet.
        self._table.stop(wait=False)
        self._store.close()
        self._table.stop()

    def warning(self) -> str:
        """Return what people should know though this unlocker is ready, as sentences, or ""."""
        damaged = ", ".join(self._notifier.damaged())
        found = [self.clock_warning, damaged and f"What {damaged} was sent can't be read."]
        return " ".join(each for each in found if each)

    def supervise(self) -> str | None:
        """Reopen a watch that lags; return the same as `is_live`."""
        self._freshness.escalate()
        return self.is_live()

    def _gauges(self) -> Iterator[Metric]:
        yield from self._health.gauges()
        yield GaugeMetricFamily(
            "clustermutex_unlocker_notifications_off",
            "Whether --notify has a URL that does not work (1) or not (0).",
            float(self._notifications_off),
        )
        check = self._clock_check
        yield from gauges.clock_gauges(check)
        # A replica that lost the store must not export its old view: an alert rule could not
        # distinguish it from a fresh one.
        if self._health.has_fresh_view():
            yield from self._gauges_of_locks(check)

    def _gauges_of_locks(self, check: ClockCheck | None) -> Iterator[Metric]:
        failing = self._remover.failing()
        past_alert = self._deadlines.past_alert(MAX_LISTED, failing)
        thin = len(self._store.thin_locks())
        yield from gauges.lock_gauges(self._deadlines, self._table, thin)
        yield from gauges.past_alert_gauges(past_alert, failing)
        yield from self._recent_removals.gauges(self._table.removals()[:MAX_LISTED], check)
        yield from self._unclaimed.gauges()
        yield from series(
            "held_too_long",
            "Locks that are held for longer than their max_hold.",
            "For how long such a lock has been held beyond its max_hold, the longest first.",
            self._deadlines.held_too_long(monotonic()),
            "Who holds such a lock.",
        )
        yield from self.metrics.skews.gauges(check, self._store.poll)
        yield gauge_by_label(
            "clustermutex_unlocker_notifications_failing",
            "A recipient of notifications, by its name, that has failed for ten minutes.",
            "recipient",
            dict.fromkeys(self._notifier.failing(), 1),
        )
        yield gauge_by_label(
            "clustermutex_unlocker_notifications_damaged",
            "A recipient of notifications, by its name, of which it can't be read what it was "
            "sent.",
            "recipient",
            dict.fromkeys(self._notifier.damaged(), 1),
        )
        yield from gauges.rate_limit_gauges(self._rate_limit.state(self._deadlines.held()))

    def _on_change(self, changes: list[Transition]) -> None:
        """Apply the table's changes; the table's thread calls this."""
        self._deadlines.update(changes)
        self._unclaimed.update(changes)
        self._observer.on_change(changes)

    def _on_removal(self, removals: list[Removal], found: bool) -> None:
        self._observer.on_removal(removals, found)
        self._recent_removals.add(removals, found)

    def _own_conditions(self) -> dict[str, str]:
        """Return what is wrong with this unlocker, besides its readiness: see `Observations`."""
        found = {}
        if self._rate_limit.engaged():
            found[RATE_LIMIT.code] = RATE_LIMIT_TEXT
        if names := self._unclaimed.names():
            found[UNCLAIMED.code] = unclaimed_text(names)
        if self.clock_warning:
            found[CLOCK.code] = self.clock_warning
        return found

    def _sweep(self) -> None:
        with self.metrics.sweeps.time():
            was_current, self._was_current = self._was_current, self._health.is_current()
            # From begin to begin, because the process may be stopped in the middle of a sweep.
            began = monotonic()
            gap, self._swept_from = began - self._swept_from, began
            # While the store is unreachable, and until the watch has caught up, the table is old
            # and would give thousands of alerts on healthy locks. So also after this process was
            # stopped: heartbeats sent meanwhile are still in flight.
            if was_current and self._was_current and gap < _MAX_SWEEP_GAP_S:
                self._unclaimed.scan(monotonic())
                with self._health.task("sweep"):
                    popped = self._deadlines.pop_due(min(began, self._known_until()))
                    try:
                        for item in popped.alerts:
                            self._observer.on_alert(item)
                    finally:  # `pop_due` returns each lock once
                        self._remover.run(popped.due)
                self._health.swept_at = monotonic()
            elif monotonic() - self._health.swept_at >= _MAX_SWEEP_GAP_S:
                # Only after some seconds: a watch that reconnects soon also brings the takes that
                # happened meanwhile.
                self._unclaimed.clear()

    def _known_until(self) -> float:
        """Return the time up to which due locks may be handled: see `Table.known_until`.

        In a polled store, that is the begin of the last complete poll. If a lock is due, this asks
        for a poll, at most four times in a poll interval.
        """
        now, table = monotonic(), self._table
        # Read `known_until` before `revision`, as the table writes them in that order. `followed`
        # is read last: it counts only what the table has applied.
        known_at, revision = table.known_until(), table.revision
        if table.can.watch:
            return known_at
        if table.followed >= revision:
            self._polled_at = known_at
        if now > self._polled_at + self._store.poll / 4 and self._deadlines.has_due(now):
            self._store.reopen_watch()
        return self._polled_at

    def _send_heartbeat(self) -> None:
        # `now` lets `clustermutex doctor` compare this host's clock.
        notified = self._notifier.announcement_fields()
        if self._clock_trouble:
            notified["clocks"] = self._clock_trouble
        value = json.dumps({**self._announcement, "now": round(time.time(), 3), **notified})
        with self._health.task("heartbeat"):
            deadline = Deadline.after(REQUEST_TIMEOUT_S)
            revision = self._store.announce(self.identity, value, self._ttl, deadline)
            if revision:  # written and confirmed, so the watch must show it
                self._health.announced_at = monotonic()
                self._freshness.expect(revision, self._health.announced_at)

    def _check_clock(self) -> None:
        last, before = self._clock_check, Now.read()
        age = inf if last is None else before.monotonic - last.now.monotonic
        if age < _CLOCK_CHECK_INTERVAL_S and not self._deadlines.needs_clock_check():
            return
        offsets = self._store.clock_offsets(_CLOCK_TIMEOUT_S)
        check = ClockCheck.of(before, offsets, Now.read())
        self._deadlines.reconsider(check)
        self._clock_check = check
        if check.offset is not None:
            self.metrics.succeeded_at["clock-check"] = monotonic()
        if check.offset is not None or not self._health.is_current():
            self._compared_at = monotonic()  # during an outage nothing is known of its clocks
        if check.trusted:
            self._clock_trouble = self.clock_warning = ""
        elif check.offset is not None:
            side = "behind" if check.offset > 0 else "ahead of"
            self._warn_of_clocks(
                CLOCKS_DIFFER,
                f"This host's wall clock is {abs(check.offset):.1f} s {side} the store's members': "
                "correct it. Until then it is not used, and alerts on locks that were held at the "
                f"start come later. {_FOUR_KEYS}",
            )
        elif monotonic() - self._compared_at >= _UNCOMPARED_S:
            self._warn_of_clocks(
                CLOCKS_UNKNOWN,
                "Clocks can't be compared: the store answers, and none of its servers tells its "
                f"time (etcd does so over HTTP, on its client port). {_FOUR_KEYS}",
            )

    def _warn_of_clocks(self, trouble: str, warning: str) -> None:
        if trouble != self._clock_trouble:
            event = "clock-wrong" if trouble == CLOCKS_DIFFER else "clocks-unknown"
            log.warning("%s", warning, extra={"event": event})
        self._clock_trouble, self.clock_warning = trouble, warning


def _announcement(version: str, ttl: float) -> dict[str, object]:
    """Return the fields that are the same in all announcements of a process."""
    return {
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "version": version,
        "started_at": round(time.time(), 3),
        "ttl": ttl,
    }
