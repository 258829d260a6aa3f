"""Health of the unlocker: liveness, readiness, reachability of the store, results of tasks."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lockclient.errors import ClusterMutexError, StoreFull, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.overview.live_table import Table
from lockclient.overview.silent_watch import Freshness
from lockclient.service.metrics import gauge_by_label, votes_gauge
from lockclient.service.outage import Outage
from lockclient.service.supervision import LIMIT
from lockclient.stores.findings import too_few
from lockclient.stores.service_store import ServiceStore
from lockclient.text.durations import duration
from unlocker.metrics.counters import Metrics
from unlocker.periodic_tasks import Jobs

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 2.0
MAX_SWEEP_AGE_S = 15.0
"""Seconds without a sweep after which the service is not ready; more than a sweep's budget."""
_MAX_UNPROVEN_S = 30.0
"""Seconds without a proof that the table is current, after which no gauge about locks is exported;
and without an accepted heartbeat, after which the service is not ready. A polled store gets two
poll intervals more."""


@dataclass(eq=False)
class Health:
    """The state of this unlocker's parts and of its store.

    Attributes:
        swept_at: end of the last sweep that was not skipped, on the monotonic clock.
        announced_at: when the store accepted our last heartbeat, on the monotonic clock.
        out_of_space: whether the store refused our last heartbeat for lack of space.
    """

    store: ServiceStore
    table: Table
    freshness: Freshness
    jobs: Jobs
    metrics: Metrics
    swept_at: float = field(default_factory=lambda: monotonic())
    announced_at: float = field(default_factory=lambda: monotonic())
    out_of_space: bool = False
    _refusal: str = ""
    _full_at: float = -math.inf
    _unreachable: bool = False
    _refusals: dict[str, Outage] = field(default_factory=dict)

    def is_live(self) -> str | None:
        """Return a sentence if a part has ended or hangs and only a restart helps, else None.

        An unreachable store is no reason to restart.
        """
        if why := self.table.down():
            return why
        if self.freshness.failed():
            return (
                f"For {duration(self._proof_age())} the watch has shown none of the heartbeats "
                f"that the store at {self._where} has confirmed, even after reopening it and "
                "reading everything again."
            )
        return self.jobs.trouble(LIMIT)

    def is_ready(self) -> str | None:
        """Return why this unlocker can't do its work now, as a sentence; None if it can."""
        if not self.table.ready():
            why = self.table.trouble or too_few(self.store.votes())
            return f"The locks could not be read yet. {why or f'Does {self._where} answer?'}"
        if self.table.trouble:
            return f"No lock is alerted on or removed for now. {self.table.trouble}"
        is_connected = self.table.connected()
        if self._unreachable or (self.store.poll and not is_connected):
            why = too_few(self.store.votes()) or (
                f"The store at {self._where} does not answer, or asks us to slow down."
            )
            return f"{why} No lock is alerted on or removed until it answers in time."
        age = self._proof_age()
        if self.freshness.stale() or not is_connected:
            if self.store.poll:
                return (
                    f"The last poll that the store at {self._where} answered is {age:.0f} s old: "
                    "no lock is alerted on or removed until it answers the next one."
                )
            return (
                f"The watch is late or silent: for {duration(age)} it has not shown what the store "
                f"at {self._where} has confirmed. No lock is alerted on or removed until it does."
            )
        refused = monotonic() - self.announced_at
        if refused > _MAX_UNPROVEN_S + 2 * self.store.poll:
            return (
                f"For {duration(refused)} the store at {self._where} has accepted no heartbeat of "
                f"ours, and so would accept no removal: {self._refusal}"
            )
        since_sweep = monotonic() - self.swept_at
        if since_sweep > MAX_SWEEP_AGE_S:
            ago = duration(since_sweep)
            return f"The last check for overdue locks was {ago} ago; it should be 1 s."
        return self.jobs.trouble(MAX_SWEEP_AGE_S)

    def gauges(self) -> Iterator[Metric]:
        """Yield the gauges of the store and of the watch on it."""
        yield GaugeMetricFamily(
            "clustermutex_unlocker_store_up",
            "Whether the store is reachable (1) or not (0).",
            float(self.is_reachable()),
        )
        restored = self.table.restored
        yield GaugeMetricFamily(
            "clustermutex_store_restored_age_seconds",
            "Seconds since a restore of the store from a backup was last detected.",
            None if restored is None else monotonic() - restored.monotonic,
        )
        if self.has_fresh_view():
            yield GaugeMetricFamily(
                "clustermutex_unlocker_store_out_of_space",
                "Whether the store refused our last heartbeat for lack of space (1) or not (0): "
                "then no lock can be taken or auto-unlocked.",
                float(self.out_of_space),
            )
        yield votes_gauge("clustermutex_unlocker_store_server_votes", self.store)
        yield GaugeMetricFamily(
            "clustermutex_unlocker_snapshot_age_seconds",
            "Seconds since the watch last showed everything that the store had confirmed: our own "
            "heartbeat, every 3 s, must appear on it.",
            self._proof_age(),
        )
        yield gauge_by_label(
            "clustermutex_unlocker_last_success_age_seconds",
            "Seconds since a task of this unlocker last succeeded, or since its start.",
            "task",
            {task: monotonic() - at for task, at in self.metrics.succeeded_at.items()},
        )
        yield CounterMetricFamily(
            "clustermutex_unlocker_table_loads",
            "How often all locks were read: at the start, at a resync, after a lost watch.",
            self.table.loads,
        )
        yield CounterMetricFamily(
            "clustermutex_unlocker_watch_restarts",
            "How often the watch on the store broke and was reopened.",
            self.store.watch_restarts(),
        )

    def is_reachable(self) -> bool:
        """Return whether the store answered last time."""
        return self.table.connected() and not self._unreachable

    def is_current(self) -> bool:
        """Return whether the table is current enough to alert on locks and remove them."""
        return self.is_reachable() and not self.freshness.stale() and self.table.is_proven()

    def has_fresh_view(self) -> bool:
        """Return whether the table is recent enough to export gauges about locks.

        A store without space refuses the heartbeat that would prove it. That refusal counts as a
        proof: the store answers, and in such a store locks can only be released.
        """
        fresh_at = max(self.freshness.verified_at(), self._full_at)
        return self.table.ready() and (
            monotonic() - fresh_at <= _MAX_UNPROVEN_S + 2 * self.store.poll
        )

    def _proof_age(self) -> float:
        return monotonic() - self.freshness.verified_at()

    @contextmanager
    def task(self, task: str) -> Iterator[None]:
        """Note the result of a task; a store's error does not leave the `with` block."""
        unreachable = out_of_space = False
        ended = f"The store accepts the {task} again."
        refusal = self._refusals.setdefault(task, Outage(log, ended, event="store-refuses"))
        try:
            yield
        except StoreUnavailable:
            # The store logs the begin and the end of its outages. A store that still answers a
            # small request is reachable: this one was perhaps too large.
            unreachable = task == "heartbeat" or not self._answers()
        except ClusterMutexError as error:
            out_of_space = isinstance(error, StoreFull)
            if task == "heartbeat":
                self._refusal = str(error)
            if out_of_space and task == "heartbeat" and not self.freshness.stale():
                self._full_at = monotonic()
            refusal.failed("The store refuses the %s; retrying: %s", task, error)
        else:
            refusal.succeeded()
            self.metrics.succeeded_at[task] = monotonic()
        if unreachable or task == "heartbeat":  # a sweep may succeed without any request
            self._unreachable = unreachable
        if task == "heartbeat" and not unreachable:  # only this task always writes
            self.out_of_space = out_of_space

    @property
    def _where(self) -> str:
        return ", ".join(self.store.endpoints())

    def _answers(self) -> bool:
        """Return whether the store's leader answers a small request."""
        try:
            self.store.newest_announcement(Deadline.after(REQUEST_TIMEOUT_S))
        except ClusterMutexError:
            return False
        return True
