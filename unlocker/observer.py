"""Observes the table's changes: counts them in metrics, and logs them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from lockclient.model.clocks import Now
from lockclient.model.holder import Holder
from lockclient.model.removal import AUTO_UNLOCK, Removal
from lockclient.overview.live_table import Table
from lockclient.overview.rows import Row, Transition
from lockclient.service.logging_setup import log_fields
from lockclient.text.escaping import one_line, shown_name
from unlocker.deadlines import TimedLock
from unlocker.metrics.counters import REMOVAL_KINDS, Metrics
from unlocker.rate_limit import WINDOW_S, RateLimit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Observer:
    """Counts and logs what happens to locks.

    Attributes:
        table: its thread calls `on_change` and `on_removal`.
        rate_limit: counts the auto-unlocks of all unlockers.
    """

    table: Table
    rate_limit: RateLimit
    metrics: Metrics

    def on_alert(self, item: TimedLock) -> None:
        """Count and log that a lock went past its alert."""
        self.metrics.alerts.inc()
        holder = item.row.holder
        lock, held_by = shown_name(holder.name), one_line(holder.describe())
        log.warning(
            "Lock '%s' is past its alert, held by %s.",
            lock,
            held_by,
            extra=log_fields("past-alert", holder),
        )

    def on_removal(self, removals: list[Removal], found: bool) -> None:
        """Count the removals of all unlockers and people; `found`: from before our start."""
        if found:  # the removers' clocks are the only source for their times
            since = time.time() - WINDOW_S
            removals = [removal for removal in removals if (removal.removed_at or 0) > since]
        else:
            for removal in removals:
                how = removal.how if removal.how in REMOVAL_KINDS else "other"
                self.metrics.removals.labels(how).inc()
        automatic = (removal.holder for removal in removals if removal.how == AUTO_UNLOCK)
        self.rate_limit.count((holder.name, holder.uuid) for holder in automatic)

    def on_change(self, changes: list[Transition]) -> None:
        """Record how long ended locks were held; inspect new locks and those with a heartbeat."""
        now = Now.read()
        for change in changes:
            before, after = change.before, change.after
            if before is not None and before.holder.uuid not in (None, after and after.holder.uuid):
                self.metrics.held.observe(_seconds_held(before, now))
            if after is not None:
                self._inspect(before, after, live=change.live)

    def _inspect(self, before: Row | None, after: Row, *, live: bool) -> None:
        holder = after.holder
        if holder.broken():
            if before is None or not before.holder.broken():
                _warn("broken", holder, "is broken and never removed", "; ".join(holder.faults()))
            return
        if why := holder.undecided():
            if before is None or not before.holder.undecided():
                _warn("undecided", holder, "will not be auto-unlocked", why)
            return  # a person's stamps do not show the host's clock
        pushed = before is None or before.holder.alive_at != holder.alive_at
        if live and pushed and holder.alive_at is not None and holder.hostname is not None:
            self.metrics.skews.note(holder.hostname, after.seen_at, holder.alive_at)


def _warn(event: str, holder: Holder, what: str, why: str) -> None:
    text = f"Lock '{shown_name(holder.name)}' {what}: {one_line(why)}."
    log.warning("%s", text, extra=log_fields(event, holder))


def _seconds_held(row: Row, now: Now) -> float:
    """Return the seconds for which a lock that has just ended was held."""
    holder = row.holder
    known = now.monotonic - row.seen_at
    if row.found:
        known = known if holder.locked_at is None else now.wall - holder.locked_at
    elif holder.locked_at is not None and holder.alive_at is not None:
        known += holder.alive_at - holder.locked_at  # both by the holder's clock
    return max(0.0, known)
